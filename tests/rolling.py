"""Rollouts in tests: a pool of real engine processes, and the worker's two passes by hand."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from capacity.drivers.processes import read_record
from capacity.drivers.simulated import SimulatedDriver
from capacity.drivers.static import StaticDriver
from capacity.fleet import services as fleet
from capacity.fleet.services import inventory, reconcile
from capacity.models import Replica, ReplicaChange, Rollout, RolloutStep
from capacity.rollouts.services import acts, advance_rollouts, machine
from console.audit.rules import SYSTEM, Actor
from tests.engines import MODEL, ROOT, wait_for

ANA = Actor(user_id=None, label="ana")
SPEC: dict[str, Any] = {"profile": "demo", "time_scale": 20}
QUICK: dict[str, Any] = {"warm_s": 0, "judge_requests": 0, "reason": "a newer build"}


PASS_S = 0.15  # between two passes: without, waiting for an engine takes a core


@contextmanager
def own_drivers(state: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Drivers that keep this test's state, and end what they started."""
    ours = {
        "simulated": SimulatedDriver(state, ROOT),
        "static": StaticDriver("", frozenset(("127.0.0.1",))),
    }
    for module in (reconcile, inventory, acts, machine):
        monkeypatch.setattr(module, "drivers", lambda: ours)
    try:
        yield
    finally:
        for path in (state / "replicas").glob("*.json"):
            record = read_record(path)
            if record is not None and record.is_alive:
                os.kill(record.pid, signal.SIGKILL)


def make_pool(replicas: int, **fields: Any) -> str:
    """A ready pool `p` of simulated replicas."""
    fleet.create_region(slug="eu", name="Europe", actor=SYSTEM)
    fleet.create_domain(region="eu", slug="a", actor=SYSTEM)
    fleet.create_model(name=MODEL, context_tokens=16_384, actor=SYSTEM)
    given = {"driver": "simulated", "spec": SPEC, "desired_replicas": replicas, **fields}
    fleet.create_pool(name="p", model=MODEL, region="eu", domain="a", actor=SYSTEM, **given)
    settle(lambda: ready() == replicas)
    return "p"


def begin(pool: str = "p", **fields: Any) -> int:
    """Start a rollout with quick limits."""
    return acts.start(pool=pool, plan=acts.Plan(**{**QUICK, **fields}), actor=ANA)


def work() -> None:
    """What the worker does every five seconds."""
    fleet.reconcile_pools()
    advance_rollouts()


def settle(condition: Any, timeout_s: float = 60.0) -> None:
    """Work until the condition holds."""

    def worked() -> bool:
        work()
        return bool(condition())

    wait_for(worked, timeout_s, every_s=PASS_S)


def until(rollout_id: int, state: str, timeout_s: float = 60.0) -> Rollout:
    """Work until the rollout is in a state; its row."""
    settle(lambda: Rollout.objects.get(pk=rollout_id).state == state, timeout_s)
    return Rollout.objects.get(pk=rollout_id)


def until_step(rollout_id: int, step: str, lane: int = 1) -> None:
    """Work until a lane has begun a step."""
    steps = RolloutStep.objects.filter(lane__rollout_id=rollout_id, lane__number=lane, step=step)
    settle(steps.exists)


def live() -> list[Replica]:
    """Replicas of the pool that are not removed, by number."""
    return list(Replica.objects.filter(removed_at=None).order_by("ordinal"))


def ready() -> int:
    return sum(row.lifecycle == "ready" for row in live())


def starts() -> dict[str, int]:
    """The fleet's action log: how often each replica's engine was started."""
    found: dict[str, int] = {}
    for change in ReplicaChange.objects.filter(after="loading").select_related("replica"):
        found[change.replica.name] = found.get(change.replica.name, 0) + 1
    return found


def steps_of(rollout_id: int, lane: int) -> list[str]:
    rows = RolloutStep.objects.filter(lane__rollout_id=rollout_id, lane__number=lane)
    return list(rows.order_by("id").values_list("step", flat=True))

"""R23: a revision that serves, but worse, is taken back by itself while its pool goes on serving.

Real engines behind a real gateway, counted by a real collector; the test does what the worker does.
"""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from capacity.fleet import services as fleet
from capacity.models import Pool, Rollout, RolloutStep
from capacity.rollouts.selectors import rollout_detail
from console.models import Job
from routing.policies.services import push_snapshot
from tenants.directory.services import create_tenant
from tenants.keys.services import issue_key
from tests import factories, rolling
from tests.collecting import start_collector
from tests.factories import ACTOR, World
from tests.managing import managed_gateway
from tests.stack import GatewayProcess

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]
MODEL = "llama-8b"
FAST: dict[str, Any] = {"profile": "demo", "time_scale": 20}
CALLERS = 4
PAUSE_S = 0.05


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store) -> Iterator[World]:
    made = World()
    made.tenants["acme"] = create_tenant(slug="acme", name="Acme", actor=ACTOR)
    made.keys["acme"] = issue_key(tenant_id=made.tenants["acme"], name="bot", actor=ACTOR)
    factories.make_fleet(made, {})
    with rolling.own_drivers(tmp_path / "engines", monkeypatch):
        place = {"driver": "simulated", "region": "eu", "domain": "eu-a"}
        fleet.create_pool(
            name="p", model=MODEL, spec=FAST, desired_replicas=1, actor=ACTOR, **place
        )
        made.pools.append("p")
        factories.make_policy(made)
        rolling.settle(lambda: rolling.ready() == 1)
        yield made


@contextmanager
def calling(gateway: GatewayProcess, secret: str) -> Iterator[list[int]]:
    """A few callers, one short streamed call after the other; the status of each."""
    statuses: list[int] = []
    over = threading.Event()
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "say something"}],
        "max_tokens": 3,
        "ignore_eos": True,
        "stream": True,
    }

    def call() -> None:
        headers = {"authorization": f"Bearer {secret}"}
        with httpx.Client(timeout=30, trust_env=False, headers=headers) as client:
            while not over.wait(PAUSE_S):
                answer = client.post(f"{gateway.url}/v1/chat/completions", json=body)
                statuses.append(answer.status_code)

    callers = [threading.Thread(target=call) for _ in range(CALLERS)]
    for caller in callers:
        caller.start()
    try:
        yield statuses
    finally:
        over.set()
        for caller in callers:
            caller.join(30)


def roll(rollout_id: int, until: str, timeout_s: float = 120.0, then: Any = None) -> Rollout:
    """The worker's passes, twice a second, and the pushes that they ask for."""
    end_s = time.monotonic() + timeout_s
    while (row := Rollout.objects.get(pk=rollout_id)).state != until:
        assert time.monotonic() < end_s, (row.state, row.cause)
        rolling.work()
        if Job.objects.filter(kind="push_snapshot", state="queued").delete()[0]:
            push_snapshot()
        time.sleep(rolling.PASS_S)
        if then is not None:
            then()
        threading.Event().wait(0.5)  # as the worker's schedule, only faster
    return row


def test_a_slower_and_a_failing_revision_are_taken_back_and_a_like_one_goes_on(
    world: World, store, tmp_path: Path
) -> None:
    judged = {"judge_requests": 25, "judge_limit_s": 60, "warm_s": 8}
    faults = tmp_path / "faults.json"
    with (
        managed_gateway(world, store, tmp_path / "gateway") as gateway,
        start_collector(os.environ["REDIS_URL"], tmp_path),
        calling(gateway, world.keys["acme"].secret) as statuses,
    ):
        slow = rolling.begin(spec={**FAST, "time_scale": 1}, **judged)
        row = roll(slow, "rolled_back")
        assert "above the 1.25 times that are allowed" in row.cause
        lane = rollout_detail(slow).lanes[0]
        assert lane.judgement.new.ttft_p50_s > 1.25 * lane.judgement.old.ttft_p50_s
        assert min(lane.judgement.new.ttft_count, lane.judgement.old.ttft_count) >= 25
        assert {code for code in statuses if code != 200} == set()  # nobody noticed

        failing = rolling.begin(spec={**FAST, "faults": str(faults)}, **judged | {"warm_s": 600})

        def break_it() -> None:
            """Only once it has passed its checks: such a revision is what judging is for."""
            if not faults.exists() and RolloutStep.objects.filter(
                lane__rollout_id=failing, step="warm"
            ):
                faults.write_text(json.dumps({"refuse_status": 500}))

        row = roll(failing, "rolled_back", then=break_it)
        assert "it failed" in row.cause
        assert rollout_detail(failing).lanes[0].judgement.finding == "failing"

        like = rolling.begin(spec={**FAST, "max_num_seqs": 64}, **judged)
        roll(like, "done")
        assert rollout_detail(like).lanes[0].judgement.finding == "fit"
    assert Pool.objects.get(name="p").spec == {**FAST, "max_num_seqs": 64}
    assert sum(rolling.starts().values()) == 4

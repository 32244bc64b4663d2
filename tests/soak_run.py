"""Random faults, one after the other, over a stack with callers; the report of what came of it."""

import json
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import psycopg
import redis

from routing.store import keys
from tests.billing import PARKED, Bill, check_bill, differences_by_check
from tests.breaking import FAULTS, orphans, wait_for
from tests.conftest import ROOT, Stack
from tests.soaking import Books, Caller, Traffic, settle_and_check

PAUSE_S = (2.0, 6.0)  # of plain traffic between two faults
SERVED_S = 60.0  # from the mend to whole answers again
READY_S = 180.0  # and to every process ready: back-off of what died several times included


@dataclass(frozen=True, slots=True)
class Round:
    """One fault. Seconds run from its mending; `refused_s` is the longest wait for a refusal."""

    name: str
    lasted_s: float
    served_s: float
    ready_s: float
    refused_s: float
    kinds: Counter[str]


@dataclass
class Report:
    """All rounds, and the books at the end."""

    seed: int
    rounds: list[Round] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    books: Books | None = None
    bill: Bill | None = None
    took_s: float = 0.0

    def table(self) -> str:
        """For people, as Markdown."""
        lines = [
            f"seed {self.seed}, {self.took_s:.0f} s, {len(self.rounds)} faults,"
            f" answers {dict(sorted(self.kinds.items()))}",
            f"{self.books}",
            f"{self.bill}",
            "",
            "| fault | times | served again s (median, max) | ready again s | refusal s"
            " | answers meanwhile |",
            "|---|---|---|---|---|---|",
        ]
        for name in sorted({one.name for one in self.rounds}):
            mine = [one for one in self.rounds if one.name == name]
            served, ready = [m.served_s for m in mine], [m.ready_s for m in mine]
            kinds = sum((m.kinds for m in mine), Counter())
            told = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
            lines.append(
                f"| {name} | {len(mine)} | {median(served):.1f}, {max(served):.1f}"
                f" | {median(ready):.1f}, {max(ready):.1f}"
                f" | {max(m.refused_s for m in mine):.2f} | {told} |"
            )
        return "\n".join(lines)


def make_callers(stack: Stack, suffix: str = "") -> list[Caller]:
    """Tenants of their own, with callers of every kind."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak_tenants", suffix],
        cwd=ROOT,
        env={
            **stack.environment,
            **stack.settings,
            "HEADRACE_STATE": str(stack.state),
            "DJANGO_SETTINGS_MODULE": "console.project.settings",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    secrets = json.loads(done.stdout.splitlines()[-1])
    return [
        Caller("free", secrets["free"], "llama-8b", is_stream=True),
        Caller("free", secrets["free"], "qwen-32b", is_stream=False),
        Caller("free", secrets["free"], "llama-8b", is_stream=True, hangs_up=True, max_tokens=64),
        Caller("wide", secrets["wide"], "llama-8b", is_stream=True, max_tokens=40),
        Caller("wide", secrets["wide"], "llama-8b", is_stream=False),
        *[Caller("tight", secrets["tight"], "llama-8b", is_stream=n % 2 == 0) for n in range(3)],
    ]


def start_quiet_demo(stack: Stack, *words: str) -> list[Caller]:
    """The demo's fleet without its traffic, and callers for it. `stack.words` are for `up`."""
    stack.words = words
    stack.up("--demo", *words)
    callers = make_callers(stack)
    stack.down()
    stack.up(*words)
    # What is refused later is then a fault's doing, not a replica's that had not started yet.
    wait_for(lambda: _replicas_ready(stack), "every replica ready", READY_S)
    wait_for(lambda: _runs_newest(stack.status()), "published snapshot in force")
    with closing(redis.Redis.from_url(stack.settings["REDIS_URL"])) as store:
        wait_for(lambda: _are_open(store), "every counter open", READY_S)
    return callers


def _are_open(store: "redis.Redis") -> bool:
    """Whether every bucket admits: until then tenants are served from gateways' shares."""
    metas = [keys.bucket_meta(bucket) for bucket in range(keys.BUCKETS)]
    return all(store.hget(name, "state") == b"ready" for name in metas)


def _replicas_ready(stack: Stack) -> bool:
    query = "SELECT bool_and(lifecycle = 'ready') FROM capacity_replica WHERE removed_at IS NULL"
    with psycopg.connect(stack.settings["DATABASE_URL"]) as db:
        (are_ready,) = db.execute(query).fetchone() or (False,)
    return bool(are_ready)


def _runs_newest(status: dict[str, Any]) -> bool:
    numbers = {row["snapshot_number"] for row in status["gateways"]}
    return numbers == {status["snapshot_number"]}


def soak(
    stack: Stack,
    callers: list[Caller],
    *,
    seed: int,
    duration_s: float,
    names: tuple[str, ...] = tuple(FAULTS),
    is_in_order: bool = False,
) -> Report:
    """Break and mend until `duration_s` is over (`is_in_order`: each name once), then check.

    Raises AssertionError when the stack does not recover in time or the books differ.
    """
    draw = random.Random(seed)
    report = Report(seed)
    parked_before = differences_by_check(stack)[PARKED]
    began_s = time.monotonic()
    with Traffic(stack.gateway_url, callers, seed, before=stack) as traffic:
        try:
            traffic.until_served(SERVED_S)
            for name in names if is_in_order else _drawn(draw, names):
                if time.monotonic() - began_s > duration_s and not is_in_order:
                    break
                time.sleep(draw.uniform(*PAUSE_S) / (4 if is_in_order else 1))
                report.rounds.append(_round(stack, traffic, name, draw))
                print(report.rounds[-1], flush=True)
        finally:
            traffic.stop()
            report.kinds = traffic.kinds()
            report.took_s = time.monotonic() - began_s
        report.books = settle_and_check(stack, traffic)
        report.bill = check_bill(stack, traffic, parked_before)
        assert not (left := orphans(stack)), f"orphans: {left}"
    return report


def _drawn(draw: random.Random, names: tuple[str, ...]):
    weights = [FAULTS[name].weight for name in names]
    while True:
        yield draw.choices(names, weights)[0]


def _round(stack: Stack, traffic: Traffic, name: str, draw: random.Random) -> Round:
    plan = FAULTS[name]
    began_s = time.monotonic()
    with plan.make(stack, draw):
        time.sleep(draw.uniform(*plan.lasts_s))
    mended_s = time.monotonic()
    traffic.until_served(SERVED_S)
    served_s = time.monotonic() - mended_s
    until_all_run(stack)
    ready_s = time.monotonic() - mended_s
    refused_s = traffic.slowest_s("refused 503", began_s, mended_s)
    return Round(
        name, mended_s - began_s, served_s, ready_s, refused_s, traffic.kinds(began_s, mended_s)
    )


def all_run(status: dict[str, Any]) -> bool:
    """Supervised, and every process ready. Conditions may stay: that it was restarted often."""
    return bool(status["supervisor_pid"]) and all(
        row["readiness"] == "ready" for row in status["processes"]
    )


def until_all_run(stack: Stack, timeout_s: float = READY_S) -> None:
    """Wait until every process is ready. Raises AssertionError with the status."""
    end_s = time.monotonic() + timeout_s
    while not all_run(status := stack.status()):
        assert time.monotonic() < end_s, (
            f"not ready within {timeout_s} s: {status}{stack.log_tails()}"
        )
        time.sleep(0.5)

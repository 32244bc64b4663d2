"""Half an hour at 60 % of capacity with faults among the calls; figures in docs/soak.md.

HEADRACE_SOAK_S is its length, HEADRACE_SOAK_SEED draws the same calls and faults again.
"""

import asyncio
import os
import random
from pathlib import Path

import pytest
import redis

from tests.soak.gateways import GROWTH_MAX, Plan
from tests.soak.kinds import KINDS
from tests.soak.served import close_books, served, soaked

DURATION_S = float(os.environ.get("HEADRACE_SOAK_S", "1800"))
SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "0")) or random.SystemRandom().randrange(1, 10**6)
MARK_S = min(300.0, DURATION_S / 3)
LONG_S = 1200.0  # what is shorter ends before caches of the gateway are full

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(DURATION_S + 600),
    pytest.mark.django_db(transaction=True),
]


def test_each_fault_has_its_one_outcome_and_nothing_leaks(
    store: redis.Redis, tmp_path: Path
) -> None:
    print(f"\nHEADRACE_SOAK_SEED={SEED} HEADRACE_SOAK_S={DURATION_S:.0f}", flush=True)
    plan = Plan(DURATION_S, MARK_S, trouble_every_s=8.0)
    with served(store, tmp_path, SEED) as on:
        report, callers = asyncio.run(soaked(on, plan, SEED))
        differences = close_books(on, callers, report)
        print(f"{report.table()}\nreconcile {differences}", flush=True)
        assert not report.unclassified, "\n".join(report.unclassified[:20])
        assert differences == {}
        assert {one.fault for one in callers.seen} == set(KINDS)
        if DURATION_S >= LONG_S:
            for memory, descriptors in report.growth():
                assert memory < GROWTH_MAX
                assert descriptors < GROWTH_MAX

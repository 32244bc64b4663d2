"""The gateway's soak in short: each fault once or more, its outcome, its row, and nothing held."""

import asyncio
from pathlib import Path

import pytest
import redis

from tests.soak.gateways import GROWTH_MAX, Plan
from tests.soak.kinds import KINDS
from tests.soak.served import close_books, served, soaked

SEED = 20261130
# A stall of every replica lasts three times the first; a healthy answer takes milliseconds.
DEADLINES = (3.0, 4.0, 60.0)

pytestmark = pytest.mark.django_db(transaction=True)


def test_each_fault_has_its_one_outcome(store: redis.Redis, tmp_path: Path) -> None:
    plan = Plan(duration_s=10.0, mark_s=0.0, trouble_every_s=1.0, per_s=30.0)
    with served(store, tmp_path, SEED, gateway_count=1, replicas=4, deadlines=DEADLINES) as on:
        report, callers = asyncio.run(soaked(on, plan, SEED))
        differences = close_books(on, callers, report)
    print(f"\n{report.table()}")
    assert not report.unclassified, "\n".join(report.unclassified[:20])
    assert differences == {}
    ((_, descriptors),) = report.growth()
    assert descriptors < GROWTH_MAX
    assert {one.fault for one in callers.seen} == set(KINDS)

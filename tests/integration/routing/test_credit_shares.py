"""Limits of a pool without the store: what gateways admit of them by themselves adds up."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from routing.contracts.capacity import CapacityLimit
from routing.contracts.enums import Dimension, WorkClass
from routing.contracts.snapshot import ClassPolicy, Snapshot
from routing.decision.breaker import Breaker
from routing.decision.credits import USABLE_S
from routing.decision.filters import Candidate
from routing.decision.select import Group
from routing.decision.types import Amounts, Refusal
from routing.gateway.credit_books import Work
from routing.gateway.credits import Credits
from routing.gateway.returns import Caller
from tests.accounting import PrivateStore, gateway, until
from tests.stack import make_snapshot, policy, pool

pytestmark = pytest.mark.anyio

LIMIT, RATIO, GATEWAYS = 20, 0.8, 2
GROUPS = [Group(1, 1.0, [Candidate("r1", "p1", Breaker("r1"))])]
SHARES = {
    "interactive": ClassPolicy(20, 5, 60, None, 0.5, 0.05),
    "standard": ClassPolicy(20, 5, 60, None, 0.0, 0.05),
    "batch": ClassPolicy(20, 5, 60, None, 0.0, 0.05),
}


def limited(**changes: object) -> Snapshot:
    entry = pool("p1", [])
    bound = (CapacityLimit(Dimension.CONCURRENCY, LIMIT),)
    return make_snapshot([], pools={"p1": msgspec.structs.replace(entry, limits=bound)}, **changes)


async def admitted(of: Credits, work_class: WorkClass) -> int:
    """How many requests at once get in now; all of them run on."""
    for count in range(2 * LIMIT):
        work = Work(Caller("t", "UTC", "k", b"%d" % count), work_class, Amounts(1, 1, 1, 2))
        for waits in range(10):
            opened = of.open_groups(GROUPS, work, waits)
            if opened is not None:
                break
            asked = asyncio.Event()
            of.park(asked.set)
            await asked.wait()
        if opened is None or isinstance(opened, Refusal):
            return count
        of.take("p1", work)
    raise AssertionError("nothing bounds it")


async def test_shares_of_all_gateways_and_classes_stay_within_the_ratio_of_the_limit(
    private: PrivateStore, tmp_path: Path
) -> None:
    """Leases end 8 s after they were asked for; then the share, and with `closed` nothing."""
    share = {"ratio": RATIO / GATEWAYS}
    async with gateway(private.url, tmp_path) as one:
        now_ms = one.reserver.clock.now_ms
        plain, shared, closed = (
            Credits(one.store, name, now_ms, ratio)
            for name, ratio in [
                ("g0:1", lambda: share["ratio"]),
                ("g0:2", lambda: share["ratio"]),
                ("g0:3", lambda: 0.0),
            ]
        )
        plain.take_snapshot(limited())
        closed.take_snapshot(limited())
        shared.take_snapshot(limited(policy=policy(classes=SHARES)))
        tasks = [asyncio.create_task(each.keep()) for each in (plain, shared, closed)]
        await until(lambda: bool(private.client.keys("hr:{credits*")), what="leased")
        private.kill()
        await asyncio.sleep(USABLE_S + 1)  # a lease's own end, by the monotonic clock
        own = int(LIMIT * RATIO / GATEWAYS)
        assert await admitted(plain, WorkClass.STANDARD) == own
        assert GATEWAYS * own <= RATIO * LIMIT
        by_class = {name: await admitted(shared, name) for name in WorkClass}
        assert by_class[WorkClass.INTERACTIVE] >= int(LIMIT * 0.5 * RATIO / GATEWAYS)
        assert by_class[WorkClass.BATCH] > 0
        assert sum(by_class.values()) <= own
        assert await admitted(closed, WorkClass.STANDARD) == 0
        for task in tasks:
            task.cancel()

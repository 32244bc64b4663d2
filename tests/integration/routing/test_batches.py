"""Reserves and settles share script calls: what waits goes together, and a lone one at once."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from routing.contracts.enums import Dimension, LimitScope, WindowKind
from routing.contracts.snapshot import bucket_of
from routing.decision.limits import Edges, Group, amounts_in_order
from routing.decision.types import Amounts
from routing.store import keys
from routing.store.batches import MAX_CALLS
from routing.store.client import NO_REPLY, NOT_SENT, StoreConnection
from routing.store.plans import Plan, as_text
from routing.store.reservations import Reservations
from tests.accounting import entries, new_id, open_bucket, redis_url
from tests.store_wires import Relay, connected, through

pytestmark = pytest.mark.anyio

NOW: Edges = (0, 0, 0)
ONE_AT_ONCE = (Group(LimitScope.TENANT, WindowKind.NOW, "", ((Dimension.CONCURRENCY, 1),)),)
HELD = amounts_in_order(Amounts(1, 1, 1, 1))
LATER_MS = 60_000


class Caller:
    """Reserves and settles of tenants that may have one request at once."""

    def __init__(self, store: "redis.Redis", connection: StoreConnection, tenants: int) -> None:
        self.store = store
        self.names = [f"t{number}" for number in range(tenants)]
        for bucket in {bucket_of(name) for name in self.names}:
            open_bucket(store, bucket)
        self.plans = {
            name: Plan(name, ONE_AT_ONCE, (NOW,), bucket=bucket_of(name), epoch=1)
            for name in self.names
        }
        self.reservations = Reservations(connection)
        self.replies: list[Any] = []

    def reserve(self, name: str, request_id: str = "", done: Any = None) -> None:
        self.reservations.reserve(
            bucket=bucket_of(name),
            request_id=request_id or new_id(),
            not_after_ms=int(time.time() * 1000) + LATER_MS,
            info=as_text(b"i"),
            amounts=HELD,
            plan=self.plans[name],
            done=done or self.replies.append,
        )

    def settle(self, name: str, request_id: str) -> None:
        plan = self.plans[name]
        self.reservations.settle(
            bucket=bucket_of(name),
            request_id=request_id,
            res_epoch=1,
            kind="s",
            charge={},
            event=b"{}",
            legs=plan.legs(HELD),
            done=self.replies.append,
            plan=plan.raw,
            amounts=HELD,
        )

    def calls(self) -> int:
        """Script calls that the server has run."""
        return int(self.store.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])

    async def answered(self, count: int) -> list[bytes]:
        async with asyncio.timeout(10):
            while len(self.replies) < count:
                await asyncio.sleep(0.005)
        return [reply[0] for reply in self.replies]


async def test_requests_of_one_loop_turn_share_a_call_over_all_buckets(store: "redis.Redis"):
    async with connected(redis_url()) as connection:
        caller = Caller(store, connection, 20)
        before = caller.calls()
        for name in caller.names:
            caller.reserve(name)
        assert await caller.answered(20) == [b"OK"] * 20
        assert caller.calls() - before == 1
        for name in caller.names:
            assert store.zcard(keys.bucket_leases(bucket_of(name))) >= 1


async def test_what_comes_while_calls_are_under_way_gathers_for_the_next(store: "redis.Redis"):
    port = store.connection_pool.connection_kwargs["port"]
    async with (
        Relay(port, 0.15) as relay,
        connected(through(relay), reply_timeout_s=10) as connection,
    ):
        caller = Caller(store, connection, 30)
        before = caller.calls()
        for name in caller.names:
            caller.reserve(name)
            await asyncio.sleep(0)  # a turn of its own
            await asyncio.sleep(0)
        assert connection.pending == MAX_CALLS
        assert await caller.answered(30) == [b"OK"] * 30
        assert caller.calls() - before == MAX_CALLS + 1


async def test_what_has_ended_is_free_for_what_is_asked_in_the_same_turn(store: "redis.Redis"):
    async with connected(redis_url()) as connection:
        caller = Caller(store, connection, 1)
        caller.reserve("t0", "first")
        assert await caller.answered(1) == [b"OK"]
        caller.reserve("t0", "second")
        caller.settle("t0", "first")
        caller.reserve("t0", "third")
        assert await caller.answered(4) == [b"OK", b"OK", b"OK", b"NO"]
        assert entries(store, bucket_of("t0")) == [("first", "s", 1)]


async def test_a_lost_connection_tells_what_was_sent_from_what_was_not(store: "redis.Redis"):
    port = store.connection_pool.connection_kwargs["port"]
    heard: dict[str, object] = {}

    def note(name: str) -> Callable[[object], None]:
        return lambda reply: heard.setdefault(name, reply)

    async with Relay(port) as relay, connected(through(relay), reply_timeout_s=0.3) as connection:
        caller = Caller(store, connection, 12)
        relay.is_silent = True
        for name in caller.names:
            caller.reserve(name, done=note(name))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            while len(heard) < 12:
                await asyncio.sleep(0.005)
    told = [heard[name] for name in caller.names]
    assert told == [NO_REPLY] * MAX_CALLS + [NOT_SENT] * (12 - MAX_CALLS)

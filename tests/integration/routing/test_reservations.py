"""The scripts on a real store: all limits or none, once, exactly."""

import asyncio
import hashlib
import time
from typing import Any

import pytest
import redis
import redis.asyncio
from msgspec import Raw, msgpack

from routing.contracts.enums import Dimension, LimitScope, WindowKind
from routing.contracts.snapshot import Limit
from routing.decision.limits import Edges, Group, amounts_in_order, groups_for
from routing.decision.types import Amounts
from routing.store import keys
from routing.store.calls import (
    STREAM_MAX,
    ReserveItem,
    SettleItem,
    reserve_argument,
    settle_argument,
)
from routing.store.plans import Plan, as_text, encode_legs
from routing.store.pooled import node_of
from routing.store.reservations import (
    LEASE_MS,
    group_edges,
)
from routing.store.scripts import ALL, LEASE, RESERVE, SETTLE, run_script
from tests.accounting import (
    AMOUNTS,
    CONC,
    SPEND_DAY,
    counter,
    counters,
    encode,
    entries,
    key,
    new_id,
    open_bucket,
    run_id,
    set_fields,
    tenant,
)

BIG = 2**53 - 10
B = 7


def now_ms() -> int:
    return int(time.time() * 1000)


Wire = tuple[tuple[Group, ...], tuple[Edges, ...]]


def in_epoch(wire: Wire, bucket: int, epoch: int, amounts: Amounts) -> tuple[Raw, Raw]:
    """What reserve is sent of acme's counters: the plan, and what the request takes."""
    plan = Plan("acme", *wire, bucket=bucket, epoch=epoch)
    return plan.raw, as_text(plan.legs(amounts_in_order(amounts)))


class Scripts:
    """The scripts called as the gateway calls them, on one bucket."""

    def __init__(self, store: "redis.Redis", bucket: int = B) -> None:
        self.store = store
        self.bucket = bucket
        self.run = run_id(store, bucket)
        self.epoch = 1
        open_bucket(store, bucket)

    def run_script(self, script: Any, argument: bytes) -> Any:
        return run_script(self.store, script, keys.bucket_meta(self.bucket), argument)

    def reserve_argument(self, request_id: str, plan: Wire, amounts: Amounts, **changes: Any):
        fields = {
            "run": self.run, "epoch": self.epoch, "not_after": now_ms() + 1000, "lease": LEASE_MS,
            "stream_max": STREAM_MAX,
        } | changes  # fmt: skip
        raw, legs = in_epoch(plan, self.bucket, fields["epoch"], amounts)
        item = ReserveItem(
            raw, request_id, fields["not_after"], fields["lease"], as_text(b"info"),
            amounts_in_order(amounts), legs,
        )  # fmt: skip
        return reserve_argument(fields["run"], (item,), stream_max=fields["stream_max"])

    def reserve(self, plan: Wire, amounts: Amounts = AMOUNTS, request_id: str = "", **changes):
        argument = self.reserve_argument(request_id or new_id(), plan, amounts, **changes)
        (reply,) = self.run_script(RESERVE, argument)
        return reply

    def settle(self, request_id: str, kind: str, charge: dict[str, int], res_epoch: int, legs: Any):
        tag = keys.bucket_tag(self.bucket)
        event, packed = as_text(b"{}"), as_text(legs)
        item = SettleItem(tag, None, request_id, res_epoch, kind, charge, event, packed)
        (reply,) = self.run_script(SETTLE, settle_argument(self.run, (item,)))
        return reply

    def lease(self, *items: object, not_after: int | None = None) -> Any:
        tag = keys.bucket_tag(self.bucket)
        until = now_ms() + 1000 if not_after is None else not_after
        return self.run_script(LEASE, encode((tag, self.run, until, LEASE_MS, items)))


def on_the_wire(*limits: Limit) -> tuple[tuple[Group, ...], tuple[Edges, ...], Wire]:
    groups = groups_for(tenant(*limits), key(), "alpha-8b", "standard")
    edges = group_edges(groups, "UTC", now_ms())
    return groups, edges, (groups, edges)


def spend(nanousd: int) -> Amounts:
    return Amounts(0, 0, nanousd, 0)


def digest(store: "redis.Redis") -> str:
    """Of every key, its value and its expiry."""
    total = hashlib.sha256()
    for name in sorted(store.keys()):
        total.update(name + (store.dump(name) or b"") + str(store.pexpiretime(name)).encode())
    return total.hexdigest()


@pytest.fixture
def scripts(store: "redis.Redis") -> Scripts:
    return Scripts(store)


def test_two_hundred_racers_for_one_remaining_unit_admit_exactly_one(store: "redis.Redis"):
    url, buckets = _of_one_server(store, 10)
    _, _, wire = on_the_wire(Limit(*SPEND_DAY, 10), Limit(*CONC, 50))

    async def race() -> list[tuple[int, int]]:
        clients = [
            redis.asyncio.Redis(**_plain(url), single_connection_client=True) for _ in range(200)
        ]
        await asyncio.gather(*(client.ping() for client in clients))
        results = []
        for bucket in buckets:
            scripts = Scripts(store, bucket)
            assert scripts.reserve(wire, spend(9))[0] == b"OK"
            barrier = asyncio.Event()

            async def one(client: Any, scripts: Scripts = scripts, barrier: Any = barrier) -> Any:
                # 200 of them take a busy machine longer than the default of a second.
                late = now_ms() + 60_000
                argument = scripts.reserve_argument(new_id(), wire, spend(1), not_after=late)
                await barrier.wait()
                return await client.evalsha(
                    RESERVE.digest.decode(), 1, keys.bucket_meta(scripts.bucket), argument
                )

            tasks = [asyncio.ensure_future(one(client)) for client in clients]
            await asyncio.sleep(0)
            barrier.set()
            replies = await asyncio.gather(*tasks)
            verdicts = [reply[0][0] for reply in replies]
            results.append((verdicts.count(b"OK"), verdicts.count(b"NO")))
        for client in clients:
            await client.aclose()
        return results

    for script in ALL:
        node_of(store, keys.bucket_meta(buckets[0])).script_load(script.source)
    assert asyncio.run(race()) == [(1, 199)] * 10
    assert counter(store, buckets[0], ":g:", "conc_h") == 2


def _of_one_server(store: "redis.Redis", count: int) -> tuple[dict[str, Any], list[int]]:
    """How to connect to the server of bucket 100, and the first buckets from there that it has."""
    places = {
        bucket: node_of(store, keys.bucket_meta(bucket)).connection_pool.connection_kwargs
        for bucket in range(100, 200)
    }
    first = places[100]
    return first, [b for b, place in places.items() if place["port"] == first["port"]][:count]


def _plain(pool: dict[str, Any]) -> dict[str, Any]:
    return {
        name: pool[name]
        for name in ("host", "port", "db", "password", "username")
        if pool.get(name)
    }


def test_counters_stay_exact_next_to_two_to_the_53(scripts: Scripts):
    _, _, wire = on_the_wire(Limit(*SPEND_DAY, BIG))
    first = scripts.reserve(wire, spend(BIG - 1), "a" * 8)
    assert first[0] == b"OK"
    assert 1 in first[3]
    refused = scripts.reserve(wire, spend(2))
    assert (refused[0], refused[6]) == (b"NO", BIG - 1)
    assert counter(scripts.store, B, ":w:", "usd_h") == BIG - 1
    assert scripts.settle("a" * 8, "s", {"usd": BIG - 5}, 1, first[5])[0] == b"OK"
    assert counter(scripts.store, B, ":w:", "usd") == BIG - 5
    assert counter(scripts.store, B, ":w:", "usd_h") == 0


def test_refused_request_changes_no_key_and_no_expiry(scripts: Scripts):
    _, _, wire = on_the_wire(Limit(*SPEND_DAY, 10), Limit(*CONC, 50))
    assert scripts.reserve(wire, spend(9))[0] == b"OK"
    before = digest(scripts.store)
    for _ in range(20):
        assert scripts.reserve(wire, spend(2))[0] == b"NO"
    assert scripts.reserve(wire, spend(1), epoch=9)[0] == b"EPOCH"
    assert scripts.reserve(wire, spend(1), not_after=now_ms() - 5000)[0] == b"LATE"
    assert scripts.reserve(wire, spend(1), run="0" * 40)[0] == b"REBUILD"
    assert scripts.reserve(wire, spend(1), stream_max=0)[0] == b"FULL"
    assert digest(scripts.store) == before


def test_refusal_names_the_limit_to_wait_longest_for(scripts: Scripts):
    minute = Limit(LimitScope.KEY, Dimension.REQUESTS, WindowKind.MINUTE, 0, "k-acme")
    groups, edges, wire = on_the_wire(Limit(*SPEND_DAY, 5), Limit(*CONC, 0), minute)
    reply = scripts.reserve(wire, spend(6))
    assert groups[reply[3] - 1].window is WindowKind.DAY
    assert reply[4] == b"usd"
    assert abs(reply[7] - (edges[0][1] - reply[2])) <= 1


def test_window_outside_both_known_ones_is_told_and_nothing_taken(scripts: Scripts):
    groups, _, _ = on_the_wire()
    old = group_edges(groups, "UTC", now_ms() - 5 * 86_400_000)
    before = digest(scripts.store)
    assert scripts.reserve((groups, old))[0] == b"WINDOW"
    assert digest(scripts.store) == before


def test_next_window_is_used_once_the_stores_clock_has_reached_it(scripts: Scripts):
    groups, edges, _ = on_the_wire()
    yesterday = group_edges(groups, "UTC", edges[0][0] - 1)
    reply = scripts.reserve((groups, yesterday))
    assert reply[0] == b"OK"
    assert msgpack.decode(reply[5])[0][1].endswith(str(edges[0][0]))
    plan = Plan("acme", groups, yesterday, bucket=B, epoch=1)
    assert reply[2] >= plan.stop_ms, "by this a gateway knows that the legs are not the plan's"
    assert reply[5] != plan.legs(amounts_in_order(AMOUNTS))


def test_hold_ends_once_however_often_it_is_settled(scripts: Scripts):
    _, _, wire = on_the_wire(Limit(*CONC, 1))
    legs = scripts.reserve(wire, spend(100), "r1")[5]
    assert scripts.reserve(wire, spend(100), "r2")[0] == b"NO"
    for _ in range(3):
        assert scripts.settle("r1", "s", {"req": 1, "usd": 60}, 1, legs)[0] == b"OK"
    assert counter(scripts.store, B, ":w:", "usd") == 60
    assert counter(scripts.store, B, ":w:", "req") == 1
    assert counter(scripts.store, B, ":g:", "conc_h") == 0
    assert [k for _, _, k in entries(scripts.store, B)] == [1, 0, 0]
    assert scripts.reserve(wire, spend(100), "r2")[0] == b"OK"


def test_sweep_spares_a_live_hold_and_ends_an_expired_one_once(scripts: Scripts):
    _, _, wire = on_the_wire()
    legs = scripts.reserve(wire, spend(100), "r1", lease=40)[5]
    assert scripts.settle("r1", "w", {"usd": 100}, 0, legs)[0] == b"ALIVE"
    end = time.monotonic() + 5
    while scripts.settle("r1", "w", {"usd": 100}, 0, legs)[0] == b"ALIVE":
        assert time.monotonic() < end
    assert scripts.settle("r1", "w", {"usd": 100}, 0, legs)[0] == b"ALIVE"
    assert scripts.store.zcard(keys.bucket_leases(B)) == 0
    late = scripts.settle("r1", "s", {"usd": 40}, 1, legs)
    assert late[0] == b"OK"
    assert counter(scripts.store, B, ":w:", "usd") == 100, "the ledger corrects, not the script"
    assert [(t, k) for _, t, k in entries(scripts.store, B)] == [("w", 1), ("s", 0)]


def test_void_frees_everything_and_charges_nothing(scripts: Scripts):
    _, _, wire = on_the_wire(Limit(*CONC, 1))
    legs = scripts.reserve(wire, AMOUNTS, "r1")[5]
    assert scripts.settle("r1", "v", {}, 1, legs)[0] == b"OK"
    for dim in ("req", "in", "out", "usd"):
        assert counter(scripts.store, B, ":w:", dim) == 0
        assert counter(scripts.store, B, ":w:", f"{dim}_h") == 0


def test_gauge_in_use_outlives_its_first_expiry(scripts: Scripts):
    _, _, wire = on_the_wire(Limit(*CONC, 10))
    scripts.reserve(wire, spend(1), "r1")
    name = next(iter(scripts.store.scan_iter("*:g:*")))
    soon = now_ms() + 60_000
    set_fields(scripts.store, name, x=soon)
    scripts.store.pexpireat(name, soon)
    scripts.reserve(wire, spend(1), "r2")
    assert scripts.store.pexpiretime(name) > now_ms() + 80_000_000
    assert counter(scripts.store, B, ":g:", "conc_h") == 2


def test_lost_store_refuses_until_rebuilt_and_counts_registered_holds(store: "redis.Redis"):
    scripts = Scripts(store)
    groups, edges, wire = on_the_wire(Limit(*SPEND_DAY, 1000))
    scripts.reserve(wire, spend(100), "r1")
    legs = encode_legs("acme", groups, edges, amounts_in_order(spend(100)))
    store.flushall()
    assert scripts.reserve(wire, spend(1))[0] == b"REBUILD"
    assert counters(store, B, "begin", epoch=2) == b"OK"
    assert counters(store, B, "begin", epoch=2) == b"OLD"
    assert scripts.lease(("r1", 7, 1))[5] == [2], "it wants the legs"
    item = ("r1", 7, 1, as_text(b"info"), Raw(legs))
    for _ in range(2):
        assert scripts.lease(item)[4:] == [b"rebuilding", [1]]
    assert scripts.reserve(wire, spend(1))[0] == b"REBUILD"
    suffix = msgpack.decode(legs)[0][1]
    rows = [[suffix, "usd", 850, edges[0][1]]]
    assert counters(store, B, "fill", rows, epoch=2) == b"OK"
    assert counters(store, B, "open", 0, epoch=2) == b"OK"
    scripts.epoch = 2
    refused = scripts.reserve(wire, spend(51))
    assert (refused[0], refused[5:7]) == (b"NO", [850, 100])
    assert scripts.reserve(wire, spend(50))[0] == b"OK"


def test_settle_of_an_older_epoch_is_charged_and_names_its_epoch(store: "redis.Redis"):
    scripts = Scripts(store)
    groups, edges, _ = on_the_wire()
    legs = encode_legs("acme", groups, edges, amounts_in_order(spend(100)))
    assert scripts.settle("gone", "s", {"usd": 70}, 0, legs)[0] == b"OK"
    assert counter(store, B, ":w:", "usd") == 70
    assert counter(store, B, ":w:", "usd_h") == 0
    assert entries(store, B) == [("gone", "s", 1)]


def test_late_lease_registers_nothing(store: "redis.Redis"):
    scripts = Scripts(store)
    groups, edges, _ = on_the_wire()
    legs = encode_legs("acme", groups, edges, amounts_in_order(spend(1)))
    item = ("r1", 0, 0, as_text(b"info"), Raw(legs))
    assert scripts.lease(item, not_after=now_ms() - 5000)[0] == b"LATE"
    assert store.zcard(keys.bucket_leases(B)) == 0


def test_legs_made_by_the_gateway_equal_those_of_the_script(scripts: Scripts):
    minute = Limit(LimitScope.TENANT, Dimension.INPUT_TOKENS, WindowKind.MONTH, 10**9)
    groups, edges, wire = on_the_wire(Limit(*CONC, 5), minute)
    reply = scripts.reserve(wire, AMOUNTS)
    ours = encode_legs("acme", groups, edges, amounts_in_order(AMOUNTS))
    assert msgpack.decode(ours) == msgpack.decode(reply[5])

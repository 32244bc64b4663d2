"""Caps on agents' tasks hold to the call and to the nano-dollar, on any number of gateways."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from routing.contracts.enums import Dimension, LimitScope, StoreMode, TaskScope
from routing.contracts.snapshot import TaskCaps
from routing.decision.types import Amounts, Hold, Reason, Refusal
from routing.decision.workflow import MAX_PARENTS, STEPS_SHOWN, TaskAsk
from routing.store import keys
from routing.store.workflow import TASKS_MAX
from tests.accounting import (
    AMOUNTS,
    Gateway,
    PrivateStore,
    commit_all,
    fields,
    gateway,
    open_bucket,
    redis_url,
    set_expiry,
    skeleton,
    tenant,
    until,
    used,
)
from tests.stack import held

pytestmark = pytest.mark.anyio
ACME = tenant()
COST = AMOUNTS.spend_nanousd
Store = "redis.Redis[bytes]"


def step(task: str = "t-1", *, parent: str = "", sign: bytes = b"", **caps: Any) -> TaskAsk:
    return TaskAsk(task, "research", parent, "", TaskCaps(**caps), sign)


def counter_of(store: Store, task: str = "t-1") -> dict[str, int]:
    """Held and used amounts of the task's only counter."""
    base = keys.task_base(ACME.id, task)
    (name,) = store.scan_iter(f"{keys.bucket_tag(ACME.bucket)}:*:w:{base}:*")
    return fields(store, name)


def record_of(store: Store, task: str = "t-1") -> dict[bytes, bytes]:
    return store.hgetall(keys.task_record(ACME.bucket, ACME.id, task))


def age(store: Store, by_ms: int, task: str = "t-1") -> None:
    """As if the task had begun earlier, at a gateway that nobody asks."""
    name = keys.task_record(ACME.bucket, ACME.id, task)
    store.hset(name, "a", int(store.hget(name, "a") or 0) - by_ms)


def split(outcomes: Sequence[Hold | Refusal]) -> tuple[list[Hold], list[Refusal]]:
    held_ones = [one for one in outcomes if isinstance(one, Hold)]
    return held_ones, [one for one in outcomes if isinstance(one, Refusal)]


async def admitted(at: Gateway, ask: TaskAsk, amounts: Amounts = AMOUNTS) -> Hold:
    outcome = await at.reserve(ACME, amounts, task=ask)
    assert isinstance(outcome, Hold), outcome
    return outcome


async def refused(at: Gateway, ask: TaskAsk, amounts: Amounts = AMOUNTS) -> Refusal:
    outcome = await at.reserve(ACME, amounts, task=ask)
    assert isinstance(outcome, Refusal), outcome
    return outcome


async def test_parallel_calls_of_two_gateways_get_exactly_the_steps(store: Store, tmp_path: Path):
    open_bucket(store, ACME.bucket)
    async with gateway(redis_url(), tmp_path) as g0, gateway(redis_url(), tmp_path, "g1") as g1:
        calls = [one.reserve(ACME, task=step(max_steps=7)) for one in (g0, g1) * 20]
        holds, refusals = split(await asyncio.gather(*calls))
        assert len(holds) == 7
        assert {one.reason for one in refusals} == {Reason.TASK_STEPS}
        assert {(one.limit, one.scope) for one in refusals} == {("task_steps", TaskScope.TASK)}
        assert sorted(one.task_step for one in holds) == [1, 2, 3, 4, 5, 6, 7]
        for hold in holds:
            for at in (g0, g1):  # to the one that does not know it, this is nothing
                at.accountant.end(replace(hold), used(skeleton(hold.request_id), 10, 20, 1000))
        await until(lambda: held(store, ACME.bucket) == 0, what="all settled")
        assert (counter_of(store)["req"], counter_of(store)["req_h"]) == (7, 0)


async def test_parallel_calls_never_pass_the_cap_on_spend(store: Store, tmp_path: Path):
    open_bucket(store, ACME.bucket)
    cap = 3 * COST + COST // 2
    async with gateway(redis_url(), tmp_path) as g0, gateway(redis_url(), tmp_path, "g1") as g1:
        calls = [one.reserve(ACME, task=step(max_spend_nanousd=cap)) for one in (g0, g1) * 10]
        holds, refusals = split(await asyncio.gather(*calls))
        assert len(holds) == 3
        assert {one.reason for one in refusals} == {Reason.TASK_SPEND}
        assert "$0.00 used and $0.00603 held of $0.007035" in refusals[0].message
        assert counter_of(store)["usd_h"] == 3 * COST


async def test_what_was_not_used_of_a_hold_is_the_tasks_again(store: Store, tmp_path: Path):
    open_bucket(store, ACME.bucket)
    async with gateway(redis_url(), tmp_path) as g0:
        ask = step(max_spend_nanousd=2 * COST)
        g0.end(await admitted(g0, ask), nanousd=COST // 4)
        await until(lambda: held(store, ACME.bucket) == 0, what="settled")
        hold = await admitted(g0, ask)
        assert (await refused(g0, ask)).reason is Reason.TASK_SPEND
        assert counter_of(store)["usd"] == COST // 4
        g0.accountant.void(hold)
        await until(lambda: counter_of(store)["usd_h"] == 0, what="given back")
        assert (counter_of(store)["req"], record_of(store)[b"n"]) == (1, b"2")


async def test_a_task_ends_its_time_after_its_first_call(store: Store, tmp_path: Path):
    open_bucket(store, ACME.bucket)
    async with gateway(redis_url(), tmp_path) as g0:
        ask = step(max_wall_s=60)
        first = await admitted(g0, ask)
        age(store, 59_000)
        await admitted(g0, ask)
        age(store, 1_000)
        refusal = await refused(g0, ask)
        assert (refusal.reason, refusal.limit) == (Reason.TASK_WALL, "task_wall")
        assert refusal.retry_after_s is None
        assert refusal.story is not None
        assert refusal.story.used.endswith("of 60 s")
        assert refusal.story.chain.shown[0].request_id == first.request_id
        assert held(store, ACME.bucket) == 2  # what runs may end


async def test_the_same_step_again_and_again_is_a_loop(store: Store, tmp_path: Path):
    open_bucket(store, ACME.bucket)
    one, other = b"\x01" * 8, b"\x02" * 8
    async with gateway(redis_url(), tmp_path) as g0, gateway(redis_url(), tmp_path, "g1") as g1:
        for at in (g0, g1, g0):
            await admitted(at, step(sign=one, max_repeats=3))
            await admitted(at, step(sign=b"", max_repeats=3))
        refusal = await refused(g1, step(sign=one, max_repeats=3))
        assert (refusal.reason, refusal.limit) == (Reason.TASK_REPEATS, "task_repeats")
        assert "3 of 3 times" in refusal.message
        await admitted(g1, step(sign=other, max_repeats=3))
        await admitted(g1, step("t-2", sign=one, max_repeats=3))  # another task's own


async def test_calls_that_were_never_sent_are_no_repeats(store: Store, tmp_path: Path):
    open_bucket(store, ACME.bucket)
    ask = step(sign=b"\x01" * 8, max_repeats=1, max_steps=1)
    async with gateway(redis_url(), tmp_path) as g0:
        hold = await admitted(g0, ask)
        assert (await refused(g0, ask)).reason is Reason.TASK_REPEATS
        g0.accountant.void(hold)
        await until(lambda: held(store, ACME.bucket) == 0, what="given back")
        again = await admitted(g0, ask)
        refusal = await refused(g0, ask)
        assert refusal.story is not None
        assert [s.request_id for s in refusal.story.chain.shown] == [again.request_id]


async def test_the_refusal_prints_the_last_steps_and_the_parents(store: Store, tmp_path: Path):
    open_bucket(store, ACME.bucket)
    steps = STEPS_SHOWN + 5
    async with gateway(redis_url(), tmp_path) as g0:
        await admitted(g0, step("grand:ma"))
        await admitted(g0, step("mother", parent="grand:ma"))
        for number in range(1, steps + 1):
            ask = replace(step(parent="mother", max_steps=steps), step=f"{number}/{steps}")
            hold = await admitted(g0, ask)
            g0.end(hold, nanousd=number)
        await until(lambda: held(store, ACME.bucket) == 2, what="settled")
        refusal = await refused(g0, step(parent="mother", max_steps=steps))
        assert refusal.story is not None
        chain = refusal.story.chain
        assert chain.parents == ("mother", "grand:ma")
        assert chain.steps == steps
        assert [one.number for one in chain.shown] == list(range(6, steps + 1))
        assert [one.charged_nanousd for one in chain.shown] == list(range(6, steps + 1))
        assert "Started by mother < grand:ma." in refusal.message
        assert f"#{steps} {steps}/{steps} alpha-8b $0.000000025" in refusal.message
        assert "mother" not in str((await refused(g0, step(max_steps=0))).story.chain.shown)


async def test_a_child_spends_its_parents_money_too(store: Store, tmp_path: Path):
    open_bucket(store, ACME.bucket)
    mother = step("mother", max_spend_nanousd=3 * COST, max_steps=1)
    async with gateway(redis_url(), tmp_path) as g0, gateway(redis_url(), tmp_path, "g1") as g1:
        await admitted(g0, mother)
        children = [step(f"c-{n}", parent="mother", max_spend_nanousd=10 * COST) for n in (1, 2, 3)]
        calls = [at.reserve(ACME, task=child) for child in children for at in (g0, g1)]
        holds, refusals = split(await asyncio.gather(*calls))
        assert len(holds) == 2
        assert {(one.reason, one.scope) for one in refusals} == {
            (Reason.TASK_SPEND, TaskScope.PARENT)
        }
        assert "Task mother, which started task c-" in refusals[0].message
        assert counter_of(store, "mother")["usd_h"] == 3 * COST
        assert counter_of(store, "mother")["req_h"] == 1  # a child's calls are not its steps


async def test_no_depth_of_children_hides_spend_from_those_above(store: Store, tmp_path: Path):
    """Each call spends the money of all above it, learnt from the store in one more round trip."""
    open_bucket(store, ACME.bucket)
    names = [f"t-{depth}" for depth in range(MAX_PARENTS + 2)]
    async with gateway(redis_url(), tmp_path) as g0, gateway(redis_url(), tmp_path, "g1") as g1:
        for depth, name in enumerate(names):
            at, cap = (g0, g1)[depth % 2], (MAX_PARENTS + 1) * COST if name == "t-0" else None
            parent = names[depth - 1] if depth else ""
            hold = await admitted(at, step(name, parent=parent, max_spend_nanousd=cap))
            assert hold.task_end is not None
            assert hold.task_end.parents == tuple(reversed(names[:depth]))[:MAX_PARENTS]
        assert counter_of(store, "t-0")["usd_h"] == (MAX_PARENTS + 1) * COST
        assert counter_of(store, "t-1")["usd_h"] == (MAX_PARENTS + 1) * COST  # one is too deep
        refusal = await refused(g0, step(names[-2], parent=names[-3]))
        assert (refusal.reason, refusal.scope) == (Reason.TASK_SPEND, TaskScope.PARENT)
        assert f"Task t-0, above task {names[-2]}, has" in refusal.message
        assert "Started by t-7 < t-6 < " in refusal.message


async def test_tasks_that_name_each_other_as_parents_are_counted_once(store: Store, tmp_path: Path):
    open_bucket(store, ACME.bucket)
    async with gateway(redis_url(), tmp_path) as g0:
        await admitted(g0, step("a", parent="b", max_spend_nanousd=2 * COST))
        await admitted(g0, step("b", parent="a", max_spend_nanousd=2 * COST))
        assert counter_of(store, "a")["usd_h"] == counter_of(store, "b")["usd_h"] == 2 * COST
        refusal = await refused(g0, step("a", parent="b", max_spend_nanousd=2 * COST))
        assert refusal.story is not None
        assert refusal.story.chain.parents == ("b",)


async def test_a_parents_time_stops_those_below_and_ends_their_running_calls(
    store: Store, tmp_path: Path
):
    open_bucket(store, ACME.bucket)
    async with gateway(redis_url(), tmp_path) as g0, gateway(redis_url(), tmp_path, "g1") as g1:
        grand = await admitted(g0, step("grand", max_wall_s=60))
        await admitted(g0, step("mother", parent="grand", max_wall_s=6_000))
        child = step("child", parent="mother", max_wall_s=6_000)
        for at in (g0, g1):
            end = (await admitted(at, child)).task_end
            assert end is not None
            assert (end.scope, end.task, end.wall_s) == (TaskScope.PARENT, "grand", 60)
            assert end.at_ms == grand.task_end.at_ms  # type: ignore[union-attr]
        age(store, 60_000, "grand")
        refusal = await refused(g1, child)
        assert (refusal.reason, refusal.scope) == (Reason.TASK_WALL, TaskScope.PARENT)
        assert "Task grand, above task child, made its first call 60 s ago" in refusal.message
        assert "Started by mother < grand." in refusal.message
        refusal = await refused(g1, step("mother", max_wall_s=6_000))  # said once is said
        assert "Task grand, above task mother, made its first call" in refusal.message


async def test_a_parent_that_never_called_has_its_childs_cap(store: Store, tmp_path: Path):
    open_bucket(store, ACME.bucket)
    async with gateway(redis_url(), tmp_path) as g0:
        for name in ("c-1", "c-2"):
            await admitted(g0, step(name, parent="mother", max_spend_nanousd=2 * COST))
        refusal = await refused(g0, step("c-3", parent="mother", max_spend_nanousd=2 * COST))
        assert (refusal.reason, refusal.scope) == (Reason.TASK_SPEND, TaskScope.PARENT)


async def test_a_short_child_of_a_long_task_counts_into_its_parent(store: Store, tmp_path: Path):
    open_bucket(store, ACME.bucket)
    mother = step("mother", max_spend_nanousd=4 * COST)
    child = step("c-1", parent="mother", max_wall_s=60)
    async with gateway(redis_url(), tmp_path) as g0:
        await admitted(g0, mother)
        two_hours = 7_200_000
        bucket, base = keys.bucket_tag(ACME.bucket), keys.task_base(ACME.id, "mother")
        began = int(record_of(store, "mother")[b"a"])
        age(store, two_hours, "mother")
        store.rename(f"{bucket}:1:w:{base}:{began}", f"{bucket}:1:w:{base}:{began - two_hours}")
        for _ in range(3):
            await admitted(g0, child)
        assert (await refused(g0, child)).scope is TaskScope.PARENT
        assert counter_of(store, "mother")["usd_h"] == 4 * COST


async def test_a_childs_call_first_does_not_shorten_its_parents_life(store: Store, tmp_path: Path):
    open_bucket(store, ACME.bucket)
    record = keys.task_record(ACME.bucket, ACME.id, "mother")
    async with gateway(redis_url(), tmp_path) as g0:
        await admitted(g0, step("c-1", parent="mother", max_wall_s=60))
        assert store.ttl(record) <= 3_661
        await admitted(g0, step("mother", max_wall_s=6_000))
        assert store.ttl(record) > 9_000
        assert store.zscore(LIVE, "mother") == pytest.approx(store.pexpiretime(record))


async def test_a_lower_cap_holds_for_tasks_that_began_before(store: Store, tmp_path: Path):
    open_bucket(store, ACME.bucket)
    async with gateway(redis_url(), tmp_path) as g0:
        await admitted(g0, step(max_wall_s=86_400))
        age(store, 7_200_000)
        assert (await refused(g0, step(max_wall_s=60))).reason is Reason.TASK_WALL
        assert (await refused(g0, step(max_wall_s=60))).reason is Reason.TASK_WALL


async def test_a_refused_step_costs_nothing_anywhere(store: Store, tmp_path: Path):
    open_bucket(store, ACME.bucket)
    async with gateway(redis_url(), tmp_path) as g0:
        await admitted(g0, step(max_steps=1, max_repeats=1, sign=b"\x01" * 8))

        def everything() -> dict[bytes, bytes | None]:
            names = sorted(store.scan_iter(f"{keys.bucket_tag(ACME.bucket)}:*"))
            return {name: store.dump(name) for name in names}

        before = everything()
        for ask in (
            step(max_steps=1),
            step(max_spend_nanousd=1),
            step(max_repeats=1, sign=b"\x01" * 8),
            step("new", max_spend_nanousd=1),
        ):
            await refused(g0, ask)
        assert everything() == before


async def test_tasks_of_a_tenant_are_bounded(store: Store, tmp_path: Path):
    open_bucket(store, ACME.bucket)
    async with gateway(redis_url(), tmp_path) as g0:
        await admitted(g0, step())
        (until_ms,) = (score for _, score in store.zrange(LIVE, 0, -1, withscores=True))
        store.zadd(LIVE, {f"x{n}": until_ms for n in range(TASKS_MAX - 1)})
        refusal = await refused(g0, step("one-more"))
        assert (refusal.reason, refusal.limit) == (Reason.RATE_LIMITED, "live_tasks")
        assert refusal.scope is LimitScope.TENANT
        await admitted(g0, step())  # a known one goes on
        store.zrem(LIVE, "x1")
        await admitted(g0, step("one-more"))


LIVE = keys.live_tasks(ACME.bucket, ACME.id)


async def test_nothing_is_left_of_a_task_once_it_is_forgotten(store: Store, tmp_path: Path):
    open_bucket(store, ACME.bucket)
    async with gateway(redis_url(), tmp_path) as g0:
        await admitted(g0, step(max_wall_s=60))
    record = keys.task_record(ACME.bucket, ACME.id, "t-1")
    hour_s = 3600
    assert hour_s < store.ttl(record) <= hour_s + 61
    assert hour_s < store.ttl(LIVE) <= hour_s + 61


async def test_a_killed_gateway_leaves_nothing_held(store: Store, tmp_path: Path):
    open_bucket(store, ACME.bucket)
    async with gateway(redis_url(), tmp_path) as g0, gateway(redis_url(), tmp_path, "g1") as g1:
        hold = await admitted(g0, step(max_steps=5))
        await g0.crash()
        set_expiry(store, ACME.bucket, hold.request_id, 1)
        g1.sweeper.sweep()
        await until(lambda: held(store, ACME.bucket) == 0, what="swept")
        found = counter_of(store)
        assert (found["req"], found["req_h"], found["usd_h"]) == (1, 0, 0)
        assert found["usd"] > 0


async def test_a_lost_store_learns_its_tasks_from_the_ledger(store: Store, tmp_path: Path):
    open_bucket(store, ACME.bucket)
    ask = step(max_steps=2, max_wall_s=60)
    async with gateway(redis_url(), tmp_path) as g0:
        g0.end(await admitted(g0, ask))
        await until(lambda: held(store, ACME.bucket) == 0, what="settled")
        began = record_of(store)[b"a"]
    commit_all(store, ACME.bucket)
    store.flushall()
    suffix = f"w:{keys.task_base(ACME.id, 't-1')}:{began.decode()}"
    ends_ms = int(began) + ask.life_ms
    rows = [[suffix, "req", 1, ends_ms], [suffix, "usd", 1000, ends_ms]]
    open_bucket(store, ACME.bucket, 2, rows)
    async with gateway(redis_url(), tmp_path / "new", "g1") as g1:
        assert record_of(store)[b"a"] == began
        await admitted(g1, ask)
        assert (await refused(g1, ask)).reason is Reason.TASK_STEPS
        assert counter_of(store)["usd"] == 1000


async def test_running_steps_are_known_to_a_store_that_was_lost(
    private: PrivateStore, tmp_path: Path
):
    open_bucket(private.client, ACME.bucket)
    async with gateway(private.url, tmp_path) as g0:
        ask = step(max_steps=2)
        await admitted(g0, ask)
        began = record_of(private.client)[b"a"]
        private.lose()
        private.start()
        open_bucket(private.client, ACME.bucket, 2)
        await until(lambda: record_of(private.client), 15, "registered again")
        assert record_of(private.client)[b"a"] == began
    async with gateway(private.url, tmp_path / "new", "g1") as g1:
        await admitted(g1, ask)
        assert (await refused(g1, ask)).reason is Reason.TASK_STEPS


async def test_store_away_a_gateway_admits_its_share_of_the_caps(store: Store, tmp_path: Path):
    async with gateway(redis_url(), tmp_path) as g0:  # no bucket is open: rebuilding
        g0.reserver.gateways = 2
        ask = step(max_steps=10)
        outcomes = [await g0.reserve(ACME, task=ask) for _ in range(10)]
        holds, refusals = split(outcomes)
        assert len(holds) == 4  # 0.8 of 10, divided by two
        assert {hold.mode for hold in holds} == {StoreMode.DEGRADED}
        assert {one.reason for one in refusals} == {Reason.NO_CAPACITY}
        assert Dimension.REQUESTS.value in str(holds[0].legs)

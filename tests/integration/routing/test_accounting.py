"""Reserver, accountant, journal and sweeper of whole gateways over a real store."""

import asyncio
from functools import partial
from pathlib import Path

import msgspec
import pytest

from routing.contracts.enums import Dimension, LimitScope, StoreMode, WindowKind
from routing.contracts.pricing import spend_nanousd
from routing.contracts.snapshot import Limit, Price
from routing.contracts.usage import (
    HoldInfo,
    ShapeRow,
    decode_shapes,
    decode_usage,
    encode_hold_info,
)
from routing.decision.types import Amounts, Hold, Reason, Refusal
from routing.gateway import leases
from routing.store import keys
from tests.accounting import (
    AMOUNTS,
    CONC,
    PRICE,
    SPEND_DAY,
    commit_all,
    counter,
    counters,
    entries,
    expire,
    gateway,
    hold_of,
    holds,
    open_bucket,
    redis_url,
    skeleton,
    tenant,
    until,
)

pytestmark = pytest.mark.anyio
RPM = (LimitScope.TENANT, Dimension.REQUESTS, WindowKind.MINUTE)
USD_CENT = 10_000_000


async def test_twenty_parallel_requests_cannot_pass_the_budget(store, tmp_path: Path):
    who = tenant(Limit(*SPEND_DAY, USD_CENT))
    open_bucket(store, who.bucket)
    async with gateway(redis_url(), tmp_path) as one:
        answers = await asyncio.gather(*(one.reserve(who) for _ in range(20)))
        admitted = holds(answers)
        assert len(admitted) == USD_CENT // AMOUNTS.spend_nanousd == 4
        refused = [a for a in answers if isinstance(a, Refusal)]
        assert {a.reason for a in refused} == {Reason.BUDGET_EXCEEDED}
        assert {a.limit for a in refused} == {"spend_per_day"}
        for hold in admitted:
            one.end(hold, AMOUNTS.spend_nanousd)
        await until(lambda: counter(store, who.bucket, ":w:", "usd") == 4 * AMOUNTS.spend_nanousd)
        assert counter(store, who.bucket, ":w:", "usd_h") == 0


async def test_two_gateways_share_one_concurrency_limit(store, tmp_path: Path):
    who = tenant(Limit(*CONC, 10))
    open_bucket(store, who.bucket)
    async with (
        gateway(redis_url(), tmp_path, "g0") as one,
        gateway(redis_url(), tmp_path, "g1") as two,
    ):
        asks = [g.reserve(who) for _ in range(30) for g in (one, two)]
        answers = await asyncio.gather(*asks)
        assert len(holds(answers)) == 10
        refused = next(a for a in answers if isinstance(a, Refusal))
        assert refused.reason is Reason.CONCURRENCY_LIMITED
        assert refused.retry_after_s == 1.0


async def test_next_request_finds_the_concurrency_of_an_ended_one_free(store, tmp_path: Path):
    who = tenant(Limit(*CONC, 1))
    open_bucket(store, who.bucket)
    async with gateway(redis_url(), tmp_path) as one:
        for _ in range(20):
            hold = await one.reserve(who)
            assert isinstance(hold, Hold)
            one.end(hold)


async def test_what_an_ended_request_did_not_use_is_free_for_the_next(store, tmp_path: Path):
    who = tenant(Limit(*SPEND_DAY, AMOUNTS.spend_nanousd + 20 * 10))
    open_bucket(store, who.bucket)
    async with gateway(redis_url(), tmp_path) as one:
        for _ in range(20):
            hold = await one.reserve(who)
            assert isinstance(hold, Hold)
            one.end(hold, 10)


async def test_nothing_is_settled_before_it_is_registered(store, tmp_path: Path):
    who = tenant()
    open_bucket(store, who.bucket)
    async with gateway(redis_url(), tmp_path) as one:
        hold = await one.reserve(who)
        bucket = one.accountant.book.buckets[who.bucket]
        one.accountant.leases.stop()
        bucket.must_register = True
        one.end(hold)
        one.accountant.flush()
        await one.store.call("EXISTS", keys.bucket_meta(who.bucket))
        assert entries(store, who.bucket) == []
        one.accountant.leases.start()
        await until(lambda: entries(store, who.bucket) == [(hold.request_id, "s", 1)])


async def test_nothing_is_settled_while_an_unanswered_command_may_still_run(store, tmp_path: Path):
    who = tenant()
    open_bucket(store, who.bucket)
    async with gateway(redis_url(), tmp_path) as one:
        hold = await one.reserve(who)
        one.accountant.book.unsure_until(one.store.clock.now_ms() + 400)
        one.end(hold)
        one.accountant.flush()
        await asyncio.sleep(0.2)
        assert entries(store, who.bucket) == []
        await until(lambda: entries(store, who.bucket) == [(hold.request_id, "s", 1)])


async def test_being_refused_by_one_limit_takes_nothing_of_the_others(store, tmp_path: Path):
    who = tenant(Limit(*RPM, 2), Limit(*CONC, 1))
    open_bucket(store, who.bucket)
    async with gateway(redis_url(), tmp_path) as one:
        first = await one.reserve(who)
        refused = await one.reserve(who)
        assert isinstance(refused, Refusal)
        assert refused.reason is Reason.CONCURRENCY_LIMITED
        one.end(first)
        third = await one.reserve(who)
        assert isinstance(third, Hold)
        assert third.remaining[(LimitScope.TENANT, Dimension.REQUESTS, "m")] == 0
        one.end(third)


async def test_lowering_and_raising_a_limit_keeps_what_was_used(store, tmp_path: Path):
    tokens = (LimitScope.TENANT, Dimension.OUTPUT_TOKENS, WindowKind.MONTH)
    open_bucket(store, tenant().bucket)
    ask = Amounts(0, 1, 0, 0)
    async with gateway(redis_url(), tmp_path) as one:
        hold = await one.reserve(tenant(Limit(*tokens, 1000)), Amounts(0, 800, 0, 0))
        assert hold.remaining[(LimitScope.TENANT, Dimension.OUTPUT_TOKENS, "mo")] == 200
        lowered = await one.reserve(tenant(Limit(*tokens, 500)), ask)
        assert lowered.reason is Reason.RATE_LIMITED
        raised = await one.reserve(tenant(Limit(*tokens, 1500)), ask)
        assert raised.remaining[(LimitScope.TENANT, Dimension.OUTPUT_TOKENS, "mo")] == 699


async def test_end_is_acknowledged_only_when_the_ledger_has_the_row(store, tmp_path: Path):
    who = tenant()
    open_bucket(store, who.bucket)
    async with gateway(redis_url(), tmp_path) as one:
        hold = await one.reserve(who)
        one.end(hold)
        one.end(hold)
        await until(lambda: len(entries(store, who.bucket)) == 1)
        one.accountant.void(await one.reserve(who))
        await until(lambda: len(entries(store, who.bucket)) == 2)
        one.accountant.leases.poll_soon()
        await one.store.call("EXISTS", keys.bucket_meta(who.bucket))
        assert one.accountant.pending == 2, "later replies prove nothing while pos stands still"
        commit_all(store, who.bucket)
        await until(lambda: one.accountant.pending == 0)
        assert await one.accountant.drain(1) == 0
    assert not list((tmp_path / "g0").iterdir()), "nothing to recover"


async def test_row_carries_the_windows_it_was_counted_in(store, tmp_path: Path):
    who = tenant(Limit(*RPM, 100))
    open_bucket(store, who.bucket)
    async with gateway(redis_url(), tmp_path) as one:
        one.end(await one.reserve(who), 1234)
        await until(lambda: entries(store, who.bucket))
        _, fields = store.xrange(keys.bucket_usage(who.bucket))[0]
        event = decode_usage(fields[b"e"])
        assert event.spend_nanousd == 1234
        suffixes = [leg[1] for leg in event.legs]
        assert [s.split(":")[0] for s in suffixes] == ["w", "g", "w"]
        assert store.exists(f"{keys.bucket_tag(who.bucket)}:1:{suffixes[0]}")


async def test_killed_gateway_settles_exactly_what_its_journal_says(store, tmp_path: Path):
    who = tenant(Limit(*CONC, 5))
    open_bucket(store, who.bucket)
    async with gateway(redis_url(), tmp_path) as one:
        ended, running = await one.reserve(who), await one.reserve(who)
        await one.store.close()
        one.end(ended, 777)
        await one.crash()
    assert counter(store, who.bucket, ":g:", "conc_h") == 2
    async with gateway(redis_url(), tmp_path) as again:
        await until(lambda: len(entries(store, who.bucket)) == 2)
        kinds = {i: t for i, t, _ in entries(store, who.bucket)}
        assert kinds == {ended.request_id: "s", running.request_id: "r"}
        events = [fields[b"e"] for _, fields in store.xrange(keys.bucket_usage(who.bucket))]
        (lost,) = [e for e in map(decode_usage, events) if e.request_id == running.request_id]
        assert lost.input_tokens == AMOUNTS.input_tokens
        assert lost.spend_nanousd >= AMOUNTS.input_tokens * 1000
        assert counter(store, who.bucket, ":w:", "usd") == 777 + lost.spend_nanousd
        assert counter(store, who.bucket, ":g:", "conc_h") == 0
        commit_all(store, who.bucket)
        await until(lambda: again.accountant.pending == 0)


async def test_living_gateway_adopts_the_journal_of_a_dead_sibling(store, tmp_path: Path):
    who = tenant()
    open_bucket(store, who.bucket)
    async with gateway(redis_url(), tmp_path, "dead") as dead:
        hold = await dead.reserve(who)
        await dead.crash()
    async with gateway(redis_url(), tmp_path, "g1") as one:
        await until(lambda: entries(store, who.bucket) == [(hold.request_id, "r", 1)])
        assert not list((tmp_path / "dead").iterdir())
        assert one.accountant.pending == 1


async def test_sweep_ends_the_holds_of_a_gateway_that_is_gone(store, tmp_path: Path):
    who = tenant(Limit(*CONC, 1))
    open_bucket(store, who.bucket)
    async with gateway(redis_url(), tmp_path / "a", "gone") as gone:
        hold = await gone.reserve(who)
        hold.out_so_far = 7
        gone.accountant.leases._visit(gone.accountant.book.buckets[who.bucket], 10.0**9)
        await until(lambda: hold_of(store, who.bucket, hold.request_id).out_so_far == 7)
        await gone.crash()
    async with gateway(redis_url(), tmp_path / "b", "g1") as one:
        one.sweeper.sweep()
        await one.store.call("EXISTS", keys.bucket_meta(who.bucket))
        assert not entries(store, who.bucket), "its lease still runs"
        expire(store, who.bucket, hold.request_id)
        one.sweeper.sweep()
        await until(lambda: entries(store, who.bucket) == [(hold.request_id, "w", 1)])
        event = decode_usage(store.xrange(keys.bucket_usage(who.bucket))[0][1][b"e"])
        assert event.input_tokens == AMOUNTS.input_tokens
        assert 7 < event.output_tokens <= AMOUNTS.output_tokens
        assert isinstance(await one.reserve(who), Hold)


async def test_a_sweeper_charges_the_price_of_the_model_in_use(store, tmp_path: Path, monkeypatch):
    """It is told at once; where that call is lost, with the next beat."""
    who = tenant()
    open_bucket(store, who.bucket)
    dear = Price(8, 5 * PRICE.input_nanousd, PRICE.cached_nanousd, PRICE.output_nanousd)
    async with gateway(redis_url(), tmp_path / "a", "gone") as gone:
        holds = [await gone.reserve(who) for _ in range(2)]
        bucket = gone.accountant.book.buckets[who.bucket]
        for hold in holds:
            plain = skeleton(hold.request_id)
            event = msgspec.structs.replace(plain, model="beta-70b", held_nanousd=10**9)
            with monkeypatch.context() as lost:
                if hold is holds[1]:
                    lost.setattr(gone.accountant.leases, "_send", lambda *_, **__: None)
                gone.accountant.serves(hold, encode_hold_info(HoldInfo(event, dear)))
        gone.accountant.leases._visit(bucket, 10.0**9)
        await until(lambda: all(item.is_told for item in bucket.items.values()))
        await gone.crash()
    async with gateway(redis_url(), tmp_path / "b", "g1") as one:
        for hold in holds:
            expire(store, who.bucket, hold.request_id)
        one.sweeper.sweep()
        await until(lambda: len(entries(store, who.bucket)) == 2)
        for _, fields in store.xrange(keys.bucket_usage(who.bucket)):
            event = decode_usage(fields[b"e"])
            assert event.model == "beta-70b"
            tokens = (event.input_tokens, 0, event.output_tokens)
            assert event.spend_nanousd == spend_nanousd(dear, *tokens)


async def test_swept_request_that_still_runs_settles_late_without_a_second_charge(store, tmp_path):
    who = tenant()
    open_bucket(store, who.bucket)
    async with gateway(redis_url(), tmp_path) as one:
        hold = await one.reserve(who)
        expire(store, who.bucket, hold.request_id)
        one.sweeper.sweep()
        await until(lambda: [t for _, t, _ in entries(store, who.bucket)] == ["w"])
        swept = counter(store, who.bucket, ":w:", "usd")
        one.end(hold, 5)
        await until(lambda: [t for _, t, _ in entries(store, who.bucket)] == ["w", "s"])
        assert counter(store, who.bucket, ":w:", "usd") == swept
        assert [k for _, _, k in entries(store, who.bucket)] == [1, 0]


async def test_void_leaves_a_zero_row_and_waits_for_its_record(store, tmp_path: Path):
    who = tenant(Limit(*RPM, 10))
    open_bucket(store, who.bucket)
    async with gateway(redis_url(), tmp_path) as one:
        hold = await one.reserve(who)
        told = asyncio.Event()
        one.accountant.void(hold, code="no_capacity", http_status=503, done=told.set)
        assert not told.is_set()
        await asyncio.wait_for(told.wait(), 2)
        await until(lambda: [t for _, t, _ in entries(store, who.bucket)] == ["v"])
        event = decode_usage(store.xrange(keys.bucket_usage(who.bucket))[0][1][b"e"])
        assert (event.spend_nanousd, event.error_code, event.http_status) == (0, "no_capacity", 503)
        again = await one.reserve(who)
        assert again.remaining[(LimitScope.TENANT, Dimension.REQUESTS, "m")] == 9


async def test_heartbeats_keep_holds_alive_and_tell_progress(store, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(leases, "BEAT_S", 0.1)
    who = tenant()
    open_bucket(store, who.bucket)
    async with gateway(redis_url(), tmp_path) as one:
        hold = await one.reserve(who)
        seen = partial(hold_of, store, who.bucket, hold.request_id)
        first = seen().expiry_ms
        hold.out_so_far = 42
        await until(lambda: seen().out_so_far == 42)
        await until(lambda: seen().expiry_ms > first)


async def test_flushed_store_is_not_charged_twice_nor_forgotten(store, tmp_path: Path):
    """Everything in the store is gone; what runs registers, what ended is settled again."""
    who = tenant(Limit(*SPEND_DAY, 100 * AMOUNTS.spend_nanousd), Limit(*CONC, 10))
    open_bucket(store, who.bucket)
    async with gateway(redis_url(), tmp_path) as one:
        ended, running = await one.reserve(who), await one.reserve(who)
        one.end(ended, 500)
        await until(lambda: len(entries(store, who.bucket)) == 1)
        store.flushall()
        during = await one.reserve(who)
        assert during.mode is StoreMode.DEGRADED
        assert counters(store, who.bucket, "begin", epoch=2) == b"OK"
        await until(lambda: store.zcard(keys.bucket_leases(who.bucket)) == 3, what="registered")
        assert counters(store, who.bucket, "fill", [], epoch=2) == b"OK"
        assert counters(store, who.bucket, "open", 0, epoch=2) == b"OK"
        await until(lambda: entries(store, who.bucket) == [(ended.request_id, "s", 2)])
        assert counter(store, who.bucket, ":w:", "usd") == 500
        assert counter(store, who.bucket, ":g:", "conc_h") == 2
        for hold in (running, during):
            one.end(hold, 100)
        await until(lambda: counter(store, who.bucket, ":w:", "usd") == 700)
        assert counter(store, who.bucket, ":g:", "conc_h") == 0
        after = await one.reserve(who)
        assert after.mode is StoreMode.SHARED


async def test_full_stream_counts_as_store_away(store, tmp_path: Path, monkeypatch):
    monkeypatch.setattr("routing.store.calls.STREAM_MAX", 2)
    who = tenant()
    open_bucket(store, who.bucket)
    async with gateway(redis_url(), tmp_path) as one:
        first, second = await one.reserve(who), await one.reserve(who)
        one.end(first)
        one.end(second)
        await until(lambda: len(entries(store, who.bucket)) == 2)
        degraded = await one.reserve(who)
        assert degraded.mode is StoreMode.DEGRADED
        commit_all(store, who.bucket)
        shared = await one.reserve(who)
        assert shared.mode is StoreMode.SHARED


async def test_shapes_reach_their_stream_in_batches(store, tmp_path: Path):
    async with gateway(redis_url(), tmp_path) as one:
        for number in range(450):
            one.accountant.shape(ShapeRow(str(number), "acme", "m", "standard", 1, "ok", 2))
        await until(lambda: store.xlen(keys.SHAPES) == 3)
        rows = [r for _, f in store.xrange(keys.SHAPES) for r in decode_shapes(f[b"s"])]
        assert [row.request_id for row in rows] == [str(n) for n in range(450)]

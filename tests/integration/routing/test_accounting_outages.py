"""Whole gateways while their store is killed, paused or full: shares, refusals, what is settled."""

import asyncio
from pathlib import Path

import pytest

from routing.contracts.enums import StoreMode
from routing.contracts.snapshot import Limit, OutagePolicy
from routing.decision.types import Hold, Reason, Refusal
from routing.store import keys
from tests.accounting import (
    AMOUNTS,
    CONC,
    SPEND_DAY,
    counter,
    counters,
    entries,
    gateway,
    hold_of,
    holds,
    new_id,
    open_bucket,
    tenant,
    until,
)

pytestmark = pytest.mark.anyio


async def test_restarted_store_has_holds_and_entries_but_no_counters(private, tmp_path: Path):
    """They are rebuilt for a new epoch, so they need not be in its file; what is owed must be."""
    who, store = tenant(), private.client
    open_bucket(store, who.bucket)
    async with gateway(private.url, tmp_path) as one:
        ended, live = await one.reserve(who), await one.reserve(who)
        one.end(ended, 500)
        await until(lambda: len(entries(store, who.bucket)) == 1)
        assert counter(store, who.bucket, ":w:", "usd") == 500
        private.kill()
        private.start()
        assert list(store.scan_iter(f"{keys.bucket_tag(who.bucket)}:1:*")) == []
        assert hold_of(store, who.bucket, live.request_id).epoch == 1
        leased = store.zrange(keys.bucket_leases(who.bucket), 0, -1)
        assert [member.decode() for member in leased] == [live.request_id]
        assert entries(store, who.bucket) == [(ended.request_id, "s", 1)]


async def test_killed_store_is_served_from_a_share_then_settled_once(private, tmp_path: Path):
    who = tenant(Limit(*SPEND_DAY, 20 * AMOUNTS.spend_nanousd))
    open_bucket(private.client, who.bucket)
    async with gateway(private.url, tmp_path) as one:
        one.reserver.gateways = 2
        first = await one.reserve(who)
        private.lose()
        await until(lambda: not one.store.is_ready)
        one.end(first, 10)
        answers = [await one.reserve(who) for _ in range(20)]
        share = int(0.8 * 19 * AMOUNTS.spend_nanousd) // 2 // AMOUNTS.spend_nanousd
        assert len(holds(answers)) == share == 7
        assert {a.reason for a in answers if isinstance(a, Refusal)} == {Reason.NO_CAPACITY}
        assert one.reserver.mode(OutagePolicy()) is StoreMode.DEGRADED
        private.start()
        assert counters(private.client, who.bucket, "begin", epoch=2) == b"OK"
        leased = keys.bucket_leases(who.bucket)
        await until(lambda: private.client.zcard(leased) == 8, what="registered")
        assert counters(private.client, who.bucket, "open", 0, epoch=2) == b"OK"
        for hold in holds(answers):
            one.end(hold, 10)
        await until(lambda: len(entries(private.client, who.bucket)) == 8)
        assert counter(private.client, who.bucket, ":w:", "usd") == 80
        assert counter(private.client, who.bucket, ":w:", "usd_h") == 0
        assert isinstance(await one.reserve(who), Hold)
        assert one.reserver.mode(OutagePolicy()) is StoreMode.SHARED


async def test_closed_policy_refuses_within_a_second(private, tmp_path: Path):
    who = tenant()
    open_bucket(private.client, who.bucket)
    async with gateway(private.url, tmp_path) as one:
        one.outage = OutagePolicy(store_away="closed")
        assert isinstance(await one.reserve(who), Hold)
        private.client.execute_command("CLIENT", "PAUSE", 3000, "ALL")
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        refused = await one.reserve(who)
        assert refused.reason is Reason.NO_CAPACITY
        assert loop.time() - start_s < 1.0


async def test_degraded_admission_ends_after_its_time(private, tmp_path: Path):
    who = tenant()
    open_bucket(private.client, who.bucket)
    async with gateway(private.url, tmp_path) as one:
        one.outage = OutagePolicy(max_s=0.2)
        private.kill()
        await until(lambda: not one.store.is_ready)
        assert isinstance(await one.reserve(who), Hold)
        await asyncio.sleep(0.3)
        refused = await one.reserve(who)
        assert refused.reason is Reason.NO_CAPACITY


async def test_unanswered_reserve_that_ran_is_voided_not_leaked(private, tmp_path: Path):
    who = tenant(Limit(*CONC, 3))
    open_bucket(private.client, who.bucket)
    async with gateway(private.url, tmp_path, reply_timeout_s=0.2) as one:
        one.outage = OutagePolicy(store_away="closed")
        await one.reserve(who)
        # A paused server reads nothing yet keeps what is in its socket: the command runs later.
        private.client.execute_command("CLIENT", "PAUSE", 500, "ALL")
        request_id = new_id()
        refused = await one.reserve(who, request_id=request_id)
        assert refused.reason is Reason.NO_CAPACITY
        await until(
            lambda: (request_id, "v", 1) in entries(private.client, who.bucket), what="void row"
        )
        assert counter(private.client, who.bucket, ":g:", "conc_h") == 1
        assert private.client.zcard(keys.bucket_leases(who.bucket)) == 1


async def test_store_that_refuses_writes_counts_as_away_until_one_succeeds(private, tmp_path: Path):
    who = tenant()
    open_bucket(private.client, who.bucket)
    async with gateway(private.url, tmp_path) as one:
        first = await one.reserve(who)
        private.client.config_set("maxmemory", 1)
        degraded = await one.reserve(who)
        assert degraded.mode is StoreMode.DEGRADED
        one.end(first)
        bucket = one.accountant.book.buckets[who.bucket]
        shares = bucket.shares
        # Questions that write nothing are answered meanwhile: they grant no second share.
        await until(lambda: one.reserver.away_s(bucket) > 1.5, what="outage time that goes on")
        assert bucket.shares is shares
        one.outage = OutagePolicy(store_away="closed")
        known = one.accountant.book.size
        refused = await one.reserve(who)
        assert refused.reason is Reason.NO_CAPACITY
        assert one.accountant.book.size == known, "a refusal leaves nothing behind"
        private.client.config_set("maxmemory", 0)
        await until(lambda: len(entries(private.client, who.bucket)) == 1, what="its row")
        assert (await one.reserve(who)).mode is StoreMode.SHARED


async def test_stuck_journal_admits_nobody_from_a_share(private, tmp_path: Path, monkeypatch):
    who = tenant()
    open_bucket(private.client, who.bucket)
    async with gateway(private.url, tmp_path) as one:
        await one.reserve(who)
        private.kill()
        await until(lambda: not one.store.is_ready)
        assert isinstance(await one.reserve(who), Hold)
        monkeypatch.setattr(type(one.journal), "is_stuck", True)
        known = one.accountant.book.size
        refused = await one.reserve(who)
        assert refused.reason is Reason.NO_CAPACITY
        assert one.accountant.book.size == known

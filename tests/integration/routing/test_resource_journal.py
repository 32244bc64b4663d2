"""A use of a resource in its journal: it lives through a restart and keeps no old files."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from routing.contracts.enums import WorkClass
from routing.contracts.usage import HoldInfo, encode_hold_info
from routing.decision.types import Amounts, Hold
from routing.gateway import journal, leases
from routing.gateway.ask import Ask
from routing.gateway.buckets import Stage
from routing.store import keys
from routing.store.uses import USE
from tests.accounting import (
    PRICE,
    Gateway,
    commit_all,
    entries,
    gateway,
    key,
    new_id,
    open_bucket,
    redis_url,
    set_expiry,
    skeleton,
    tenant,
    until,
)

pytestmark = pytest.mark.anyio
SPEND = 5_000


async def reserve_use(one: Gateway, who, ttl_ms: int = 60_000) -> Hold:
    request_id, amounts = new_id(), Amounts(0, 0, SPEND, 0)
    event = msgspec.structs.replace(
        skeleton(request_id, who.id, amounts), model="resource:x", units=1
    )
    done = asyncio.get_running_loop().create_future()
    info = encode_hold_info(HoldInfo(event, PRICE, once=USE, ttl_ms=ttl_ms))
    ask = Ask(
        request_id, who, key(who.id), "resource:x", WorkClass.STANDARD, amounts, PRICE, one.outage,
        info, once=USE, ttl_ms=ttl_ms,
    )  # fmt: skip
    one.reserver.reserve(ask, done.set_result)
    hold = await asyncio.wait_for(done, 5)
    assert isinstance(hold, Hold)
    return hold


async def test_a_long_use_keeps_no_old_journal_files(store, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(journal, "FILE_MAX_S", 0.05)
    monkeypatch.setattr(leases, "BEAT_S", 0.05)
    who = tenant()
    open_bucket(store, who.bucket)
    async with gateway(redis_url(), tmp_path) as one:
        use = await reserve_use(one, who)
        first = set((tmp_path / "g0").glob("*.hrj"))
        for _ in range(12):
            call = await one.reserve(who)
            assert isinstance(call, Hold)
            one.end(call)
            item = one.accountant.book.buckets[who.bucket].items[call.request_id]
            await until(lambda item=item: item.stage is Stage.TOLD, what="settled")
            commit_all(store, who.bucket)
            one.accountant.leases.poll_soon()
            await until(lambda: one.accountant.book.size == 1, what="only the use is left")
        await until(lambda: not any(path.exists() for path in first), what="old files go")
        await until(
            lambda: len(list((tmp_path / "g0").glob("*.hrj"))) <= 4, what="few files are left"
        )
    async with gateway(redis_url(), tmp_path) as again:
        item = again.accountant.book.buckets[who.bucket].items[use.request_id]
        assert (item.stage, item.hold.once, again.accountant.live) == (Stage.LIVE, USE, 0)
        assert store.zscore(keys.bucket_leases(who.bucket), use.request_id) == use.expires_at_ms
        assert use.request_id not in {entry[0] for entry in entries(store, who.bucket)}


async def test_beats_do_not_shorten_or_extend_a_use(store, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(leases, "BEAT_S", 0.05)
    who = tenant()
    open_bucket(store, who.bucket)
    async with gateway(redis_url(), tmp_path) as one:
        use = await reserve_use(one, who, ttl_ms=40_000)
        call = await one.reserve(who)
        assert isinstance(call, Hold)
        lease = keys.bucket_leases(who.bucket)
        assert store.zscore(lease, use.request_id) == use.expires_at_ms
        before = store.zscore(lease, call.request_id)
        await until(lambda: store.zscore(lease, call.request_id) > before, what="beats")
        assert store.zscore(lease, use.request_id) == use.expires_at_ms
        renewed_ms = use.expires_at_ms + 60_000  # as another gateway's renew leaves it
        set_expiry(store, who.bucket, use.request_id, renewed_ms)
        before = store.zscore(lease, call.request_id)
        await until(lambda: store.zscore(lease, call.request_id) > before, what="beats")
        assert store.zscore(lease, use.request_id) == renewed_ms

"""A reservation that has ended is not registered behind its own settle: nothing would end it."""

from pathlib import Path

import pytest

from routing.gateway.buckets import Stage
from routing.store import keys
from tests.accounting import PrivateStore, entries, gateway, open_bucket, tenant, until

pytestmark = pytest.mark.anyio

B = tenant().bucket


async def test_settle_under_way_is_not_followed_by_a_registration(
    private: PrivateStore, tmp_path: Path
) -> None:
    store = private.client
    open_bucket(store, B)
    async with gateway(private.url, tmp_path / "g") as one:
        one.end(await one.reserve(tenant()))
        await until(lambda: len(entries(store, B)) == 1, what="an open bucket")
        store.config_set("maxmemory", "1")
        shared = [await one.reserve(tenant()) for _ in range(2)]
        store.config_set("maxmemory", "0")
        ended, live = shared
        book = one.accountant.book
        await until(lambda: one.store.clock.now_ms() > book.quiet_until_ms, what="quiet")
        one.end(ended)
        one.accountant.flush()
        bucket = book.buckets[B]
        assert bucket.items[ended.request_id].stage is Stage.SENT
        bucket.must_register = True  # as a heartbeat's answer for `live` makes it
        one.accountant.leases.register_soon(bucket)
        await until(lambda: store.exists(keys.hold(B, live.request_id)), what="hold")
        await until(lambda: len(entries(store, B)) == 2, what="settled")
        assert not store.exists(keys.hold(B, ended.request_id))
        one.end(live)
        await until(lambda: not store.zcard(keys.bucket_leases(B)), what="nothing held")

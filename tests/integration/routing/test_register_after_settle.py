"""A reservation that has ended is not registered behind its own settle: nothing would end it."""

from pathlib import Path

import pytest

from routing.gateway.buckets import Stage
from routing.store import keys
from tests.accounting import PrivateStore, entries, gateway, open_bucket, tenant, until

pytestmark = pytest.mark.anyio

B = tenant().bucket


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}


async def test_settle_under_way_is_not_followed_by_a_registration(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store = PrivateStore(tmp_path / "store").start()
    try:
        open_bucket(store.client, B)
        async with gateway(store.url, tmp_path / "g") as one:
            one.end(await one.reserve(tenant()))
            await until(lambda: len(entries(store.client, B)) == 1, what="an open bucket")
            store.client.config_set("maxmemory", "1")
            shared = [await one.reserve(tenant()) for _ in range(2)]
            store.client.config_set("maxmemory", "0")
            ended, live = shared
            book = one.accountant.book
            await until(lambda: one.store.clock.now_ms() > book.quiet_until_ms, what="quiet")
            one.end(ended)
            one.accountant.flush()
            bucket = book.buckets[B]
            assert bucket.items[ended.request_id].stage is Stage.SENT
            bucket.must_register = True  # as a heartbeat's answer for `live` makes it
            one.accountant.leases.register_soon(bucket)
            await until(lambda: store.client.exists(keys.hold(B, live.request_id)), what="hold")
            await until(lambda: len(entries(store.client, B)) == 2, what="settled")
            assert not store.client.exists(keys.hold(B, ended.request_id))
            one.end(live)
            await until(lambda: not store.client.zcard(keys.bucket_leases(B)), what="nothing held")
    finally:
        store.stop()

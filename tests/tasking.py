"""A live task as gateways leave it in the store: a step that has ended and one that runs."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import redis

from routing.contracts.enums import StoreMode
from routing.contracts.snapshot import TaskCaps, TenantEntry, bucket_of
from routing.decision.types import Hold
from routing.decision.workflow import TaskAsk
from tests.accounting import gateway, open_bucket, until
from tests.stack import held

CAPS = TaskCaps(max_steps=4, max_spend_nanousd=20_000_000, max_wall_s=1800, max_repeats=3)
SPENT_NANOUSD = 1_500_000


def make_live(url: str, tenant_id: str, task: str, state: Path) -> None:
    """Admit both steps by a gateway's own parts, at a bucket of the store that is opened for it."""
    bucket = bucket_of(tenant_id)
    who = TenantEntry(tenant_id, tenant_id, bucket, "UTC", "salt", ("*",))
    store = redis.Redis.from_url(url)
    open_bucket(store, bucket)

    async def admit() -> None:
        async with gateway(url, state) as parts:
            ask = TaskAsk(task, "triage", "", "1/3", CAPS)
            first = await parts.reserve(who, task=ask)
            assert isinstance(first, Hold), first
            assert first.mode is StoreMode.SHARED
            parts.end(first, nanousd=SPENT_NANOUSD)
            await until(lambda: held(store, bucket) == 0, what="settled")
            assert isinstance(await parts.reserve(who, task=ask), Hold)

    with ThreadPoolExecutor(1) as pool:  # a browser's driver may have a loop in this thread
        pool.submit(lambda: asyncio.run(admit())).result()
    store.close()

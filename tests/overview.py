"""Traffic twice over: ledger rows, and the frames that the same requests make at a gateway."""

import asyncio
import random
import re
import time
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.utils import timezone
from redis.asyncio import Redis

from routing.contracts.slices import SliceDelta
from telemetry.collector.fold import fold
from telemetry.stats import sketch
from tenants.models import Usage
from tests import factories
from tests.collecting import FakeGateway
from tests.factories import World


def rows(sql: str, *params: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchall()


def folded(url: str) -> None:
    async def once() -> None:
        async with Redis.from_url(url) as client:
            await fold(client, time.time_ns() // 1_000_000)

    asyncio.run(once())


def make_traffic(store: Any, url: str) -> World:
    """Two tenants, their rows of the last ten minutes, and the same as the collector folds it."""
    made = World()
    for slug in ("acme", "globex"):
        factories.make_tenant(made, slug, slug)
    factories.make_people(made)
    factories.make_fleet(made, {"p-a": 2})
    draw = random.Random(7)
    gateway = FakeGateway(store)
    for slug in ("acme", "globex"):
        for number in range(40):
            # clear of the threshold: sketches are within 1 %
            ttft_s = draw.choice([0.1, 0.2, 0.3, 0.8, 1.5])
            status = draw.choices(["ok", "failed", "cancelled"], [8, 1, 1])[0]
            start = timezone.now() - timedelta(minutes=1 + number % 10)
            work_class = draw.choice(["standard", "interactive"])
            times = {
                "started_at": start,
                "first_token_at": start + timedelta(seconds=ttft_s) if status == "ok" else None,
                "ended_at": start + timedelta(seconds=ttft_s + 1),
            }
            (request_id,) = factories.make_usage(
                made, slug, 1, status=status, work_class=work_class, pool="p-a", **times
            )
            gateway.report(
                frame_of(Usage.objects.get(request_id=request_id), draw), at_ms=ms(start)
            )
    folded(url)
    return made


def words_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def ms(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def frame_of(row: Usage, draw: random.Random) -> SliceDelta:
    ttft: dict[int, int] = {}
    if row.first_token_at is not None:
        seconds = (row.first_token_at - row.started_at).total_seconds()
        sketch.add(ttft, [(sketch.index_of(seconds), 1)])
    return SliceDelta(
        str(row.tenant_id), row.model, row.pool, row.work_class, requests=1,
        failed=int(row.status == "failed"), cancelled=int(row.status == "cancelled"),
        refused={"no_capacity": 1} if draw.random() < 0.1 else {"rate_limited": 1},
        spend_nanousd=row.spend_nanousd, ttft_s=list(ttft.items()),
    )  # fmt: skip

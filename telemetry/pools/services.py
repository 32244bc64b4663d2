"""Sample every pool's state once a minute, and drop the old."""

from datetime import datetime, timedelta

from django.utils import timezone

from capacity.fleet.selectors import PoolRow, fleet_page
from console.web.keyset import MAX_LIMIT
from console.web.live_state import STALE_AFTER_S
from routing.contracts.enums import ReplicaHealth
from telemetry.models import PoolSample

KEPT = timedelta(days=40)  # a month's report
DROPPED_MAX = 20_000  # rows a run deletes
PAGES_MAX = 10  # of pools: 2,000


def sample_pools(*, now: datetime | None = None) -> int:
    """Write this minute's sample of every pool; repeating it changes nothing. How many pools.

    A replica counts while its report is fresh and healthy; without one, the pool is unknown.
    """
    minute_at = (now or timezone.now()).replace(second=0, microsecond=0)
    rows: list[PoolSample] = []
    after: str | None = None
    for _ in range(PAGES_MAX):
        page = fleet_page(after=after, limit=MAX_LIMIT)
        rows += [_sample(minute_at, pool) for pool in page.rows]
        after = page.next_after
        if after is None:
            break
    PoolSample.objects.bulk_create(rows, ignore_conflicts=True)
    return len(rows)


def drop_old_samples(*, now: datetime | None = None) -> int:
    """Delete samples older than `KEPT`, at most `DROPPED_MAX`; how many."""
    oldest = PoolSample.objects.filter(minute_at__lt=(now or timezone.now()) - KEPT)
    chosen = oldest.order_by("minute_at").values("pk")[:DROPPED_MAX]
    return PoolSample.objects.filter(pk__in=chosen).delete()[0]


def _sample(minute_at: datetime, pool: PoolRow) -> PoolSample:
    fresh = [
        row
        for row in pool.replicas
        if row.health is ReplicaHealth.OK
        and row.scrape_age_s is not None
        and row.scrape_age_s <= STALE_AFTER_S
    ]
    kv = [row.kv_usage_ratio for row in fresh if row.kv_usage_ratio is not None]
    running = [row.running for row in fresh if row.running is not None]
    waiting = [row.waiting for row in fresh if row.waiting is not None]
    return PoolSample(
        minute_at=minute_at,
        pool=pool.name,
        replicas=len(pool.replicas),
        fresh_replicas=len(fresh),
        kv_max_ratio=max(kv) if kv else None,
        kv_mean_ratio=sum(kv) / len(kv) if kv else None,
        running=sum(running) if running else None,
        waiting=sum(waiting) if waiting else None,
    )

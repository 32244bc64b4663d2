"""What pools looked like over a period, from their samples."""

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Avg, Count, Max, Q
from django.db.models.functions import TruncHour

from telemetry.models import PoolSample

POOLS_MAX = 200


@dataclass(frozen=True, slots=True)
class PoolPeriod:
    """A pool over a period. Every figure is over the minutes that were known; None without any."""

    pool: str
    minutes: int
    known_minutes: int
    kv_max_ratio: float | None
    kv_mean_ratio: float | None
    running_max: int | None
    waiting_max: int | None


@dataclass(frozen=True, slots=True)
class PoolHour:
    """The worst of an hour."""

    pool: str
    hour_at: datetime
    kv_max_ratio: float | None
    waiting_max: int | None


def pool_periods(*, since: datetime, until: datetime) -> tuple[PoolPeriod, ...]:
    """Every pool that was sampled in `[since, until)`, fullest first, at most `POOLS_MAX`."""
    rows = (
        PoolSample.objects.filter(minute_at__gte=since, minute_at__lt=until)
        .order_by()
        .values("pool")
        .annotate(
            minutes=Count("pk"),
            known_minutes=Count("pk", filter=Q(kv_max_ratio__isnull=False)),
            kv_max=Max("kv_max_ratio"),
            kv_mean=Avg("kv_mean_ratio"),
            running_most=Max("running"),
            waiting_most=Max("waiting"),
        )
        .order_by("pool")[:POOLS_MAX]
    )
    found = [
        PoolPeriod(
            row["pool"],
            row["minutes"],
            row["known_minutes"],
            row["kv_max"],
            row["kv_mean"],
            row["running_most"],
            row["waiting_most"],
        )
        for row in rows
    ]
    return tuple(sorted(found, key=lambda one: (-(one.kv_max_ratio or -1.0), one.pool)))


def pool_hours(*, since: datetime, until: datetime, pools: tuple[str, ...]) -> list[PoolHour]:
    """The worst of each hour of the named pools, by pool and time."""
    rows = (
        PoolSample.objects.filter(minute_at__gte=since, minute_at__lt=until, pool__in=pools)
        .order_by()
        .annotate(hour=TruncHour("minute_at"))
        .values("pool", "hour")
        .annotate(kv_max=Max("kv_max_ratio"), waiting_most=Max("waiting"))
        .order_by("pool", "hour")
    )
    return [PoolHour(row["pool"], row["hour"], row["kv_max"], row["waiting_most"]) for row in rows]

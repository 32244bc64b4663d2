"""How each work class fared over a period, merged from the stored slice minutes."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from telemetry.models import SliceMinute
from telemetry.stats import sketch
from telemetry.stats.figures import P99_SAMPLES_MIN
from telemetry.stats.windows import SliceSum

ROWS_MAX = 100_000  # slice minutes merged in one hour; more is said, not shown in part


@dataclass(frozen=True, slots=True)
class ClassPeriod:
    """A work class over a period. Percentiles in seconds, None without samples."""

    work_class: str
    requests: int
    failed: int
    refused: int
    samples: int
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    ttft_p99_s: float | None


class TooManyError(Exception):
    """More slice minutes in one hour than are merged."""


def class_periods(*, since: datetime, until: datetime) -> tuple[ClassPeriod, ...]:
    """Each class that had traffic in `[since, until)`, by name. Raises `TooManyError`."""
    sums: dict[str, SliceSum] = {}
    at = since
    while at < until:  # hour by hour: bounds what is in memory at once
        end = min(at + timedelta(hours=1), until)
        _merge(sums, at, end)
        at = end
    return tuple(_period(name, counted) for name, counted in sorted(sums.items()))


def _merge(sums: dict[str, SliceSum], since: datetime, until: datetime) -> None:
    rows = SliceMinute.objects.filter(minute_at__gte=since, minute_at__lt=until).values_list(
        "work_class", "requests", "failed", "refused", "ttft_sketch"
    )
    found = list(rows[: ROWS_MAX + 1])
    if len(found) > ROWS_MAX:
        raise TooManyError(f"more than {ROWS_MAX} slice minutes in the hour from {since}")
    for name, requests, failed, refused, packed in found:
        counted = SliceSum(
            requests=requests,
            failed=failed,
            refused=refused,
            ttft_s=sketch.unpack(bytes(packed)),
        )
        sums.setdefault(name, SliceSum()).merge(counted)


def _period(name: str, counted: SliceSum) -> ClassPeriod:
    p50_s, p95_s, p99_s = sketch.quantiles(counted.ttft_s, (0.5, 0.95, 0.99))
    samples = sketch.count_of(counted.ttft_s)
    return ClassPeriod(
        work_class=name,
        requests=counted.requests,
        failed=counted.failed,
        refused=sum(counted.refused.values()),
        samples=samples,
        ttft_p50_s=p50_s,
        ttft_p95_s=p95_s,
        ttft_p99_s=p99_s if samples >= P99_SAMPLES_MIN else None,
    )

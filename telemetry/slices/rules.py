"""Points of a series from sums of slices: every figure with its step, unknown where nothing was."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from telemetry.stats import sketch
from telemetry.stats.figures import P99_SAMPLES_MIN
from telemetry.stats.windows import SliceSum

_QUANTILES = (0.5, 0.95, 0.99)
POINTS_MAX = 1500  # a chart is not wider; a longer span needs a larger step
MINUTE_S = 60


@dataclass(frozen=True, slots=True)
class Point:
    """One step that begins at `at_s` (Unix). Percentiles in seconds; None without samples."""

    at_s: int
    requests: int
    failed: int
    refused: int
    input_tokens: int
    output_tokens: int
    spend_nanousd: int
    ttft_count: int
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    ttft_p99_s: float | None

    @property
    def at(self) -> datetime:
        """When the step begins."""
        return datetime.fromtimestamp(self.at_s, UTC)

    @property
    def ttft_ms(self) -> tuple[float | None, float | None, float | None]:
        """p50, p95 and p99 in milliseconds."""
        values_s = (self.ttft_p50_s, self.ttft_p95_s, self.ttft_p99_s)
        p50, p95, p99 = (None if v is None else round(v * 1000, 1) for v in values_s)
        return p50, p95, p99


def points(
    sums: Iterable[tuple[int, SliceSum]], since_s: int, until_s: int, step_s: int
) -> list[Point]:
    """Points of the half-open span, oldest first, from `(Unix minute, sums)` in any order.

    A step without traffic is a point with zero counts and unknown percentiles.
    """
    merged: dict[int, SliceSum] = {at_s: SliceSum() for at_s in range(since_s, until_s, step_s)}
    for minute, counted in sums:
        at_s = since_s + (minute * MINUTE_S - since_s) // step_s * step_s
        if at_s in merged:
            merged[at_s].merge(counted)
    return [_point(at_s, counted) for at_s, counted in merged.items()]


def _point(at_s: int, counted: SliceSum) -> Point:
    p50_s, p95_s, p99_s = sketch.quantiles(counted.ttft_s, _QUANTILES)
    samples = sketch.count_of(counted.ttft_s)
    return Point(
        at_s=at_s,
        requests=counted.requests,
        failed=counted.failed,
        refused=sum(counted.refused.values()),
        input_tokens=counted.input_tokens,
        output_tokens=counted.output_tokens,
        spend_nanousd=counted.spend_nanousd,
        ttft_count=samples,
        ttft_p50_s=p50_s,
        ttft_p95_s=p95_s,
        ttft_p99_s=p99_s if samples >= P99_SAMPLES_MIN else None,
    )


def step_for(since_s: int, until_s: int, step_s: int | None) -> int | None:
    """The step in whole minutes: as asked, or the finest that fits; None if it cannot fit."""
    span_s = until_s - since_s
    if span_s <= 0:
        return None
    if step_s is None:
        minutes = -(-span_s // (POINTS_MAX * MINUTE_S))
        return minutes * MINUTE_S
    if step_s < MINUTE_S or step_s % MINUTE_S or span_s > step_s * POINTS_MAX:
        return None
    return step_s

"""Live figures from gateway reports: trailing sums by slice, by tenant and over all.

What each figure means is stated in `telemetry.live.rules`; this is the arithmetic.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from routing.contracts.live import LiveSlice
from routing.contracts.slices import SliceDelta
from telemetry.stats import sketch
from telemetry.stats.windows import SliceKey, SliceSum, key_of, place

WINDOW_S = 60  # counts and percentiles
SPEND_MINUTES = 15  # spend: the running minute and the fourteen before it
P99_SAMPLES_MIN = 30  # below, a p99 would be the maximum under another name
_QUANTILES = (0.5, 0.95, 0.99)

# A row of a view: tenant id, model, pool; empty where the view sums over it.
Group = tuple[str, str, str]
TOTAL_GROUP: Group = ("", "", "")


def group_id(group: Group) -> str:
    """Name of a row in addresses, the same everywhere and for ever: 16 hex digits."""
    return hashlib.blake2s("\0".join(group).encode(), digest_size=8).hexdigest()


@dataclass(slots=True)
class Trailing:
    """Sums over the last `WINDOW_S` seconds of reports, by whole second of the report."""

    sums: dict[SliceKey, SliceSum] = field(default_factory=dict)
    seconds: deque[tuple[int, list[tuple[SliceKey, SliceDelta]]]] = field(default_factory=deque)

    def add(self, second: int, deltas: Iterable[SliceDelta]) -> None:
        """Add one report. A late one leaves the window at its own time."""
        entries = []
        for delta in deltas:
            key = key_of(delta)
            key = place(key, is_known=key in self.sums, known_count=len(self.sums))
            self.sums.setdefault(key, SliceSum()).add(delta)
            entries.append((key, delta))
        position = len(self.seconds)
        while position and self.seconds[position - 1][0] > second:
            position -= 1
        self.seconds.insert(position, (second, entries))

    def expire(self, now_s: int) -> None:
        """Let go of reports made `WINDOW_S` or more before `now_s` (Unix seconds)."""
        while self.seconds and self.seconds[0][0] <= now_s - WINDOW_S:
            for key, delta in self.seconds.popleft()[1]:
                known = self.sums[key]
                known.subtract(delta)
                if known.is_empty:
                    del self.sums[key]


@dataclass(slots=True)
class Spend:
    """Nano-dollars by minute and slice, for the last `SPEND_MINUTES` minutes."""

    minutes: dict[int, dict[SliceKey, int]] = field(default_factory=dict)

    def add(self, minute: int, key: SliceKey, spend_nanousd: int) -> None:
        """Add a charge to a minute."""
        if spend_nanousd:
            charged = self.minutes.setdefault(minute, {})
            key = place(key, is_known=key in charged, known_count=len(charged))
            charged[key] = charged.get(key, 0) + spend_nanousd

    def expire(self, now_minute: int) -> None:
        """Let go of minutes before the window that ends with `now_minute`."""
        for minute in [m for m in self.minutes if m <= now_minute - SPEND_MINUTES]:
            del self.minutes[minute]

    def by_group(self, now_minute: int, view: str) -> dict[Group, list[int]]:
        """Each row's charges, oldest minute first."""
        rows: dict[Group, list[int]] = {}
        first = now_minute - SPEND_MINUTES + 1
        for minute, charged in self.minutes.items():
            if not first <= minute <= now_minute:
                continue
            for key, spend_nanousd in charged.items():
                row = rows.setdefault(group_of(key, view), [0] * SPEND_MINUTES)
                row[minute - first] += spend_nanousd
        return rows


BY_SLICE, BY_MODEL, BY_TENANT, OVER_ALL = "slice", "model", "tenant", "total"


def group_of(key: SliceKey, view: str) -> Group:
    """The row that a slice falls into in a view: in each, work classes add up."""
    if view == BY_SLICE:
        return (key.tenant_id, key.model, key.pool)
    if view == BY_MODEL:
        return (key.tenant_id, key.model, "")
    return (key.tenant_id, "", "") if view == BY_TENANT else TOTAL_GROUP


def rows_of(
    trailing: Trailing, spend: Spend, now_minute: int, view: str, slugs: Mapping[str, str]
) -> list[LiveSlice]:
    """Rows of a view in order of tenant, model, pool; `slugs` names tenants by id.

    A row is there while it has requests, refusals or spend in their windows. The view over all has
    one row always.
    """
    sums: dict[Group, SliceSum] = {}
    for key, counted in trailing.sums.items():
        sums.setdefault(group_of(key, view), SliceSum()).merge(counted)
    spent = spend.by_group(now_minute, view)
    groups = sums.keys() | spent.keys() | ({TOTAL_GROUP} if view == OVER_ALL else set())
    rows = [
        _row(
            group,
            sums.get(group) or SliceSum(),
            spent.get(group),
            slugs,
            has_minutes=view in (BY_TENANT, OVER_ALL),
        )
        for group in groups
    ]
    return sorted(rows, key=lambda row: (row.tenant, row.tenant_id, row.model, row.pool))


def _row(
    group: Group,
    counted: SliceSum,
    spent: list[int] | None,
    slugs: Mapping[str, str],
    *,
    has_minutes: bool,
) -> LiveSlice:
    p50_s, p95_s, p99_s = sketch.quantiles(counted.ttft_s, _QUANTILES)
    samples = sketch.count_of(counted.ttft_s)
    minutes = spent or [0] * SPEND_MINUTES
    return LiveSlice(
        id=group_id(group),
        tenant_id=group[0],
        tenant=slugs.get(group[0], group[0]),
        model=group[1],
        pool=group[2],
        requests=counted.requests,
        failed=counted.failed,
        refused=sum(counted.refused.values()),
        input_tokens=counted.input_tokens,
        output_tokens=counted.output_tokens,
        ttft_count=samples,
        ttft_p50_s=p50_s,
        ttft_p95_s=p95_s,
        ttft_p99_s=p99_s if samples >= P99_SAMPLES_MIN else None,
        spend_nanousd=sum(minutes),
        spend_minutes_nanousd=tuple(minutes) if has_minutes else (),
        refused_input_tokens=counted.refused_input_tokens,
    )

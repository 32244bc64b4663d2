"""Window edges, and the counter groups that a request touches.

A group is one counter key of the store: one scope, one subject, one window (or the gauges of now).
Minutes align to the store's clock, days, weeks (from Monday) and months to the tenant's zone, at
the calendar's edges or anchored some minutes after them.
"""

from calendar import monthrange
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from routing.contracts.enums import Dimension, LimitScope, WindowKind
from routing.contracts.resources import RESOURCE_PREFIX, is_resource
from routing.contracts.snapshot import KeyEntry, Limit, TenantEntry
from routing.decision.types import Amounts, Rate, Rates

UNLIMITED: Final = -1  # count, but refuse nothing
MINUTE_MS: Final = 60_000
DAY_MIN: Final = 1_440
EDGES_CACHED: Final = 4_096  # (window, zone, minute): every zone of a large book for a few minutes
_STEPS: Final = range(-1, 4)  # periods around the calendar's own that can hold an instant

Edges = tuple[int, int, int]

# Place of each dimension in the amounts of a reserve call (the script counts from 1).
AMOUNT_ORDER: Final = (
    Dimension.REQUESTS,
    Dimension.INPUT_TOKENS,
    Dimension.OUTPUT_TOKENS,
    Dimension.SPEND_NANOUSD,
    Dimension.CONCURRENCY,
    Dimension.KV_TOKENS,
)
_TRACKED: Final = AMOUNT_ORDER[:4]
_TOKENS: Final = (Dimension.INPUT_TOKENS, Dimension.OUTPUT_TOKENS)


@dataclass(frozen=True, slots=True)
class Group:
    """One counter key: `base` from `store.keys.counter_base`, dimensions with limits or -1."""

    scope: LimitScope
    window: WindowKind
    subject: str
    dims: tuple[tuple[Dimension, int], ...]
    anchor_min: int = 0  # `contracts.snapshot.Limit`

    @property
    def is_gauge(self) -> bool:
        """True for what is counted now, not over a window."""
        return self.window is WindowKind.NOW


def window_edges(kind: WindowKind, timezone: str, now_ms: int, anchor_min: int = 0) -> Edges:
    """`(start, end, next_end)` in Unix ms of the window that holds `now_ms` and of the next one.

    `anchor_min` as in `contracts.snapshot.Limit`; a month without the anchor's day begins its
    window on its last day. A local time that the clocks jump over is as long after the jump (a
    midnight there is the jump itself); one that happens twice is the first. Raises `ValueError` for
    a gauge and `ZoneInfoNotFoundError` (a `KeyError`) for an unknown zone.
    """
    if kind is WindowKind.MINUTE:
        start = now_ms - now_ms % MINUTE_MS
        return start, start + MINUTE_MS, start + 2 * MINUTE_MS
    return _local_edges(kind, timezone, now_ms // MINUTE_MS, anchor_min)


@lru_cache(maxsize=EDGES_CACHED)
def _local_edges(kind: WindowKind, timezone: str, minute: int, anchor_min: int) -> Edges:
    zone = ZoneInfo(timezone)
    today = datetime.fromtimestamp(minute * 60, zone).date()
    starts = [
        _instant_ms(_anchored(kind, _period(kind, today, step), anchor_min), zone)
        for step in _STEPS
    ]
    # By instant, not by date: an anchor later in the period, or a date that comes twice when the
    # clocks are set back, makes it a neighbour of the calendar's.
    place = max(i for i, start in enumerate(starts) if start <= minute * MINUTE_MS)
    return starts[place], starts[place + 1], starts[place + 2]


def _period(kind: WindowKind, today: date, step: int) -> date:
    """First day of the calendar's period of today, or of one `step` periods from it."""
    if kind is WindowKind.DAY:
        return today + timedelta(days=step)
    if kind is WindowKind.WEEK:
        return today + timedelta(weeks=step, days=-today.weekday())
    if kind is WindowKind.MONTH:
        month = today.year * 12 + today.month - 1 + step
        return date(month // 12, month % 12 + 1, 1)
    raise ValueError(f"{kind} has no window")


def _anchored(kind: WindowKind, first: date, anchor_min: int) -> datetime:
    days, minutes = divmod(anchor_min, DAY_MIN)
    if kind is WindowKind.MONTH:
        days = min(days, monthrange(first.year, first.month)[1] - 1)
    return datetime.combine(first, time.min) + timedelta(days=days, minutes=minutes)


def _instant_ms(local: datetime, zone: ZoneInfo) -> int:
    return int(local.replace(tzinfo=zone).timestamp()) * 1000


def groups_for(
    tenant: TenantEntry, key: KeyEntry, model: str, work_class: str
) -> tuple[Group, ...]:
    """Every counter that a request of this tenant, key, model and class touches.

    The tenant's day (requests, tokens, spend) and concurrency are always counted, so that what was
    spent is known before any limit exists; other scopes and windows only where a limit is set.
    """
    found: dict[tuple[LimitScope, WindowKind, int], dict[Dimension, int]] = {
        (LimitScope.TENANT, WindowKind.DAY, 0): dict.fromkeys(_TRACKED, UNLIMITED),
        (LimitScope.TENANT, WindowKind.NOW, 0): {Dimension.CONCURRENCY: UNLIMITED},
    }
    subjects = {
        LimitScope.TENANT: "",
        LimitScope.KEY: key.id,
        LimitScope.TENANT_MODEL: model,
        LimitScope.TENANT_CLASS: work_class,
        # Of a model it is empty, which no such limit names.
        LimitScope.RESOURCE: model.removeprefix(RESOURCE_PREFIX) if is_resource(model) else "",
    }
    for limit in _applying(tenant.limits, subjects):
        dims = found.setdefault((limit.scope, limit.window, limit.anchor_min), {})
        known = dims.get(limit.dimension, UNLIMITED)
        dims[limit.dimension] = limit.amount if known < 0 else min(known, limit.amount)
    return tuple(
        Group(scope, window, subjects[scope], _ordered(dims), anchor_min)
        for (scope, window, anchor_min), dims in found.items()
    )


def _applying(limits: Iterable[Limit], subjects: dict[LimitScope, str]) -> Iterable[Limit]:
    return (limit for limit in limits if subjects[limit.scope] == limit.subject)


def _ordered(dims: dict[Dimension, int]) -> tuple[tuple[Dimension, int], ...]:
    return tuple((dim, dims[dim]) for dim in AMOUNT_ORDER if dim in dims)


def rates_of(groups: Iterable[Group]) -> Rates:
    """The limits among the counters of `groups`, in their order."""
    counters = [(group, dim, limit) for group in groups for dim, limit in group.dims]
    limits = tuple(
        Rate(place, group.scope, dim, group.window, limit, group.anchor_min)
        for place, (group, dim, limit) in enumerate(counters)
        if limit >= 0
    )
    return Rates(
        limits,
        tuple(rate for rate in limits if rate.dimension is Dimension.REQUESTS),
        tuple(rate for rate in limits if rate.dimension in _TOKENS),
    )


def amounts_in_order(amounts: Amounts) -> tuple[int, int, int, int, int, int]:
    """What a request takes of each dimension, in `AMOUNT_ORDER`: one request, one in flight."""
    return (
        1,
        amounts.input_tokens,
        amounts.output_tokens,
        amounts.spend_nanousd,
        1,
        amounts.kv_tokens,
    )


_NAMES: Final = {
    Dimension.REQUESTS: "requests",
    Dimension.INPUT_TOKENS: "input_tokens",
    Dimension.OUTPUT_TOKENS: "output_tokens",
    Dimension.SPEND_NANOUSD: "spend",
    Dimension.CONCURRENCY: "concurrency",
    Dimension.KV_TOKENS: "kv_tokens",
}
_PERIODS: Final = {
    WindowKind.MINUTE: "_per_minute",
    WindowKind.DAY: "_per_day",
    WindowKind.WEEK: "_per_week",
    WindowKind.MONTH: "_per_month",
    WindowKind.NOW: "",
}


def limit_name(dimension: Dimension, window: WindowKind) -> str:
    """Public name of a limit, such as `spend_per_day` or `concurrency`."""
    return _NAMES[dimension] + _PERIODS[window]

"""Window edges, and the counter groups that a request touches.

A group is one counter key of the store: one scope, one subject, one window (or the gauges of now).
Minutes align to the store's clock, days, weeks (from Monday) and months to the tenant's zone.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from routing.contracts.enums import Dimension, LimitScope, WindowKind
from routing.contracts.snapshot import KeyEntry, Limit, TenantEntry
from routing.decision.types import Amounts, Rate, Rates

UNLIMITED: Final = -1  # count, but refuse nothing
MINUTE_MS: Final = 60_000
EDGES_CACHED: Final = 4_096  # (kind, zone, minute): every zone of a large book for a few minutes

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

    @property
    def is_gauge(self) -> bool:
        """True for what is counted now, not over a window."""
        return self.window is WindowKind.NOW


def window_edges(kind: WindowKind, timezone: str, now_ms: int) -> Edges:
    """`(start, end, next_end)` in Unix ms of the window that holds `now_ms` and of the next one.

    A local midnight that does not exist (clocks jump over it) is the instant of the jump; one that
    happens twice is the first. Raises `ValueError` for a gauge and `ZoneInfoNotFoundError` (a
    `KeyError`) for an unknown zone.
    """
    if kind is WindowKind.MINUTE:
        start = now_ms - now_ms % MINUTE_MS
        return start, start + MINUTE_MS, start + 2 * MINUTE_MS
    return _local_edges(kind, timezone, now_ms // MINUTE_MS)


@lru_cache(maxsize=EDGES_CACHED)
def _local_edges(kind: WindowKind, timezone: str, minute: int) -> Edges:
    zone = ZoneInfo(timezone)
    today = datetime.fromtimestamp(minute * 60, zone).date()
    if kind is WindowKind.DAY:
        days = (today, today + timedelta(days=1), today + timedelta(days=2))
    elif kind is WindowKind.WEEK:
        monday = today - timedelta(days=today.weekday())
        days = (monday, monday + timedelta(weeks=1), monday + timedelta(weeks=2))
    elif kind is WindowKind.MONTH:
        first = today.replace(day=1)
        second = _next_month(first)
        days = (first, second, _next_month(second))
    else:
        raise ValueError(f"{kind} has no window")
    start, end, next_end = (_midnight_ms(day, zone) for day in days)
    return start, end, next_end


def _next_month(first: date) -> date:
    return (first + timedelta(days=31)).replace(day=1)


def _midnight_ms(day: date, zone: ZoneInfo) -> int:
    local = datetime(day.year, day.month, day.day, tzinfo=zone)
    return int(local.astimezone(UTC).timestamp()) * 1000


def groups_for(
    tenant: TenantEntry, key: KeyEntry, model: str, work_class: str
) -> tuple[Group, ...]:
    """Every counter that a request of this tenant, key, model and class touches.

    The tenant's day (requests, tokens, spend) and concurrency are always counted, so that what was
    spent is known before any limit exists; other scopes and windows only where a limit is set.
    """
    found: dict[tuple[LimitScope, WindowKind], dict[Dimension, int]] = {
        (LimitScope.TENANT, WindowKind.DAY): dict.fromkeys(_TRACKED, UNLIMITED),
        (LimitScope.TENANT, WindowKind.NOW): {Dimension.CONCURRENCY: UNLIMITED},
    }
    subjects = {
        LimitScope.TENANT: "",
        LimitScope.KEY: key.id,
        LimitScope.TENANT_MODEL: model,
        LimitScope.TENANT_CLASS: work_class,
    }
    for limit in _applying(tenant.limits, subjects):
        dims = found.setdefault((limit.scope, limit.window), {})
        known = dims.get(limit.dimension, UNLIMITED)
        dims[limit.dimension] = limit.amount if known < 0 else min(known, limit.amount)
    return tuple(
        Group(scope, window, subjects[scope], _ordered(dims))
        for (scope, window), dims in found.items()
    )


def _applying(limits: Iterable[Limit], subjects: dict[LimitScope, str]) -> Iterable[Limit]:
    return (limit for limit in limits if subjects[limit.scope] == limit.subject)


def _ordered(dims: dict[Dimension, int]) -> tuple[tuple[Dimension, int], ...]:
    return tuple((dim, dims[dim]) for dim in AMOUNT_ORDER if dim in dims)


def rates_of(groups: Iterable[Group]) -> Rates:
    """The limits among the counters of `groups`, in their order."""
    counters = [(group, dim, limit) for group in groups for dim, limit in group.dims]
    limits = tuple(
        Rate(place, group.scope, dim, group.window, limit)
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

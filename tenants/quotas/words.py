"""Positions of limits as a person reads them: what, how much, until when, what stops first."""

from calendar import day_name
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from console.web import units
from routing.contracts.enums import Dimension, LimitScope, WindowKind
from tenants.quotas.rules import MIDNIGHT, anchor_of
from tenants.quotas.selectors import LimitPosition, LimitView

NAMES = {
    Dimension.REQUESTS: "requests",
    Dimension.INPUT_TOKENS: "input tokens",
    Dimension.OUTPUT_TOKENS: "output tokens",
    Dimension.SPEND_NANOUSD: "spend",
    Dimension.CONCURRENCY: "concurrency",
    Dimension.KV_TOKENS: "KV tokens",
}
_WINDOWS = {
    WindowKind.MINUTE: ("", "/min"),
    WindowKind.DAY: ("Daily ", ""),
    WindowKind.WEEK: ("Weekly ", ""),
    WindowKind.MONTH: ("Monthly ", ""),
    WindowKind.NOW: ("", ""),
}
_WINDOW_ORDER = (
    WindowKind.MONTH,
    WindowKind.WEEK,
    WindowKind.DAY,
    WindowKind.MINUTE,
    WindowKind.NOW,
)
_REFUSALS = {
    Dimension.SPEND_NANOUSD: "budget_exceeded",
    Dimension.CONCURRENCY: "concurrency_limited",
    Dimension.KV_TOKENS: "concurrency_limited",
}
SHORTEST_ELAPSED_S = 60.0  # a rate over less than this says nothing


@dataclass(frozen=True, slots=True)
class LimitRow:
    """A limit and its position in words, money rounded; `label` holds it exactly.

    Ratios are None while unknown.
    """

    title: str
    unit: str
    subject: str
    position: LimitPosition
    used: str
    held: str
    amount: str
    remaining: str
    used_ratio: float | None
    held_ratio: float | None
    resets_s: int | None
    refusal: str

    @property
    def label(self) -> str:
        """The whole position as a sentence, exact, for those who do not see the bar."""
        if not self.position.is_known:
            return f"{self.title}: position unknown, limit {self.amount} {self.unit}".strip()
        limit = self.position.limit
        used, held, left = (
            amount_of(limit, value)
            for value in (self.position.used, self.position.held, self.position.remaining)
        )
        return (
            f"{self.title}: {used} used and {held} held of {self.amount} {self.unit}, "
            f"{left} remaining"
        ).strip()


def title_of(limit: LimitView) -> str:
    """`Daily spend`, `Monthly spend from day 15, 10:00`, `Input tokens/min`, `Concurrency`."""
    before, behind = _WINDOWS[limit.window]
    name = NAMES[limit.dimension] + behind
    return before + name + _beginning(limit) if before else name[0].upper() + name[1:]


def _beginning(limit: LimitView) -> str:
    anchor = anchor_of(limit.anchor_min)
    if anchor is None:
        return ""
    at = "" if anchor.time == MIDNIGHT else anchor.time
    if limit.window is WindowKind.DAY:
        return f" from {at}"
    is_week = limit.window is WindowKind.WEEK
    day = day_name[anchor.day - 1] if is_week else f"day {anchor.day}"
    return f" from {day}{', ' if at else ''}{at}"


def amount_of(limit: LimitView, value: int | None) -> str:
    """An amount of the limit's dimension: exact dollars, or a whole number."""
    is_money = limit.dimension is Dimension.SPEND_NANOUSD
    return units.usd(value) if is_money else units.count(value)


def _rounded(limit: LimitView, value: int | None) -> str:
    is_money = limit.dimension is Dimension.SPEND_NANOUSD
    return units.usd_short(value) if is_money else units.count(value)


def subject_of(limit: LimitView, key_names: dict[int, str]) -> str:
    """Whose limit it is, in words; `key_names` gives the prefixes of keys."""
    if limit.scope is LimitScope.KEY:
        return f"key {key_names.get(limit.key_id or 0, limit.key_id)}"
    if limit.scope is LimitScope.TENANT_MODEL:
        return f"model {limit.model}"
    if limit.scope is LimitScope.TENANT_CLASS:
        return f"class {limit.work_class}"
    if limit.scope is LimitScope.RESOURCE:
        return f"resource {limit.resource}"
    return "tenant"


def rows_of(
    positions: Iterable[LimitPosition], key_names: dict[int, str], now: datetime
) -> list[LimitRow]:
    """Positions in words: the tenant's own limits first, long windows before short ones."""
    ordered = sorted(positions, key=lambda one: _rank(one.limit))
    return [_row(position, key_names, now) for position in ordered]


def _rank(limit: LimitView) -> tuple[int, int, int]:
    return (
        list(LimitScope).index(limit.scope),
        _WINDOW_ORDER.index(limit.window),
        list(Dimension).index(limit.dimension),
    )


def first_to_stop(rows: Iterable[LimitRow], now: datetime) -> str:
    """Which limit stops the tenant first, and when at the rate of its window so far."""
    known = [row for row in rows if row.used_ratio is not None]
    if not known:
        return "The position of no limit is known now."
    soonest = min(
        ((at, row) for row in known if (at := _exhausted_at(row.position, now)) is not None),
        key=lambda pair: pair[0],
        default=None,
    )
    if soonest is not None:
        at, row = soonest
        if at <= now:
            return f"Stopped now: {_lower(row)} has nothing left."
        return (
            f"First to stop: {_lower(row)}, in about {units.seconds((at - now).total_seconds())} "
            "at this window's rate."
        )
    fullest = max(known, key=lambda row: (row.used_ratio or 0) + (row.held_ratio or 0))
    share = (fullest.used_ratio or 0) + (fullest.held_ratio or 0)
    return f"Nothing stops at this rate. Fullest: {_lower(fullest)}, {units.percent(share)}."


def _lower(row: LimitRow) -> str:
    name = row.title[0].lower() + row.title[1:]
    return name if row.subject == "tenant" else f"{name} of {row.subject}"


def _exhausted_at(position: LimitPosition, now: datetime) -> datetime | None:
    """When a window's limit runs out at its rate so far; None if it does not before its end."""
    if position.remaining == 0:
        return now
    if position.window_start is None or position.window_end is None or not position.used:
        return None
    if position.limit.window is WindowKind.MINUTE:
        return None  # it is full again before anyone could act
    elapsed_s = (now - position.window_start).total_seconds()
    if elapsed_s < SHORTEST_ELAPSED_S:
        return None
    left_s = (position.remaining or 0) * elapsed_s / position.used
    at = now + timedelta(seconds=min(left_s, 400 * 86400.0))
    return at if at < position.window_end else None


def _row(position: LimitPosition, key_names: dict[int, str], now: datetime) -> LimitRow:
    limit = position.limit
    whole = limit.amount or 1
    is_known = position.is_known
    return LimitRow(
        title=title_of(limit),
        unit="USD" if limit.dimension is Dimension.SPEND_NANOUSD else "",
        subject=subject_of(limit, key_names),
        position=position,
        used=_rounded(limit, position.used),
        held=_rounded(limit, position.held),
        amount=amount_of(limit, limit.amount),
        remaining=_rounded(limit, position.remaining),
        used_ratio=_share(position.used, limit.amount, whole) if is_known else None,
        held_ratio=_share(position.held, limit.amount, whole) if is_known else None,
        resets_s=(
            round((position.window_end - now).total_seconds()) if position.window_end else None
        ),
        refusal=_REFUSALS.get(limit.dimension, "rate_limited"),
    )


def _share(value: int | None, amount: int, whole: int) -> float:
    return (value or 0) / whole if amount else 1.0

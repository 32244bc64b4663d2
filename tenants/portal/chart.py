"""Use over time as a chart with its table: for one tenant, or for all that a reader may see.

Bars and table come from the same rollups as every other sum of the ledger.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from console.web import units
from console.web.bars import MAX_SERIES, Bars, Series, stacked_bars
from console.web.tables import Column, number
from tenants.keys.labels import labels_of
from tenants.ledger.selectors import (
    Spend,
    Totals,
    spend_by_key,
    spend_by_model,
    spend_by_tenant,
)
from tenants.ledger.series import GroupBy, Point, Step, usage_series
from tenants.portal.rules import column_of, day_slots, hour_slots, minute_slots

GROUPS: dict[str, tuple[GroupBy, Callable[..., tuple[Spend, ...]]]] = {
    "tenant": (GroupBy.TENANT, spend_by_tenant),
    "model": (GroupBy.MODEL, spend_by_model),
    "key": (GroupBy.KEY, spend_by_key),
}
MEASURES = {
    "spend": ("Spend", "USD", "spend_nanousd"),
    "requests": ("Requests", "requests", "requests"),
    "input": ("Input", "tok", "input_tokens"),
    "output": ("Output", "tok", "output_tokens"),
}
OTHERS = "others"
_NANO = 10**9
TOTAL_COLUMNS = (
    number("Spend", "USD", "Exact sum of charged requests and adjustments"),
    number("Requests"),
    number("Failed", meaning="Requests that reached a replica and failed"),
    number("Input", "tok"),
    number("Output", "tok"),
)


@dataclass(frozen=True, slots=True)
class Slots:
    """The chart's time: `count` steps of a zone until now, said in `words`."""

    step: Step
    count: int
    words: str

    def starts(self, now: datetime, zone: str) -> list[datetime]:
        """Start of each slot, the present one last."""
        if self.step is Step.DAY:
            return day_slots(now, self.count, zone)
        slots_of = minute_slots if self.step is Step.MINUTE else hour_slots
        return slots_of(now, self.count)


@dataclass(frozen=True, slots=True)
class UseChart:
    """A drawn chart and what stands around it; `colours` give each subject its CSS class."""

    bars: Bars
    title: str
    unit: str
    zone: str
    words: str
    sentence: str
    top: str
    first: str
    middle: str
    last: str
    legend: tuple[tuple[str, str], ...]
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, Totals], ...]
    colours: Mapping[str, str]

    def colour_of(self, subject: str) -> str:
        """The class of a subject's bars: its own, or that of the others."""
        return self.colours.get(subject, self.colours.get(OTHERS, ""))


def use_chart(
    *,
    tenant_ids: frozenset[int] | None,
    slots: Slots,
    now: datetime,
    zone: str,
    by: str,
    measure: str,
    groups: Sequence[Spend],
    labels: Mapping[str, tuple[str, str]],
) -> UseChart:
    """`measure` of each slot, divided `by` the largest of `groups`; the rest is `others`.

    `labels` name subjects. Two queries.
    """
    starts = slots.starts(now, zone)
    title, unit, attribute = MEASURES[measure]
    largest = sorted(groups, key=lambda one: -getattr(one.totals, attribute))
    shown = [one.subject for one in largest[: MAX_SERIES - 1] if getattr(one.totals, attribute)]
    series_of = partial(
        usage_series,
        tenant_ids=tenant_ids,
        since=starts[0],
        until=now,
        step=slots.step,
        zone=zone,
    )
    whole, parts = series_of(), series_of(by=GROUPS[by][0], chosen=shown)
    columns = _columns(starts, whole, parts, shown, attribute)
    named = [_slot_name(at, slots.step, zone) for at in starts]
    scale = _NANO if attribute == "spend_nanousd" else 1
    names = [labels.get(name, (name, ""))[0] for name in columns]
    sentence = f"{title} in {unit}, {slots.words}, divided by {by}"
    bars = stacked_bars(
        named,
        [
            Series(name, [value / scale for value in values])
            for name, values in zip(names, columns.values(), strict=True)
        ],
        sentence,
    )
    return UseChart(
        bars=bars,
        title=title,
        unit=unit,
        zone=zone,
        words=slots.words,
        sentence=sentence,
        top=_shown(attribute, round(bars.top * scale)),
        first=named[0],
        middle=named[len(named) // 2],
        last=named[-1],
        legend=tuple(zip(names, bars.classes, strict=True)),
        columns=(Column(slots.step.value.capitalize(), zone), *TOTAL_COLUMNS),
        rows=_table(starts, named, whole),
        colours=dict(zip(columns, bars.classes, strict=True)),
    )


def labels_by(by: str, groups: Sequence[Spend]) -> dict[str, tuple[str, str]]:
    """Name and note of each group, by subject: one query for keys, else none."""
    if by != "key":
        return {one.subject: (one.label, "") for one in groups}
    found = labels_of(int(one.subject) for one in groups)
    return {str(pk): (f"{prefix}…", name) for pk, (prefix, name, _) in found.items()}


def _columns(
    slots: list[datetime],
    whole: Sequence[Point],
    parts: Sequence[Point],
    shown: Sequence[str],
    attribute: str,
) -> dict[str, list[int]]:
    """Values of each shown group for every slot, and what the others add up to."""
    columns = {
        name: column_of(
            slots,
            {one.start: getattr(one.totals, attribute) for one in parts if one.group == name},
        )
        for name in shown
    }
    all_of_it = column_of(slots, {one.start: getattr(one.totals, attribute) for one in whole})
    # An adjustment may take back more than its slot spent: a bar has no height below 0.
    rest = [
        max(value - sum(column[at] for column in columns.values()), 0)
        for at, value in enumerate(all_of_it)
    ]
    return {**columns, OTHERS: rest} if any(rest) else columns


def _slot_name(at: datetime, step: Step, zone: str) -> str:
    text = units.moment(at, zone)  # such as 2026-05-01 14:03:00 Europe/Berlin
    date, _, rest = text.partition(" ")
    if step is Step.DAY:
        return date
    return rest[:5] if step is Step.MINUTE else f"{date[5:]} {rest[:5]}"


def _table(
    slots: list[datetime], named: Sequence[str], whole: Sequence[Point]
) -> tuple[tuple[str, Totals], ...]:
    """Each slot with use, the newest first."""
    names = dict(zip(slots, named, strict=True))
    return tuple((names[one.start], one.totals) for one in reversed(whole) if one.start in names)


def _shown(attribute: str, value: int) -> str:
    return units.usd_short(value) if attribute == "spend_nanousd" else units.count(value)

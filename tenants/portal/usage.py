"""A tenant's use over time: by minute, hour or day, divided by model or key."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from django.http import HttpRequest, HttpResponseBase
from django.utils import timezone

from console.web import units
from console.web.bars import MAX_SERIES, Series, stacked_bars
from console.web.htmx import render
from console.web.tables import Column, number
from console.web.views import choice, page
from tenants.directory.access import open_tenant
from tenants.keys.labels import labels_of
from tenants.ledger.selectors import Spend, Totals, ledger_totals, spend_by_key, spend_by_model
from tenants.ledger.series import GroupBy, Point, Step, usage_series
from tenants.portal.rules import column_of, day_slots, hour_slots, minute_slots

RANGES = {
    "hour": (Step.MINUTE, 60, "last 60 minutes, by minute"),
    "day": (Step.HOUR, 24, "last 24 hours, by hour"),
    "month": (Step.DAY, 30, "last 30 days, by day"),
}
GROUPS = {"model": (GroupBy.MODEL, spend_by_model), "key": (GroupBy.KEY, spend_by_key)}
MEASURES = {
    "spend": ("Spend", "USD", "spend_nanousd"),
    "requests": ("Requests", "requests", "requests"),
    "input": ("Input", "tok", "input_tokens"),
    "output": ("Output", "tok", "output_tokens"),
}
OTHERS = "others"
_NANO = 10**9
_TOTAL_COLUMNS = (
    number("Spend", "USD", "Exact sum of charged requests and adjustments"),
    number("Requests"),
    number("Failed", meaning="Requests that reached a replica and failed"),
    number("Input", "tok"),
    number("Output", "tok"),
)


@dataclass(frozen=True, slots=True)
class Group:
    """One model or key: its label, sums, the address of its ledger rows, and its colour."""

    name: str
    label: str
    note: str
    totals: Totals
    css: str


@page("GET", query=("range", "by", "of"))
def own_spend(request: HttpRequest, slug: str) -> HttpResponseBase:
    """The chart, its table, and the sums by model or key; every figure from the same rollups."""
    tenant = open_tenant(request.user, slug)
    chosen_range = choice(request, "range", RANGES, "hour")
    by = choice(request, "by", GROUPS, "model")
    measure = choice(request, "of", MEASURES, "spend")
    step, count, words = RANGES[chosen_range]
    group_by, sums_of = GROUPS[by]
    now = timezone.now()
    slots = _slots(step, count, now, tenant.timezone)
    seen = frozenset({tenant.id})
    groups = sums_of(tenant_ids=seen, since=slots[0], until=now)
    labels = _labels(by, groups)
    attribute = MEASURES[measure][2]
    largest = sorted(groups, key=lambda one: -getattr(one.totals, attribute))
    shown = [one.subject for one in largest[: MAX_SERIES - 1] if getattr(one.totals, attribute)]
    series_of = partial(
        usage_series,
        tenant_id=tenant.id,
        since=slots[0],
        until=now,
        step=step,
        zone=tenant.timezone,
    )
    whole, parts = series_of(), series_of(by=group_by, chosen=shown)
    columns = _columns(slots, whole, parts, shown, attribute)
    named = [_slot_name(at, step, tenant.timezone) for at in slots]
    title, unit, _ = MEASURES[measure]
    scale = _NANO if attribute == "spend_nanousd" else 1
    names = [labels.get(name, (name, ""))[0] for name in columns]
    series = [
        Series(name, [value / scale for value in values])
        for name, values in zip(names, columns.values(), strict=True)
    ]
    sentence = f"{title} in {unit}, {words}, divided by {by}"
    bars = stacked_bars(named, series, sentence)
    colours = dict(zip(columns, bars.classes, strict=True))
    context = {
        "tenant": tenant,
        "area": "own_",
        "bars": bars,
        "top": _shown(attribute, round(bars.top * scale)),
        "unit": unit,
        "title": title,
        "sentence": sentence,
        "first": named[0],
        "middle": named[len(named) // 2],
        "last": named[-1],
        "legend": list(zip(names, bars.classes, strict=True)),
        "rows": _table(slots, named, whole),
        "totals": ledger_totals(tenant_ids=seen, since=slots[0], until=now),
        "groups": [
            Group(
                one.subject,
                *labels.get(one.subject, (one.label, "")),
                one.totals,
                colours.get(one.subject, colours.get(OTHERS, "")),
            )
            for one in groups
        ],
        "group_columns": (Column(by.capitalize()), *_TOTAL_COLUMNS),
        "slot_columns": (Column(step.value.capitalize(), tenant.timezone), *_TOTAL_COLUMNS),
        "range": chosen_range,
        "ranges": [(key, name) for key, (_, _, name) in RANGES.items()],
        "by": by,
        "bys": tuple(GROUPS),
        "of": measure,
        "measures": [(key, name) for key, (name, _, _) in MEASURES.items()],
        "is_live": step is Step.MINUTE,
    }
    return render(request, "tenants/own_spend.html", "content_body", context)


def _slots(step: Step, count: int, now: datetime, zone: str) -> list[datetime]:
    if step is Step.DAY:
        return day_slots(now, count, zone)
    return minute_slots(now, count) if step is Step.MINUTE else hour_slots(now, count)


def _labels(by: str, groups: Sequence[Spend]) -> dict[str, tuple[str, str]]:
    """Name and note of each group, by subject."""
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
    return date if step is Step.DAY else rest[:5]


def _table(
    slots: list[datetime], named: Sequence[str], whole: Sequence[Point]
) -> list[tuple[str, Totals]]:
    """Each slot with use, the newest first."""
    names = dict(zip(slots, named, strict=True))
    return [(names[one.start], one.totals) for one in reversed(whole) if one.start in names]


def _shown(attribute: str, value: int) -> str:
    return units.usd_short(value) if attribute == "spend_nanousd" else units.count(value)

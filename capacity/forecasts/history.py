"""Whose demand is forecast, and its hours: from the ledger, and from what was imported.

The ledger's rollups stay for ever, so they are the history of this installation. Imported hours
(`capacity.forecasts.imports`) are series of their own and are never added to them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Sum

from capacity.forecasts.rules.series import HISTORY_MAX_H, HOUR, Hourly, SeriesKey, filled, unbroken
from capacity.models import DemandHour
from capacity.models.forecast import MEASURES
from tenants.ledger.demand import HourRow, largest_series, model_hours, tenant_hours

LEDGER = "ledger"
SERIES_MAX = 100  # of one run, largest first: bounds its time and rows
MODELS_MAX = 20  # series over all tenants, one a model


@dataclass(frozen=True, slots=True)
class Chosen:
    """Series of a run, those that matter most first, and how many were left out."""

    keys: tuple[SeriesKey, ...]
    left_out: int


def chosen_series(as_of: datetime) -> Chosen:
    """Models over all tenants, then imported series, then the largest tenants' models."""
    since = as_of - HISTORY_MAX_H * HOUR
    totals: dict[str, int] = {}
    for row in model_hours(since=since, until=as_of):
        totals[row.model] = totals.get(row.model, 0) + row.input_tokens + row.output_tokens
    models = sorted(totals, key=lambda name: (-totals[name], name))
    found = [SeriesKey(LEDGER, None, "", name) for name in models[:MODELS_MAX]]
    imported = (
        DemandHour.objects.values("source", "tenant", "model")
        .annotate(tokens=Sum("input_tokens"))
        .order_by("-tokens", "source", "tenant", "model")
    )
    left_out = len(models) - len(found)
    rows = list(imported[: SERIES_MAX + 1])
    found += [SeriesKey(row["source"], None, row["tenant"], row["model"]) for row in rows]
    room = max(0, SERIES_MAX - len(found))
    tenants, total = largest_series(since=since, until=as_of, limit=max(1, room))
    found += [SeriesKey(LEDGER, *one) for one in tenants[:room]]
    left_out += max(0, len(found) - SERIES_MAX) + max(0, total - min(len(tenants), room))
    return Chosen(tuple(found[:SERIES_MAX]), left_out)


def histories(key: SeriesKey, as_of: datetime) -> dict[str, Hourly]:
    """Each measure's hours. A series that ended before `as_of` keeps its own end."""
    since = as_of - HISTORY_MAX_H * HOUR
    if key.source == LEDGER:
        return _of_ledger(key, since, as_of)
    rows = DemandHour.objects.filter(source=key.source, tenant=key.tenant, model=key.model)
    newest = rows.order_by("-hour_at").values_list("hour_at", *MEASURES)[:HISTORY_MAX_H]
    columns = list(zip(*newest, strict=True))
    found = {}
    for at, measure in enumerate(MEASURES, start=1):
        by_hour = dict(zip(columns[0], columns[at], strict=True)) if columns else {}
        found[measure] = unbroken(by_hour) or Hourly(as_of, ())
    return found


def _of_ledger(key: SeriesKey, since: datetime, as_of: datetime) -> dict[str, Hourly]:
    if key.tenant_id is None:
        rows = model_hours(since=since, until=as_of, model=key.model)
    else:
        rows = tenant_hours(key.tenant_id, key.model, since=since, until=as_of)
    # All measures begin with the first request, also where the first tokens came later.
    present = {row.hour_at for row in rows if row.requests or row.input_tokens}
    return {measure: filled(_by_hour(rows, measure, present), as_of) for measure in MEASURES}


def _by_hour(
    rows: Iterable[HourRow], measure: str, present: set[datetime]
) -> Mapping[datetime, int]:
    return {row.hour_at: max(0, getattr(row, measure)) for row in rows if row.hour_at in present}

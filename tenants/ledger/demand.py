"""The ledger as demand: hourly sums of tenants and models, and the sizes of served requests.

For forecasts and plans, which see all tenants; nothing here is shown to a tenant.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import F, Q, QuerySet, Sum

from tenants.models import Shape, UsageRollup

SHAPES_MAX = 20_000  # newest served requests that sizes are taken from: one query, a second
ROWS_MAX = 200_000  # series hours of one read


@dataclass(frozen=True, slots=True)
class HourRow:
    """Sums of one hour. `tenant` is the slug; None and empty: all tenants together."""

    tenant_id: int | None
    tenant: str
    model: str
    hour_at: datetime
    requests: int
    input_tokens: int
    output_tokens: int


_SUMS = {name: Sum(name) for name in ("requests", "input_tokens", "output_tokens")}


def largest_series(
    *, since: datetime, until: datetime, limit: int
) -> tuple[list[tuple[int, str, str]], int]:
    """`(tenant id, slug, model)` with the most tokens first, and how many there are in all."""
    rows = (
        _hours(since, until)
        .values("tenant_id", "model", slug=F("tenant__slug"))
        .annotate(tokens=Sum(F("input_tokens") + F("output_tokens")))
        .order_by("-tokens", "tenant_id", "model")
    )
    found = [(row["tenant_id"], row["slug"], row["model"]) for row in rows[:limit]]
    return found, rows.count() if len(found) == limit else len(found)


def tenant_hours(tenant_id: int, model: str, *, since: datetime, until: datetime) -> list[HourRow]:
    """Hours of one tenant and model that have anything, oldest first."""
    rows = _hours(since, until).filter(tenant_id=tenant_id, model=model)
    slug = rows.values_list("tenant__slug", flat=True).first() or ""
    grouped = rows.order_by().values("start_at").annotate(**_sums()).order_by("start_at")
    return [_row(dict(row), tenant_id, slug, model) for row in grouped[:ROWS_MAX]]


def model_hours(*, since: datetime, until: datetime, model: str = "") -> list[HourRow]:
    """Hours of each model over all tenants, by model and time."""
    rows = _hours(since, until)
    if model:
        rows = rows.filter(model=model)
    grouped = rows.order_by().values("model", "start_at").annotate(**_sums())
    ordered = grouped.order_by("model", "start_at")[:ROWS_MAX]
    return [_row(dict(row), None, "", row["model"]) for row in ordered]


def model_minutes(
    *, since: datetime, until: datetime
) -> dict[str, dict[datetime, tuple[int, int, int]]]:
    """Requests, input and output tokens of each model's minutes of `[since, until)` with any."""
    rows = (
        UsageRollup.objects.filter(grain="m", start_at__gte=since, start_at__lt=until)
        .exclude(model="")
        .order_by()
        .values("model", "start_at")
        .annotate(**_sums())
    )
    counted: Iterable[dict[str, Any]] = (dict(row) for row in rows[:ROWS_MAX])
    found: dict[str, dict[datetime, tuple[int, int, int]]] = {}
    for row in counted:
        sums = (row["sum_requests"], row["sum_input_tokens"], row["sum_output_tokens"])
        found.setdefault(row["model"], {})[row["start_at"]] = sums
    return found


def served_sizes(*, since: datetime) -> dict[str, list[tuple[int, int, int]]]:
    """`(input, cached, output)` tokens of the newest requests that a pool served, by model.

    At most `SHAPES_MAX` of all models together.
    """
    rows = (
        Shape.objects.filter(day__gte=since.date(), arrived_at__gte=since)
        .filter(~Q(pool=""), output_tokens__gt=0)
        .order_by("-day", "-request_id")
        .values_list("model", "input_tokens", "cached_tokens", "output_tokens")
    )
    found: dict[str, list[tuple[int, int, int]]] = {}
    for model, given, cached, output in rows[:SHAPES_MAX]:
        found.setdefault(model, []).append((given, cached, output))
    return found


def _hours(since: datetime, until: datetime) -> QuerySet[UsageRollup]:
    return UsageRollup.objects.filter(grain="h", start_at__gte=since, start_at__lt=until).exclude(
        model=""
    )


def _sums() -> dict[str, Sum]:
    # aliases: an annotation may not have the name of a column
    return {f"sum_{name}": total for name, total in _SUMS.items()}


def _row(sums: dict[str, object], tenant_id: int | None, slug: str, model: str) -> HourRow:
    at = sums["start_at"]
    assert isinstance(at, datetime)  # noqa: S101 - the column's type
    requests, given, output = (int(str(sums[f"sum_{name}"] or 0)) for name in _SUMS)
    return HourRow(tenant_id, slug, model, at, requests, given, output)

"""Use over time, from rollups: a sum for each minute, hour or local day and group."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import F, QuerySet, Sum
from django.db.models.functions import TruncDate

from tenants.ledger.rules.periods import start_of
from tenants.ledger.selectors import Totals, of_tenants
from tenants.models import UsageRollup

MAX_CHOSEN = 8  # groups of one series: what a chart can tell apart
_HOUR = timedelta(hours=1)


class Step(StrEnum):
    """Length of a slot. A day is one of the tenant's zone."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"


class GroupBy(StrEnum):
    """What the sums of a slot are divided by; the value is the rollup's column."""

    TENANT = "tenant_id"
    MODEL = "model"
    KEY = "key_id"


@dataclass(frozen=True, slots=True)
class Point:
    """Sums of one slot (its start, aware) and group; group is empty where nothing divides."""

    start: datetime
    group: str
    totals: Totals


def usage_series(
    *,
    tenant_ids: frozenset[int] | None,
    since: datetime,
    until: datetime,
    step: Step,
    zone: str,
    by: GroupBy | None = None,
    chosen: Collection[str] = (),
) -> list[Point]:
    """Sums of [since, until) in order of time; slots without use are not in the result.

    Of the tenants given, or of all (`None`).

    `by` divides them and gives only the `chosen` groups, at most `MAX_CHOSEN` (raises `ValueError`
    for more), so that the answer is bounded by slots x groups. One query.
    """
    if len(chosen) > MAX_CHOSEN:
        raise ValueError(f"at most {MAX_CHOSEN} groups")
    rows = UsageRollup.objects.filter(
        grain=_grain(step, zone, since, until), start_at__gte=since, start_at__lt=until
    )
    rows = of_tenants(rows, tenant_ids).order_by()
    if by is not None:
        rows = rows.filter(**{f"{by.value}__in": sorted(chosen)})
    return [_point(row, zone) for row in _summed(rows, step, zone, by)]


def _grain(step: Step, zone: str, since: datetime, until: datetime) -> str:
    """The coarsest rollups whose edges are the slots' edges."""
    if step is Step.MINUTE:
        return "m"
    if step is Step.HOUR:
        return "h"
    where = ZoneInfo(zone)
    offsets = {at.astimezone(where).utcoffset() or timedelta() for at in (since, until)}
    return "h" if all(not offset % _HOUR for offset in offsets) else "m"


def _summed(
    rows: QuerySet[UsageRollup], step: Step, zone: str, by: GroupBy | None
) -> list[dict[str, Any]]:
    slot = TruncDate("start_at", tzinfo=ZoneInfo(zone)) if step is Step.DAY else F("start_at")
    groups = {"group": F(by.value)} if by is not None else {}
    sums = {f"sum_{name}": Sum(name) for name in Totals.__slots__}
    found = rows.annotate(slot=slot).values("slot", **groups).annotate(**sums)
    return [dict(row) for row in found.order_by("slot")]


def _point(row: dict[str, Any], zone: str) -> Point:
    slot = row["slot"]
    start = slot if isinstance(slot, datetime) else start_of(slot, zone)
    return Point(start.astimezone(UTC), str(row.get("group", "")), Totals.of(row, "sum_"))

"""Demand that was seen elsewhere: from a file, or from engines' counters in a Prometheus.

Imported hours replace those of the same source, tenant, model and hour; nothing else changes.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.core.exceptions import ValidationError
from django.core.validators import validate_slug
from django.db import transaction
from django.utils import timezone

from capacity.forecasts.history import LEDGER
from capacity.forecasts.rules.series import HISTORY_MAX_H, HOUR, hour_of
from capacity.forecasts.rules.table import Hour, TableError, ending_at, read_demand
from capacity.models import DemandHour
from console.audit.rules import SYSTEM, Actor
from console.audit.services import record
from console.errors import InvalidInput
from telemetry.exporters.prometheus import query_range

PROMETHEUS = "prometheus"
KEPT = timedelta(days=120)  # imported hours older than this end the newest hour are dropped
SOURCES_MAX = 20
_BATCH_ROWS = 1000
# What engines of vLLM's names have counted, by model; the value at T covers the hour before T.
_QUERIES = {
    "requests": 'sum by (model_name) (increase({__name__="vllm:request_success_total"}[1h]))',
    "input_tokens": 'sum by (model_name) (increase({__name__="vllm:prompt_tokens_total"}[1h]))',
    "output_tokens": (
        'sum by (model_name) (increase({__name__="vllm:generation_tokens_total"}[1h]))'
    ),
}


def import_table(
    *,
    source: str,
    lines: Iterable[str],
    actor: Actor,
    start: datetime | None = None,
    model: str = "",
) -> int:
    """Read a demand file (`capacity.forecasts.rules.table`); returns its hours.

    Without `start` it ends with the last whole hour. Raises `InvalidInput`.
    """
    _check_source(source)
    now_hour = hour_of(timezone.now())
    try:
        hours = read_demand(lines, start=hour_of(start) if start else now_hour, model=model)
        if start is None:
            hours = ending_at(hours, now_hour)
    except TableError as error:
        raise InvalidInput(f"{error}.", field="file") from error
    if not hours:
        raise InvalidInput("The file has no rows.", field="file")
    store_hours(source=source, hours=hours, actor=actor)
    return len(hours)


def import_prometheus(*, as_of: datetime) -> int:
    """Read engines' hourly counts before `as_of`; returns the hours that all three counts have.

    Raises `telemetry.exporters.prometheus.HistoryAwayError`.
    """
    since = as_of - (HISTORY_MAX_H - 1) * HOUR
    cells: dict[tuple[str, datetime], dict[str, int]] = {}
    for measure, query in _QUERIES.items():
        for series in query_range(query, since=since, until=as_of, step_s=3600):
            model = series.labels.get("model_name", "")[:200]
            for at, value in series.points:
                cells.setdefault((model, at - HOUR), {})[measure] = max(0, round(value))
    hours = [
        Hour("", model, at, (sums["requests"], sums["input_tokens"], sums["output_tokens"]))
        for (model, at), sums in sorted(cells.items())
        if model and len(sums) == len(_QUERIES)
    ]
    if hours:
        store_hours(source=PROMETHEUS, hours=hours, actor=None)
    return len(hours)


@transaction.atomic
def store_hours(*, source: str, hours: list[Hour], actor: Actor | None) -> None:
    """Write hours of a source. `actor` None is the routine refresh, which is not audited."""
    for at in range(0, len(hours), _BATCH_ROWS):
        DemandHour.objects.bulk_create(
            [
                DemandHour(
                    source=source,
                    tenant=hour.tenant,
                    model=hour.model,
                    hour_at=hour.at,
                    requests=hour.sums[0],
                    input_tokens=hour.sums[1],
                    output_tokens=hour.sums[2],
                )
                for hour in hours[at : at + _BATCH_ROWS]
            ],
            update_conflicts=True,
            unique_fields=["source", "tenant", "model", "hour_at"],
            update_fields=["requests", "input_tokens", "output_tokens"],
        )
    newest = max(hour.at for hour in hours)
    DemandHour.objects.filter(source=source, hour_at__lt=newest - KEPT).delete()
    if actor is not None:
        record(
            actor=actor,
            act="demand.import",
            object_type="demand",
            object_id=source,
            after={
                "hours": len(hours),
                "series": len({(hour.tenant, hour.model) for hour in hours}),
                "since": min(hour.at for hour in hours),
                "until": newest + HOUR,
            },
        )


@transaction.atomic
def forget_source(*, source: str, actor: Actor = SYSTEM) -> int:
    """Delete what was imported under a name; returns how many hours."""
    count, _ = DemandHour.objects.filter(source=source).delete()
    if count:
        record(
            actor=actor,
            act="demand.forget",
            object_type="demand",
            object_id=source,
            before={"hours": count},
        )
    return count


def _check_source(source: str) -> None:
    try:
        validate_slug(source)
    except ValidationError as error:
        raise InvalidInput(
            "A source's name has letters, digits, - and _ only.", field="source"
        ) from error
    if source in (LEDGER, PROMETHEUS) or len(source) > 40:
        raise InvalidInput(
            f"{source!r} cannot name an import.", field="source", hint="At most 40 characters."
        )
    known = set(DemandHour.objects.values_list("source", flat=True).distinct())
    if source not in known and len(known) >= SOURCES_MAX:
        raise InvalidInput(f"At most {SOURCES_MAX} sources.", field="source")

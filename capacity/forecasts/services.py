"""One forecast run: choose series, forecast each in its own transaction, plan pools, drop the old.

A run is a row that says how far it is. Whoever holds its job goes on there, and a series that two
workers computed is written once: the second finds the count moved on.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from capacity.forecasts import fitted
from capacity.forecasts.history import chosen_series, histories
from capacity.forecasts.imports import import_prometheus
from capacity.forecasts.plans import plans_of
from capacity.forecasts.rules.backtest import HORIZONS, Chosen, choose, short_by_h
from capacity.forecasts.rules.bands import FLOORS, Method
from capacity.forecasts.rules.series import Hourly, SeriesKey, hour_of
from capacity.models import Forecast, ForecastRun, PoolPlan
from console.audit.rules import Actor
from console.audit.services import record
from console.jobs.services import enqueue
from telemetry.exporters.prometheus import HistoryAwayError, is_configured

logger = logging.getLogger(__name__)

JOB_KIND = "forecast_demand"
KEPT = timedelta(days=9)  # a week's report needs what was said a day before its first hour
DROPPED_MAX = 20_000  # rows that one run deletes
NO_MODELS = "Floors only: statsforecast is not installed."
NO_TIME = "Floors only: the run's time for fitting was used up."


def begin_run(*, now: datetime | None = None) -> int:
    """A new run over the series that matter now; its id."""
    now = now or timezone.now()
    as_of, trouble = hour_of(now), ""
    if is_configured():
        try:
            import_prometheus(as_of=as_of)
        except HistoryAwayError as error:
            trouble = f"No history from Prometheus: {error}."[:400]
            logger.warning("%s", trouble)
    chosen = chosen_series(as_of)
    run = ForecastRun.objects.create(
        as_of=as_of,
        started_at=now,
        series=[[key.source, key.tenant_id, key.tenant, key.model] for key in chosen.keys],
        left_out=chosen.left_out,
        has_models=fitted.is_installed(),
        trouble=trouble,
    )
    return run.pk


def forecast_next(
    run_id: int, may_fit: Callable[[], bool], models: fitted.Models | None = None
) -> float | None:
    """Forecast the next series of a run and write it; how far the run is (0..1), None at its end.

    While `may_fit` is false only the floors are tried. `models` compete with them, by default those
    that are installed.
    """
    models = fitted.here() if models is None else models
    run = ForecastRun.objects.get(pk=run_id)
    if run.done >= len(run.series):
        return None
    key = SeriesKey(*run.series[run.done])
    rows = [] if _is_current(run, key) else _forecasts(run, key, may_fit, models)
    with transaction.atomic():
        held = ForecastRun.objects.select_for_update().get(pk=run_id)
        if held.done != run.done:  # another worker wrote it meanwhile
            return held.done / len(held.series)
        _write(key, rows)
        held.done += 1
        held.save(update_fields=["done"])
    return held.done / len(held.series)


@transaction.atomic
def finish_run(run_id: int, *, now: datetime | None = None) -> None:
    """Plan every pool from the run's forecasts, end it, and drop what is too old. Repeatable."""
    now = now or timezone.now()
    run = ForecastRun.objects.select_for_update().get(pk=run_id)
    if run.finished_at is not None:
        return
    PoolPlan.objects.bulk_create(plans_of(run.pk, now, run.as_of))
    _retire(run)
    run.finished_at = now
    run.save(update_fields=["finished_at"])
    _drop_old(now)


@transaction.atomic
def ask_run(*, actor: Actor) -> int:
    """Queue a run now; the id of its job."""
    record(actor=actor, act="forecast.ask", object_type="forecast", object_id="run")
    return enqueue(JOB_KIND, dedupe_key=JOB_KIND)


def _forecasts(
    run: ForecastRun, key: SeriesKey, may_fit: Callable[[], bool], models: fitted.Models
) -> list[Forecast]:
    found = histories(key, run.as_of)
    return [
        _forecast(run, key, measure, hourly, horizon_h, may_fit, models.get(horizon_h, {}))
        for measure, hourly in found.items()
        for horizon_h in HORIZONS
    ]


def _forecast(
    run: ForecastRun,
    key: SeriesKey,
    measure: str,
    hourly: Hourly,
    horizon_h: int,
    may_fit: Callable[[], bool],
    models: Mapping[str, Method],
) -> Forecast:
    row = Forecast(
        run=run,
        source=key.source,
        tenant_id=key.tenant_id,
        tenant=key.tenant,
        model=key.model,
        measure=measure,
        horizon_h=horizon_h,
        as_of=hourly.as_of,
        history_h=len(hourly.values),
        short_h=short_by_h(len(hourly.values), horizon_h),
    )
    if row.short_h:
        return row
    fits = models if run.has_models else {}
    had_time = may_fit()
    chosen = choose(hourly.values, horizon_h, {**FLOORS, **(fits if had_time else {})}, may_fit)
    if chosen is None:
        row.short_h = 1
        return row
    return _filled(row, chosen, fits, had_time=had_time and may_fit())


def _filled(
    row: Forecast, chosen: Chosen, fits: Mapping[str, Method], *, had_time: bool
) -> Forecast:
    row.method = chosen.method
    row.points = [[round(band.p5), round(band.p50), round(band.p95)] for band in chosen.bands]
    row.error_ratio = chosen.score.error_ratio
    row.coverage_ratio = chosen.score.coverage_ratio
    row.windows = chosen.score.windows
    row.scores = [
        {
            "method": score.method,
            "error_ratio": score.error_ratio,
            "coverage_ratio": score.coverage_ratio,
            "loss_ratio": score.loss_ratio,
        }
        for score in chosen.scores
    ]
    if not fits:
        row.note = NO_MODELS
    elif not had_time:
        row.note = NO_TIME
    return row


def _write(key: SeriesKey, rows: list[Forecast]) -> None:
    if not rows:
        return
    mine = Forecast.objects.filter(source=key.source, tenant=key.tenant, model=key.model)
    mine.filter(is_latest=True).update(is_latest=False)
    unique = ["source", "tenant", "model", "measure", "horizon_h", "as_of"]
    kept = {"id", *unique}
    names = [field.name for field in Forecast._meta.concrete_fields if field.name not in kept]
    Forecast.objects.bulk_create(
        rows, update_conflicts=True, unique_fields=unique, update_fields=names
    )


def _is_current(run: ForecastRun, key: SeriesKey) -> bool:
    """Whether the series has not changed since it was forecast with all there is.

    True of imported series, which have an end of their own.
    """
    mine = Forecast.objects.filter(
        source=key.source, tenant=key.tenant, model=key.model, is_latest=True
    )
    latest = list(mine.values_list("measure", "as_of", "note"))
    if not latest or any(note == NO_TIME for _, _, note in latest):
        return False
    if run.has_models and any(note == NO_MODELS for _, _, note in latest):
        return False
    ends = {measure: hourly.as_of for measure, hourly in histories(key, run.as_of).items()}
    return all(ends.get(measure) == as_of for measure, as_of, _ in latest)


def _retire(run: ForecastRun) -> None:
    """What this run no longer covers is not the latest word of anything."""
    covered = {(source, tenant, model) for source, _, tenant, model in run.series}
    latest: Iterable[tuple[str, str, str]] = (
        Forecast.objects.filter(is_latest=True)
        .order_by()
        .values_list("source", "tenant", "model")
        .distinct()
    )
    for source, tenant, model in latest:
        if (source, tenant, model) not in covered:
            mine = Forecast.objects.filter(source=source, tenant=tenant, model=model)
            mine.filter(is_latest=True).update(is_latest=False)


def _drop_old(now: datetime) -> None:
    old = Forecast.objects.filter(as_of__lt=now - KEPT, is_latest=False).order_by("as_of")
    Forecast.objects.filter(pk__in=old.values("pk")[:DROPPED_MAX]).delete()
    runs = ForecastRun.objects.filter(as_of__lt=now - KEPT, forecasts=None)
    ForecastRun.objects.filter(pk__in=runs.values("pk")[:DROPPED_MAX]).delete()

"""Reads of forecasts, plans and runs."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from capacity.forecasts import fitted
from capacity.forecasts.history import LEDGER, histories
from capacity.forecasts.rules.backtest import DAY_AHEAD, HORIZONS
from capacity.forecasts.rules.series import HOUR, SeriesKey
from capacity.models import Forecast, ForecastRun, PoolPlan
from capacity.models.forecast import MEASURES
from console.errors import InvalidInput, NotFound
from console.web.keyset import MAX_LIMIT, Page, take

MODELS_MAX = 20  # of one comparison with what came
POOLS_SHOWN = 500
SHOWN_PAST_H = 7 * 24  # of a chart


@dataclass(frozen=True, slots=True)
class Point:
    """One hour of a band, sums of the hour."""

    hour_at: datetime
    p5: int
    p50: int
    p95: int


@dataclass(frozen=True, slots=True)
class ScoreView:
    """How a method did in the backtest."""

    method: str
    error_ratio: float | None
    coverage_ratio: float
    loss_ratio: float | None


@dataclass(frozen=True, slots=True)
class ForecastView:
    """A forecast. `short_h` above 0: so many hours of history are missing, and there is no band."""

    id: int
    source: str
    tenant: str
    model: str
    measure: str
    horizon_h: int
    as_of: datetime
    history_h: int
    short_h: int
    method: str
    points: tuple[Point, ...]
    error_ratio: float | None
    coverage_ratio: float | None
    windows: int
    scores: tuple[ScoreView, ...]
    note: str
    is_latest: bool

    @property
    def peak(self) -> Point | None:
        """The hour with the largest p50."""
        return max(self.points, key=lambda point: point.p50, default=None)

    @property
    def needs_h(self) -> int:
        """Hours of history that this horizon needs."""
        return HORIZONS[self.horizon_h].needs_h


@dataclass(frozen=True, slots=True)
class PlanView:
    """Replicas of a pool's kind that its model takes; None is no number, `trouble` says why."""

    pool: str
    model: str
    profile: str
    basis: str
    rate_rps: float | None
    input_tokens_per_s: float | None
    output_tokens_per_s: float | None
    itl_target_s: float | None
    domains: int
    ready_replicas: int
    need_now: int | None
    need_domain_lost: int | None
    need_quarter_lost: int | None
    set_by: str
    binds: str
    trouble: str

    @property
    def need(self) -> int | None:
        """The largest of the three."""
        known = (self.need_now, self.need_domain_lost, self.need_quarter_lost)
        return None if self.need_now is None else max(value or 0 for value in known)

    @property
    def short_by(self) -> int:
        """Replicas that are missing for the largest."""
        return max(0, (self.need or 0) - self.ready_replicas)


@dataclass(frozen=True, slots=True)
class RunView:
    """A run. `finished_at` None: it still goes on, `done` of `total` series are written."""

    id: int
    as_of: datetime
    started_at: datetime
    finished_at: datetime | None
    done: int
    total: int
    left_out: int
    has_models: bool
    trouble: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which forecasts; empty matches all. `horizon_h` 0 is any."""

    source: str = ""
    tenant: str = ""
    model: str = ""
    measure: str = ""
    horizon_h: int = 0


def forecast_page(wanted: Wanted, *, after: str | None, limit: int) -> Page[ForecastView]:
    """The latest word of every series, newest rows first. Raises `InvalidInput` for a filter."""
    if wanted.measure and wanted.measure not in MEASURES:
        raise InvalidInput(
            f"measure: there is no {wanted.measure[:40]!r}.",
            field="measure",
            hint=f"One of: {', '.join(MEASURES)}.",
        )
    if wanted.horizon_h and wanted.horizon_h not in HORIZONS:
        raise InvalidInput(
            "A horizon is 1 or 24 hours.", field="horizon_h", hint="Leave it out for both."
        )
    rows = Forecast.objects.filter(is_latest=True)
    given = {
        "source": wanted.source,
        "tenant": wanted.tenant,
        "model": wanted.model,
        "measure": wanted.measure,
        "horizon_h": wanted.horizon_h,
    }
    rows = rows.filter(**{name: value for name, value in given.items() if value})
    page = take(rows, order=("-id",), after=after, limit=min(limit, MAX_LIMIT))
    return page.map(_view)


def forecast(forecast_id: int) -> ForecastView:
    """One forecast. Raises `NotFound`."""
    row = Forecast.objects.filter(pk=forecast_id).first()
    if row is None:
        raise NotFound("No such forecast.")
    return _view(row)


def history_of(view: ForecastView) -> tuple[tuple[datetime, int], ...]:
    """The hours that a forecast was made from, the newest `SHOWN_PAST_H`, oldest first."""
    row = Forecast.objects.filter(pk=view.id).values_list("tenant_id", flat=True).first()
    key = SeriesKey(view.source, row, view.tenant, view.model)
    hourly = histories(key, view.as_of)[view.measure]
    values = hourly.values[-SHOWN_PAST_H:]
    start = hourly.as_of - len(values) * HOUR
    return tuple((start + at * HOUR, value) for at, value in enumerate(values))


def last_run() -> RunView | None:
    """The newest run, finished or not."""
    row = ForecastRun.objects.order_by("-as_of", "-id").first()
    return None if row is None else _run(row)


def plans(*, until: datetime | None = None) -> tuple[RunView | None, tuple[PlanView, ...]]:
    """The newest finished run (as of `until` at the latest) and what it says of every pool."""
    runs = ForecastRun.objects.filter(finished_at__isnull=False)
    if until is not None:
        runs = runs.filter(as_of__lte=until)
    row = runs.order_by("-as_of", "-id").first()
    if row is None:
        return None, ()
    rows = PoolPlan.objects.filter(run=row).order_by("pool")[:POOLS_SHOWN]
    names = PlanView.__match_args__
    return _run(row), tuple(
        PlanView(**{name: getattr(one, name) for name in names}) for one in rows
    )


def said_a_day_ahead(
    *, since: datetime, until: datetime
) -> dict[tuple[str, str], dict[datetime, Point]]:
    """What was forecast for each hour of `[since, until)` 24 hours before its end.

    By (model, measure), all tenants together: the last hour of each day-ahead band of the ledger.
    An hour that no run was made for has none.
    """
    ahead = timedelta(hours=DAY_AHEAD)
    rows = Forecast.objects.filter(
        source=LEDGER,
        tenant="",
        horizon_h=DAY_AHEAD,
        short_h=0,
        as_of__gt=since - ahead,
        as_of__lte=until - ahead,
    ).order_by("model", "measure", "as_of")
    found: dict[tuple[str, str], dict[datetime, Point]] = {}
    for row in rows.values("model", "measure", "as_of", "points")[: MODELS_MAX * 3 * 24 * 8]:
        at = row["as_of"] + ahead - HOUR
        low, mid, high = row["points"][-1]
        found.setdefault((row["model"], row["measure"]), {})[at] = Point(at, low, mid, high)
    return found


def can_fit() -> bool:
    """Whether models beside the floors can be used."""
    return fitted.is_installed()


def _view(row: Forecast) -> ForecastView:
    values: dict[str, Any] = {
        name: getattr(row, name)
        for name in ForecastView.__match_args__
        if name not in ("points", "scores")
    }
    points = tuple(Point(row.as_of + at * HOUR, *point) for at, point in enumerate(row.points))
    return ForecastView(
        points=points, scores=tuple(ScoreView(**score) for score in row.scores), **values
    )


def _run(row: ForecastRun) -> RunView:
    return RunView(
        id=row.pk,
        as_of=row.as_of,
        started_at=row.started_at,
        finished_at=row.finished_at,
        done=row.done,
        total=len(row.series),
        left_out=row.left_out,
        has_models=row.has_models,
        trouble=row.trouble,
    )

"""When do we run out? Demand bands with their error, and the replicas that they take."""

from datetime import datetime

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect

from capacity.forecasts import selectors
from capacity.forecasts.fitted import INSTALL
from capacity.forecasts.selectors import ForecastView, Wanted
from capacity.forecasts.services import ask_run
from capacity.models.forecast import MEASURES
from console.accounts.person import acting
from console.accounts.selectors import Permission, can, require
from console.web.htmx import render
from console.web.keyset import DEFAULT_LIMIT
from console.web.plots import Chart, Line, Span, svg
from console.web.tables import Column, number, pager
from console.web.views import choice, page

UNITS = {"requests": "requests/h", "input_tokens": "tok/h", "output_tokens": "tok/h"}
WORDS = {"requests": "Requests", "input_tokens": "Input tokens", "output_tokens": "Output tokens"}
PLAN_COLUMNS = (
    Column("Pool"),
    Column("Model"),
    Column("State", meaning="Ready replicas against the largest need"),
    number("Ready", meaning="Replicas that serve the model, in all its pools"),
    number("Now", meaning="Replicas that the demand alone takes"),
    number("Domain lost", meaning="So many that enough are left without one failure domain"),
    number("Quarter lost", meaning="So many that enough are left without a quarter of the fleet"),
    Column("Set by"),
    Column("Binds", meaning="What fills first"),
    number("Requests", "/s"),
    number("Input", "tok/s"),
    number("Output", "tok/s"),
    Column("Demand from"),
)
COLUMNS = (
    Column("Tenant"),
    Column("Model"),
    Column("Measure"),
    number("Peak p50", "/h", "Largest hour ahead: exceeded every second time"),
    number("p5 to p95", "/h", "Of that hour: 18 times in 20 inside"),
    Column("Ahead", meaning="p50, hour by hour"),
    Column("Method", meaning="Least wrong on the past"),
    number("Error", "%", "Sum of errors over sum of what came, on the past"),
    number("Inside", "%", "Share of past hours inside the band; 90 is meant"),
    Column("As of", "UTC"),
)
SCORE_COLUMNS = (
    Column("Method"),
    number("Loss", "%", "Of the whole band, over what came: the least is chosen"),
    number("Error", "%"),
    number("Inside", "%", "90 is meant"),
)
POINT_COLUMNS = (Column("Hour", "UTC"), number("p5"), number("p50"), number("p95"))
FILTERS = ("source", "tenant", "model", "measure", "horizon")


@page("GET", query=(*FILTERS, "after"))
def forecasts(request: HttpRequest) -> HttpResponseBase:
    """Pools with what they need, then every series with its band, error and coverage."""
    require(request.user, Permission.VIEW_ALL)
    horizon = choice(request, "horizon", ("1", "24"), "24")
    given = {name: request.GET.get(name, "")[:200] for name in FILTERS[:4]}
    wanted = Wanted(horizon_h=int(horizon), **given)
    rows = selectors.forecast_page(wanted, after=request.GET.get("after"), limit=DEFAULT_LIMIT)
    planned, plans = selectors.plans()
    context = {
        "run": selectors.last_run(),
        "planned": planned,
        "plans": plans,
        "short_pools": sum(1 for plan in plans if plan.short_by),
        "unknown_pools": sum(1 for plan in plans if plan.trouble),
        "plan_columns": PLAN_COLUMNS,
        "page": rows,
        "pager": pager(request, rows, "rows"),
        "columns": COLUMNS,
        "rows": [_row(view) for view in rows.rows],
        "given": given,
        "horizon": horizon,
        "measures": [(name, WORDS[name]) for name in MEASURES],
        "has_filter": any(given.values()),
        "can_fit": selectors.can_fit(),
        "install": INSTALL,
        "may_act": can(request.user, Permission.ACT),
    }
    return render(request, "capacity/forecasts.html", "rows", context)


@page("GET")
def forecast(request: HttpRequest, forecast_id: int) -> HttpResponseBase:
    """One band beside what came before it, and every method's score."""
    require(request.user, Permission.VIEW_ALL)
    view = selectors.forecast(forecast_id)
    past = selectors.history_of(view)
    context = {
        "view": view,
        "title": f"{WORDS[view.measure]} of {view.model}",
        "words": WORDS[view.measure].lower(),
        "unit": UNITS[view.measure],
        "chart": svg(_chart(view, past)) if past else "",
        "score_columns": SCORE_COLUMNS,
        "point_columns": POINT_COLUMNS,
        "hours_words": "the next hour" if view.horizon_h == 1 else f"the next {view.horizon_h} h",
    }
    return render(request, "capacity/forecast.html", "", context)


@page("POST")
def forecast_now(request: HttpRequest) -> HttpResponseBase:
    """Queue a run."""
    require(request.user, Permission.ACT)
    job_id = ask_run(actor=acting(request))
    messages.success(request, f"A forecast is queued as job {job_id}.", "ok")
    return redirect("forecasts")


def _row(view: ForecastView) -> dict[str, object]:
    return {
        "view": view,
        "measure": WORDS[view.measure],
        "peak": view.peak,
        "points": [float(point.p50) for point in view.points],
        "known_h": view.history_h,
    }


def _chart(view: ForecastView, past: tuple[tuple[datetime, int], ...]) -> Chart:
    hours = [at for at, _ in past] + [point.hour_at for point in view.points]
    gap: tuple[None, ...] = (None,) * len(past)
    rest: tuple[None, ...] = (None,) * len(view.points)
    word = WORDS[view.measure].lower()
    lines = [Line("what came", (*(float(value) for _, value in past), *rest))]
    span = None
    if view.points:
        lines.append(
            Line("p50", (*gap, *(float(point.p50) for point in view.points)), is_dashed=True)
        )
        span = Span(
            "p5 to p95",
            (*gap, *(float(point.p5) for point in view.points)),
            (*gap, *(float(point.p95) for point in view.points)),
        )
    return Chart(
        title=f"{WORDS[view.measure]}, hour by hour",
        unit=f"{UNITS[view.measure]}, UTC",
        labels=tuple(at.strftime("%d %b %H:%M") for at in hours),
        lines=tuple(lines),
        sentence=f"{word} per hour: {len(past)} hours that came, {len(view.points)} ahead",
        span=span,
    )

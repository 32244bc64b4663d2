"""How far holds are from what engines report, per model."""

from django.http import HttpRequest, HttpResponseBase

from console.accounts.selectors import Permission, require
from console.web.htmx import render
from console.web.tables import Column, number
from console.web.views import page
from routing.estimates.selectors import model_estimates
from telemetry.stats.token_rates import MIN_SAMPLES

COLUMNS = (
    Column("Model"),
    number("Samples", meaning="Requests whose engine reported its prompt tokens"),
    number("Plain", "B/tok", "With which plain text is held: the low end of what was seen"),
    number("Median", "B/tok", "Of plain text, as reported"),
    number("Dense", "B/tok", "With which code, digits and other alphabets are held"),
    number("Template", "tok", meaning="With which a chat template is held, beside the text"),
    number("Held/used p5", "x", meaning="Below 1: more was used than held"),
    number("p50", "x", "Held over used, the median request"),
    number("p95", "x", "Held over used, above which one request in twenty lies"),
)


@page("GET")
def estimates(request: HttpRequest) -> HttpResponseBase:
    """Every model that gateways have learnt of."""
    require(request.user, Permission.VIEW_ALL)
    context = {"rows": model_estimates(), "columns": COLUMNS, "min_samples": MIN_SAMPLES}
    return render(request, "routing/estimates.html", "rows", context)

"""Do holds, counters and ledger agree? The last look, earlier ones, and the button that repairs."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect

from console.accounts.person import acting
from console.accounts.selectors import Permission, can, require
from console.web.htmx import render
from console.web.tables import Column, number
from console.web.views import page
from tenants.reconcile.selectors import latest, runs
from tenants.reconcile.services import ask

LINE_COLUMNS = (
    Column("Check"),
    number("Differ", meaning="Target: 0"),
    number("By", meaning="Sum of the differences, in the unit of the check"),
    Column("Must hold"),
    Column("Which", meaning="The first of them"),
)
RUN_COLUMNS = (
    Column("When", "UTC"),
    Column("By"),
    number("Took", "ms"),
    number("Differ", meaning="After the run"),
    number("Repairs"),
)
MAX_SHOWN = 20


@page("GET")
def reconciliation(request: HttpRequest) -> HttpResponseBase:
    """The last run in full, earlier ones as a list."""
    require(request.user, Permission.VIEW_ALL)
    context = {
        "run": latest(),
        "runs": runs(MAX_SHOWN),
        "line_columns": LINE_COLUMNS,
        "run_columns": RUN_COLUMNS,
        "may_act": can(request.user, Permission.ADJUST_USAGE),
    }
    return render(request, "tenants/reconciliation.html", "rows", context)


@page("POST")
def reconcile_now(request: HttpRequest) -> HttpResponseBase:
    """Queue a look, or a repair when `repair` is 1."""
    require(request.user, Permission.ADJUST_USAGE)
    is_repair = request.POST.get("repair") == "1"
    job_id = ask(is_repair=is_repair, actor=acting(request))
    what = "Repair" if is_repair else "Check"
    messages.success(request, f"{what} queued as job {job_id}; its result appears here.", "ok")
    return redirect("reconciliation")

"""Background jobs: progress, history, and cancelling one."""

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect

from console.accounts.person import acting
from console.accounts.selectors import Permission, can, require
from console.jobs.schedule import ROUTINE_KINDS
from console.jobs.selectors import job as one_job
from console.jobs.selectors import jobs as listed_jobs
from console.jobs.selectors import open_counts
from console.jobs.services import cancel
from console.models import JobState
from console.web.htmx import render
from console.web.keyset import DEFAULT_LIMIT, cut, parse_id
from console.web.tables import Column, number, pager
from console.web.views import choice, page

COLUMNS = (
    number("#"),
    Column("Kind"),
    Column("State"),
    number("Progress"),
    number("Tries"),
    Column("Queued"),
    Column("Last beat"),
    Column("Ended"),
    Column("Error"),
    Column("", meaning="Acts"),
)
OPEN_STATES = (JobState.QUEUED.value, JobState.RUNNING.value)


@page("GET", query=("kind", "routine", "after"))
def jobs(request: HttpRequest) -> HttpResponseBase:
    """Jobs, newest first; what the clock starts by the thousand only if asked for, or failed."""
    require(request.user, Permission.VIEW_ALL)
    kind = request.GET.get("kind", "")[:64]
    before_id = parse_id(request.GET.get("after"))
    shows_routine = bool(kind) or choice(request, "routine", ("0", "1"), "0") == "1"
    rows = listed_jobs(
        kind=kind or None,
        routine=() if shows_routine else ROUTINE_KINDS,
        before_id=before_id,
        limit=DEFAULT_LIMIT + 1,
    )
    lines = cut(rows, DEFAULT_LIMIT, lambda line: line.id)
    context = {
        "page": lines,
        "pager": pager(request, lines, "rows"),
        "columns": COLUMNS,
        "kind": kind,
        "shows_routine": shows_routine,
        "routine_kinds": sorted(ROUTINE_KINDS),
        "counts": open_counts(),
        "open_states": OPEN_STATES,
        "may_act": can(request.user, Permission.ACT),
    }
    return render(request, "console/jobs.html", "rows", context)


@page("POST")
def cancel_job(request: HttpRequest, job_id: int) -> HttpResponseBase:
    """Ask a job to stop; a running one stops at its next checkpoint."""
    require(request.user, Permission.ACT)
    line = one_job(job_id)
    cancel(job_id=line.id, actor=acting(request))
    messages.success(request, f"Job {line.id} ({line.kind}) is asked to stop.", "ok")
    return redirect("jobs")

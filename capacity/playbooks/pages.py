"""Playbooks: what each does to whom and whether it acts; a run: does it help, and undo."""

import json
from datetime import UTC, datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect

from capacity.models import PlaybookMode
from capacity.playbooks.chart import timeline
from capacity.playbooks.selectors import ActView, RunDetail
from capacity.playbooks.selectors import active_runs as running
from capacity.playbooks.selectors import playbook as one_playbook
from capacity.playbooks.selectors import playbooks as listed_playbooks
from capacity.playbooks.selectors import run as one_run
from capacity.playbooks.selectors import runs as listed_runs
from capacity.playbooks.services import approve_run, set_mode, undo_run
from console.accounts.person import acting
from console.accounts.selectors import Permission, can, require
from console.errors import Conflict, DomainError
from console.web.forms import TypedConfirmation
from console.web.htmx import render, render_form
from console.web.keyset import parse_id
from console.web.tables import Column, number, pager
from console.web.views import page

PLAYBOOK_COLUMNS = (
    Column("Playbook"),
    Column(
        "Mode",
        meaning="A dry run decides and records the same, and touches nothing; one that asks first "
        "as well, until a person approves",
    ),
    Column("Watches"),
    Column("Steps"),
    number("Active runs"),
    number("Version"),
)
RUN_COLUMNS = (
    Column("Run"),
    Column("State"),
    Column("Subject"),
    Column("Started"),
    Column("Ended"),
    number("Signal", meaning="When it started"),
    number("Peak"),
    Column("Why it ended"),
)
SHOWN_SAMPLES = 60  # in the chart's table: the newest


class ModeForm(TypedConfirmation):
    """A mode, confirmed by the playbook's name."""

    mode = forms.ChoiceField(choices=PlaybookMode.choices)
    reason = forms.CharField(required=False, max_length=300)
    field_order = ("mode", "reason", "confirm")


@page("GET")
def playbooks(request: HttpRequest) -> HttpResponseBase:
    """Every playbook, and the runs that have not ended."""
    require(request.user, Permission.VIEW_ALL)
    context = {
        "playbooks": listed_playbooks(),
        "runs": running(),
        "columns": PLAYBOOK_COLUMNS,
        "run_columns": RUN_COLUMNS,
    }
    return render(request, "capacity/playbooks.html", "rows", context)


@page("GET", query=("after",))
def playbook(request: HttpRequest, name: str) -> HttpResponseBase:
    """One playbook: its mode, steps with levels, document and runs, newest first."""
    require(request.user, Permission.VIEW_ALL)
    found = one_playbook(name)
    rows = listed_runs(name=name, before_id=parse_id(request.GET.get("after")))
    context = {
        "playbook": found,
        "timing": found.document["timing"],
        "document_text": json.dumps(found.document, indent=2),
        "page": rows,
        "pager": pager(request, rows, "rows"),
        "run_columns": RUN_COLUMNS,
        "may_arm": can(request.user, Permission.PLAYBOOK_ARM),
    }
    return render(request, "capacity/playbook.html", "rows", context)


@page("GET", "POST")
def playbook_mode(request: HttpRequest, name: str) -> HttpResponseBase:
    """Switch it off, to a dry run, or arm it; asks to type its name."""
    require(request.user, Permission.PLAYBOOK_ARM)
    found = one_playbook(name)
    form = ModeForm(
        request.POST or None,
        expected=name,
        label=f"Type {name} to confirm",
        initial={"mode": found.mode},
    )
    if request.method == "POST" and form.is_valid():
        values = form.cleaned_data
        try:
            view, changed = set_mode(
                name=name, mode=values["mode"], actor=acting(request), reason=values["reason"]
            )
        except DomainError as error:
            form.add_refusal(error)
        else:
            words = "is now" if changed else "was already"
            messages.success(request, f"{view.title} {words}: {view.mode_label.lower()}.", "ok")
            return redirect("playbook", name=name)
    context = {"playbook": found, "form": form}
    return render_form(request, "capacity/playbook_mode.html", context)


@page("GET")
def playbook_run(request: HttpRequest, name: str, run_id: int) -> HttpResponseBase:
    """One run: the signal against its levels, every act with its effect, and undo."""
    require(request.user, Permission.VIEW_ALL)
    detail = one_run(run_id, name=name)
    context = {
        "detail": detail,
        "run": detail.run,
        "chart": timeline(detail),
        "samples": _samples(detail),
        "acts": [{"act": act, "effects": _effects(act)} for act in detail.acts],
        "may_undo": can(request.user, Permission.ACT) and detail.run.ended_at is None,
        "may_approve": can(request.user, Permission.PLAYBOOK_ARM),
        "is_over": detail.run.ended_at is not None,
    }
    return render(request, "capacity/playbook_run.html", "live", context)


@page("POST")
def undo(request: HttpRequest, name: str, run_id: int) -> HttpResponseBase:
    """Take back everything the run has done, at once."""
    require(request.user, Permission.ACT)
    one_run(run_id, name=name)
    _, changed = undo_run(run_id=run_id, actor=acting(request))
    if changed:
        text = "Undone. This playbook leaves the subject alone for 15 minutes."
        messages.success(request, text, "ok")
    else:
        messages.warning(request, "The run had ended already: nothing was changed.", "warn")
    return redirect("playbook_run", name=name, run_id=run_id)


@page("POST")
def approve(request: HttpRequest, name: str, run_id: int) -> HttpResponseBase:
    """Let a run that asks first do what it proposes."""
    require(request.user, Permission.PLAYBOOK_ARM)
    one_run(run_id, name=name)
    try:
        _, changed = approve_run(run_id=run_id, actor=acting(request))
    except Conflict as error:
        messages.warning(request, f"{error.message} {error.hint}".strip(), "warn")
    else:
        text = "Approved: it acts until its signal ends." if changed else "It was approved before."
        messages.success(request, text, "ok")
    return redirect("playbook_run", name=name, run_id=run_id)


def _samples(detail: RunDetail) -> list[dict[str, Any]]:
    newest = detail.samples[-SHOWN_SAMPLES:]
    return [
        {"at": datetime.fromtimestamp(at_s, UTC), "value": value}
        for at_s, value in reversed(newest)
    ]


_EFFECTS = (
    ("ttft_p95_s", "TTFT p95, ms", 1000.0, 0),
    ("refused_per_min", "Refused, req/min", 1.0, 0),
    ("requests_per_min", "Ended, req/min", 1.0, 0),
    ("kv_max_ratio", "KV max, %", 100.0, 0),
    ("waiting", "Waiting in engines", 1.0, 0),
)


def _effects(act: ActView) -> list[dict[str, Any]]:
    """Each figure over all traffic before the act and now, or when it was undone."""
    return [
        {
            "name": name,
            "before": _scaled(act.before.get(key), scale, places),
            "after": _scaled(act.after.get(key), scale, places),
        }
        for key, name, scale, places in _EFFECTS
    ]


def _scaled(value: float | None, scale: float, places: int) -> str:
    return "—" if value is None else f"{value * scale:,.{places}f}"

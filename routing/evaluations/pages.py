"""Evaluations: which model was found good enough to stand in for which, by whom and how."""

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect

from console.accounts.person import acting
from console.accounts.selectors import Permission, can, require
from console.errors import DomainError
from console.web.forms import ServiceForm
from console.web.htmx import render, render_form
from console.web.keyset import parse_id
from console.web.tables import Column, number, pager
from console.web.views import page
from routing.evaluations.selectors import evaluations as listed
from routing.evaluations.services import record_evaluation, withdraw_evaluation

COLUMNS = (
    Column("Evaluation", meaning="The name that a policy's fallbacks give it"),
    Column("Asked for"),
    Column("Stands in"),
    number("Score", meaning="From 0 to 1: the share of cases that went as well"),
    Column("State"),
    Column("Compared", meaning="Which cases, by what measure"),
    Column("By"),
    Column("Recorded"),
    Column("", meaning="Acts"),
)


class EvaluationForm(ServiceForm):
    """One evaluation."""

    model = forms.CharField(label="Asked for", max_length=200, help_text="The model's name.")
    stands_in = forms.CharField(
        label="Stands in", max_length=200, help_text="The model that may answer in its place."
    )
    score_ratio = forms.FloatField(
        label="Score",
        min_value=0,
        max_value=1,
        help_text="From 0 to 1: the share of cases that went as well.",
    )
    note = forms.CharField(
        label="Compared", max_length=400, help_text="Which cases, by what measure."
    )


@page("GET", query=("after",))
def evaluations(request: HttpRequest) -> HttpResponseBase:
    """Newest first, withdrawn ones too."""
    require(request.user, Permission.VIEW_ALL)
    rows = listed(before_id=parse_id(request.GET.get("after")))
    context = {
        "page": rows,
        "pager": pager(request, rows, "rows"),
        "columns": COLUMNS,
        "may_act": can(request.user, Permission.POLICY_PUBLISH),
    }
    return render(request, "routing/evaluations.html", "rows", context)


@page("GET", "POST")
def new_evaluation(request: HttpRequest) -> HttpResponseBase:
    """Record one."""
    require(request.user, Permission.POLICY_PUBLISH)
    form = EvaluationForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            made = record_evaluation(**form.cleaned_data, actor=acting(request))
        except DomainError as error:
            form.add_refusal(error)
        else:
            text = f"Recorded as {made.name}: name it in a policy's fallbacks of {made.model}."
            messages.success(request, text, "ok")
            return redirect("evaluations")
    return render_form(request, "routing/new_evaluation.html", {"form": form})


@page("POST")
def withdraw(request: HttpRequest, evaluation_id: int) -> HttpResponseBase:
    """Let one count no more."""
    require(request.user, Permission.POLICY_PUBLISH)
    view, changed = withdraw_evaluation(evaluation_id=evaluation_id, actor=acting(request))
    if changed:
        text = f"Withdrawn: {view.name}. Fallbacks that name it end within seconds."
        messages.success(request, text, "ok")
    else:
        messages.warning(request, f"{view.name} was withdrawn already.", "warn")
    return redirect("evaluations")

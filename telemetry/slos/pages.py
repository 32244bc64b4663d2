"""How much budget is left? Objectives with their burn, and the form that states one."""

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect

from console.accounts.person import acting
from console.accounts.selectors import Permission, can, require
from console.errors import DomainError
from console.web.forms import ServiceForm, WholeNumberField
from console.web.htmx import render, render_form
from console.web.tables import Column, number
from console.web.views import page
from routing.contracts.enums import WorkClass
from telemetry.models.slo import METRICS
from telemetry.slos import selectors, services
from telemetry.stats.burn import Judged, budget_left, lasts_min

_COLUMNS = (
    Column("Objective", meaning="Model and class; the most specific one judges a request"),
    Column("Promise"),
    Column("State"),
    number("Budget left", "% of 30 d", "Of the bad requests that the promise allows"),
    number("Lasts", "", "Until the budget is spent, at the burn of the last hour"),
    number("Kept", "% last 1 h", "Of judged requests; failures and shed ones are not kept"),
    number("Burn", "x, 1 h", "1 spends the 30-day budget evenly"),
    number("Burn", "x, 6 h"),
    number("Judged", "last 1 h"),
    Column("", meaning="Act"),
)


class ObjectiveForm(ServiceForm):
    """One objective; the same class and model again changes it."""

    model = forms.CharField(required=False, max_length=200, help_text="Empty: any model.")
    work_class = forms.ChoiceField(
        label="Class",
        required=False,
        choices=[("", "any class"), *((item.value, item.value) for item in WorkClass)],
    )
    metric = forms.ChoiceField(choices=METRICS)
    threshold_ms = WholeNumberField(
        label="Within, ms", min_value=1, max_value=600_000, help_text="500 suits interactive TTFT."
    )
    target_percent = forms.FloatField(
        label="Target, %", min_value=50, max_value=99.99, help_text="Of requests; 99 is usual."
    )

    def add_refusal(self, error: DomainError) -> None:
        """The form asks for per cent, the service for a ratio."""
        if error.field == "target_ratio":
            error.field = "target_percent"
        super().add_refusal(error)


@page("GET")
def slo(request: HttpRequest) -> HttpResponseBase:
    """Objectives, the most general first."""
    require(request.user, Permission.VIEW_ALL)
    spent = selectors.budgets()
    found = selectors.states(selectors.objectives())
    context = {
        "rows": [_row(one, spent.get(one.objective.id, Judged())) for one in found],
        "columns": _COLUMNS,
        "may_act": can(request.user, Permission.ACT),
    }
    return render(request, "telemetry/slo.html", "content", context)


@page("GET", "POST")
def set_objective(request: HttpRequest) -> HttpResponseBase:
    """State an objective, prefilled from the address when one is to be changed."""
    require(request.user, Permission.ACT)
    if request.method == "POST":
        form = ObjectiveForm(request.POST)
        if form.is_valid():
            values = dict(form.cleaned_data)
            ratio = values.pop("target_percent") / 100
            actor = acting(request)
            try:
                services.set_objective(**values, target_ratio=ratio, actor=actor)
            except DomainError as error:
                form.add_refusal(error)
            else:
                messages.success(request, "Objective stated: it judges from this minute on.", "ok")
                return redirect("slo")
    else:
        names = ("model", "work_class", "metric", "threshold_ms", "target_percent")
        given = {name: request.GET[name][:200] for name in names if name in request.GET}
        form = ObjectiveForm(initial={"target_percent": 99, **given})
    return render_form(request, "telemetry/set_objective.html", {"form": form})


@page("GET", "POST")
def remove_objective(request: HttpRequest, objective_id: int) -> HttpResponseBase:
    """Ask, then remove it."""
    require(request.user, Permission.ACT)
    found = selectors.objective(objective_id)
    if request.method == "POST":
        actor = acting(request)
        services.remove_objective(objective_id=objective_id, actor=actor)
        messages.success(request, f"No longer promised: {found.label}.", "ok")
        return redirect("slo")
    return render(request, "telemetry/remove_objective.html", "", {"objective": found})


def _row(state: selectors.ObjectiveState, budget: Judged) -> dict[str, object]:
    left = budget_left(budget, state.objective.target_ratio)
    lasts = lasts_min(left, state.burn_1h)
    return {
        "left_ratio": left,
        "lasts_s": None if lasts is None else lasts * 60,
        "state": state,
        "hour": state.windows[60],
        "burn_6h": _burn_6h(state),
        "is_below": state.burn_1h is not None and state.burn_1h > 1,
    }


def _burn_6h(state: selectors.ObjectiveState) -> float | None:
    judged = state.windows[360]
    if not judged.total:
        return None
    return judged.bad / judged.total / (1 - state.objective.target_ratio)

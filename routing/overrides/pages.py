"""Overrides: what stands above the policy now, who set it and when it ends; setting and lifting."""

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect

from console.accounts.person import acting
from console.accounts.selectors import Permission, can, require
from console.errors import DomainError
from console.web.forms import ServiceForm, WholeNumberField
from console.web.htmx import render, render_form
from console.web.keyset import parse_id
from console.web.tables import Column, pager
from console.web.views import page
from routing.contracts.enums import WorkClass
from routing.contracts.override import OverrideKind
from routing.overrides.rules import DEFAULT_HOLD_S, MAX_TOKENS, Wanted
from routing.overrides.selectors import obedience
from routing.overrides.selectors import overrides as listed_overrides
from routing.overrides.services import apply_override, lift_override

COLUMNS = (
    Column("Override"),
    Column("State"),
    Column("Ends", meaning="By itself, at the gateways, whoever is alive then"),
    Column("Set"),
    Column("By"),
    Column("Reason", meaning="Callers that it touches read this"),
    Column("", meaning="Acts"),
)
_KINDS = (
    (OverrideKind.PAUSE, "Pause a class"),
    (OverrideKind.SHED, "Admit only a share of a class"),
    (OverrideKind.OUTPUT_CAP, "Cap output tokens of a class"),
    (OverrideKind.CONTEXT_CAP, "Cap prompt tokens of a tenant"),
    (OverrideKind.CONCURRENCY_CAP, "Cap concurrency of a tenant"),
)


class OverrideForm(ServiceForm):
    """One override."""

    kind = forms.ChoiceField(label="What", choices=[(kind.value, text) for kind, text in _KINDS])
    work_class = forms.ChoiceField(
        label="Class",
        required=False,
        choices=[("", "—"), *((item.value, item.value) for item in reversed(WorkClass))],
        help_text="For the first three.",
    )
    model = forms.CharField(required=False, max_length=200, help_text="Empty: every model.")
    tenant = forms.CharField(required=False, max_length=63, help_text="Its slug, for the last two.")
    amount = WholeNumberField(
        required=False,
        min_value=0,
        max_value=MAX_TOKENS,
        help_text="Tokens, or requests at once, of a cap.",
    )
    admitted_ratio = forms.FloatField(
        label="Admitted share",
        required=False,
        min_value=0,
        max_value=1,
        help_text="From 0 to below 1, of a class of which only a share is admitted.",
    )
    hold_s = WholeNumberField(
        label="Lasts, s", initial=DEFAULT_HOLD_S, help_text="10 to 86,400; then it ends by itself."
    )
    reason = forms.CharField(max_length=300, help_text="Callers that it touches read this.")

    def wanted(self) -> Wanted:
        """The validated override."""
        values = self.cleaned_data
        return Wanted(
            kind=OverrideKind(values["kind"]),
            tenant=values["tenant"].strip(),
            work_class=WorkClass(values["work_class"]) if values["work_class"] else None,
            model=values["model"].strip(),
            amount=values["amount"] or 0,
            admitted_ratio=values["admitted_ratio"],
        )


@page("GET", query=("after", "all"))
def overrides(request: HttpRequest) -> HttpResponseBase:
    """Those in force, or with `all` those that have ended too."""
    require(request.user, Permission.VIEW_ALL)
    shows_all = bool(request.GET.get("all"))
    rows = listed_overrides(only_active=not shows_all, before_id=parse_id(request.GET.get("after")))
    context = {
        "page": rows,
        "pager": pager(request, rows, "rows"),
        "columns": COLUMNS,
        "shows_all": shows_all,
        "obedience": obedience(),
        "may_act": can(request.user, Permission.ACT),
    }
    return render(request, "routing/overrides.html", "rows", context)


@page("GET", "POST")
def new_override(request: HttpRequest) -> HttpResponseBase:
    """Set one by hand."""
    require(request.user, Permission.ACT)
    form = OverrideForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            made = apply_override(
                wanted=form.wanted(),
                hold_s=form.cleaned_data["hold_s"],
                reason=form.cleaned_data["reason"],
                actor=acting(request),
            )
        except DomainError as error:
            form.add_refusal(error)
        else:
            text = f"In force: {made.words}. Gateways apply it within a second."
            messages.success(request, text, "ok")
            return redirect("overrides")
    context = {"form": form}
    return render_form(request, "routing/new_override.html", context)


@page("POST")
def lift(request: HttpRequest, override_id: int) -> HttpResponseBase:
    """End one now."""
    require(request.user, Permission.ACT)
    view, changed = lift_override(override_id=override_id, actor=acting(request))
    if changed:
        messages.success(request, f"Lifted: {view.words}.", "ok")
    else:
        messages.warning(request, f"It had ended already: {view.words}.", "warn")
    return redirect("overrides")

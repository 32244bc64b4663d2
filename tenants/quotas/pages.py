"""Limits of a tenant: set one, remove one."""

from collections.abc import Mapping
from datetime import datetime

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone

from console.accounts.person import acting
from console.accounts.selectors import Permission, require
from console.errors import DomainError
from console.web import units
from console.web.forms import ServiceForm, WholeNumberField
from console.web.htmx import render_form
from console.web.views import page
from routing.contracts.enums import Dimension, LimitScope, WindowKind, WorkClass
from tenants.directory.access import open_tenant
from tenants.directory.selectors import TenantView
from tenants.quotas.rules import OWN_SCOPES
from tenants.quotas.selectors import (
    LimitView,
    keys_to_limit,
    limits,
    returns_in_all,
    returns_today,
    window_of,
)
from tenants.quotas.services import set_limit
from tenants.quotas.words import NAMES, amount_of, subject_of, title_of

_WINDOWS = {
    WindowKind.MINUTE: "per minute",
    WindowKind.DAY: "per day",
    WindowKind.WEEK: "per week",
    WindowKind.MONTH: "per month",
    WindowKind.NOW: "at once (concurrency, KV tokens)",
}
_SCOPES = {
    LimitScope.TENANT: "whole tenant",
    LimitScope.KEY: "one key",
    LimitScope.TENANT_MODEL: "one model",
    LimitScope.TENANT_CLASS: "one class",
    LimitScope.RESOURCE: "one resource",
}


class LimitForm(ServiceForm):
    """One bound. Spend is typed in USD, everything else as a whole number; empty removes it."""

    scope = forms.ChoiceField(
        label="For", choices=[(scope.value, word) for scope, word in _SCOPES.items()]
    )
    dimension = forms.ChoiceField(
        label="Of",
        choices=[
            (item.value, f"{NAMES[item]} (USD)" if item is Dimension.SPEND_NANOUSD else NAMES[item])
            for item in Dimension
        ],
    )
    window = forms.ChoiceField(
        label="Over", choices=[(window.value, word) for window, word in _WINDOWS.items()]
    )
    anchor_day = WholeNumberField(
        label="Beginning on day",
        required=False,
        min_value=1,
        max_value=31,
        help_text="Of the month (a shorter one: its last day), or 1 Monday to 7 Sunday; empty: "
        "as the calendar.",
    )
    anchor_time = forms.CharField(
        label="Beginning at",
        required=False,
        max_length=5,
        help_text="Local time of the tenant, such as 10:00; empty: midnight.",
    )
    amount = forms.CharField(
        label="At most",
        required=False,
        max_length=24,
        help_text="0 allows nothing; empty removes the limit.",
    )
    key_id = forms.TypedChoiceField(
        label="Key", required=False, coerce=int, empty_value=None, help_text="For one key."
    )
    model = forms.CharField(required=False, max_length=200, help_text="For one model.")
    work_class = forms.ChoiceField(
        label="Class",
        required=False,
        choices=[("", "-"), *((item.value, item.value) for item in WorkClass)],
        help_text="For one class.",
    )
    resource = forms.CharField(
        required=False, max_length=100, help_text="For one resource, such as vector_query."
    )

    def __init__(self, *args: object, keys: Mapping[int, str], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["key_id"]
        if isinstance(field, forms.TypedChoiceField):
            field.choices = [("", "-"), *keys.items()]

    def clean(self) -> dict[str, object]:
        """The amount in the unit of its dimension, None for an empty one."""
        cleaned = dict(super().clean() or {})
        text = str(cleaned.get("amount") or "")
        cleaned["model"] = cleaned.get("model") or None
        is_money = cleaned.get("dimension") == Dimension.SPEND_NANOUSD.value
        is_empty = not text.replace(",", "").strip()
        try:
            cleaned["amount"] = None if is_empty else units.parse_amount(text, is_money=is_money)
        except ValueError:
            self.add_error("amount", "Write a plain number, such as 100.00 or 150000.")
        return cleaned


@page("GET", "POST")
def edit_limits(request: HttpRequest, slug: str) -> HttpResponseBase:
    """Set a limit; the present ones stand beside the form."""
    tenant = open_tenant(request.user, slug, Permission.TENANT_MANAGE_LIMITS)
    keys = keys_to_limit(tenant.id)
    form = LimitForm(request.POST or None, keys=keys)
    if request.method == "POST" and form.is_valid():
        try:
            if form.cleaned_data["scope"] not in OWN_SCOPES:  # the tenant's own people ask for it
                require(request.user, Permission.QUOTA_GRANT)
            set_limit(tenant_id=tenant.id, actor=acting(request), **form.cleaned_data)
        except DomainError as error:
            form.add_refusal(error)
        else:
            messages.success(request, _done(form, tenant), "ok")
            return redirect("edit_limits", slug=slug)
    returns = returns_today(tenant.id)
    now_ms = int(timezone.now().timestamp() * 1000)
    context = {
        "tenant": tenant,
        "area": "",
        "form": form,
        "returns": returns,
        "returns_in_all": returns_in_all(returns or []),
        "limits": [
            {
                "title": title_of(limit),
                "subject": subject_of(limit, keys),
                "amount": amount_of(limit, limit.amount),
                "unit": "USD" if limit.dimension is Dimension.SPEND_NANOUSD else "",
                "resets_at": _resets_at(limit, tenant.timezone, now_ms),
            }
            for limit in limits(tenant.id)
        ],
    }
    return render_form(request, "tenants/limits.html", context)


def _resets_at(limit: LimitView, zone: str, now_ms: int) -> datetime | None:
    """End of its window; None for what is counted at once, and for minutes."""
    window = window_of(limit, zone, now_ms)
    return None if window is None or limit.window is WindowKind.MINUTE else window[1]


def _done(form: LimitForm, tenant: TenantView) -> str:
    act = "removed" if form.cleaned_data["amount"] is None else "set"
    return f"Limit {act} for {tenant.slug}. Gateways apply it within a second."

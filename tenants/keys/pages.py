"""A tenant's API keys: issue, rotate, revoke. A secret is shown once, in the answer itself."""

import secrets
from collections.abc import Sequence
from datetime import datetime

from django import forms
from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone

from console.accounts.person import acting
from console.accounts.selectors import Permission, can
from console.errors import DomainError
from console.web import units
from console.web.forms import ServiceForm, TypedConfirmation
from console.web.htmx import render, render_form
from console.web.keyset import DEFAULT_LIMIT, cut, parse_id
from console.web.tables import Column, number, pager
from console.web.views import page
from routing.contracts.enums import WorkClass
from routing.contracts.snapshot import ALL_MODELS
from tenants.directory.access import open_tenant
from tenants.directory.selectors import TenantView, projects
from tenants.keys.labels import a_priced_model
from tenants.keys.rules import DEFAULT_GRACE_S, OFFERED_GRACES_S
from tenants.keys.selectors import KeyView, traffic_of
from tenants.keys.selectors import key as one_key
from tenants.keys.selectors import keys as listed_keys
from tenants.keys.services import IssuedKey, issue_key, revoke_key, rotate_key

TYPED_CHARS = 4
COLUMNS = (
    Column("Key"),
    number("Id", meaning="What limits and filters call the key"),
    Column("Name"),
    Column("State"),
    Column("Project"),
    Column("Models"),
    Column("Class"),
    number("Requests", "24 h", meaning="Calls with this key in the last 24 hours"),
    Column("Issued"),
    Column("Ends"),
    Column("", meaning="Acts"),
)


class IssueForm(ServiceForm):
    """A new key. With its `idempotency_key` a repeated submit gives the same secret again."""

    name = forms.CharField(max_length=120, help_text="What uses it.")
    project_id = forms.TypedChoiceField(label="Project", coerce=int)
    allowed_models = forms.CharField(
        label="Models",
        max_length=4000,
        initial=ALL_MODELS,
        help_text="Names with commas, or * for all of the tenant's.",
    )
    work_class = forms.ChoiceField(
        label="Class",
        required=False,
        choices=[("", "tenant's default"), *((item.value, item.value) for item in WorkClass)],
    )
    expires_at = forms.DateTimeField(
        label="Ends",
        required=False,
        help_text="UTC; empty: never.",
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}),
    )
    idempotency_key = forms.CharField(widget=forms.HiddenInput, min_length=8, max_length=200)

    def __init__(self, *args: object, tenant: TenantView, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["project_id"]
        if isinstance(field, forms.TypedChoiceField):
            field.choices = [(item.id, item.slug) for item in projects(tenant.id)]

    def clean_allowed_models(self) -> list[str]:
        """The names; blanks between commas do not count."""
        listed = str(self.cleaned_data["allowed_models"]).split(",")
        return [name.strip() for name in listed if name.strip()]


class RotateForm(ServiceForm):
    """A new secret for a key, and how long the earlier one works."""

    grace_s = forms.TypedChoiceField(
        label="The present secret works for another",
        coerce=int,
        choices=[(s, units.seconds(s) if s else "0 s: it ends now") for s in OFFERED_GRACES_S],
        initial=DEFAULT_GRACE_S,
    )
    idempotency_key = forms.CharField(widget=forms.HiddenInput, min_length=8, max_length=200)


class RevokeForm(TypedConfirmation):
    """Revoking asks for the last characters of the key's prefix and a reason."""

    reason = forms.CharField(max_length=400)


@page("GET", query=("after",))
def keys(request: HttpRequest, slug: str, area: str) -> HttpResponseBase:
    """Keys, newest first. `area` is the prefix of the page names that links stay in."""
    tenant = open_tenant(request.user, slug)
    before_id = parse_id(request.GET.get("after"))
    rows = listed_keys(tenant.id, before_id=before_id, limit=DEFAULT_LIMIT + 1)
    lines = cut(rows, DEFAULT_LIMIT, lambda line: line.id)
    now = timezone.now()
    traffic = traffic_of(tenant.id, [line.id for line in lines.rows], now)
    context = {
        **_frame(request, tenant, area),
        "page": lines,
        "pager": pager(request, lines, "rows"),
        "columns": COLUMNS,
        "rows": [
            {"key": line, "state": state_of(line, now), "traffic": traffic.get(line.id)}
            for line in lines.rows
        ],
    }
    return render(request, "tenants/keys.html", "rows", context)


@page("GET", "POST")
def issue(request: HttpRequest, slug: str, area: str) -> HttpResponseBase:
    """Issue a key; the answer holds its secret, once."""
    tenant = open_tenant(request.user, slug, Permission.TENANT_MANAGE_KEYS)
    form = IssueForm(request.POST or None, tenant=tenant, initial=_once())
    if request.method == "POST" and form.is_valid():
        try:
            issued = issue_key(tenant_id=tenant.id, actor=acting(request), **form.cleaned_data)
        except DomainError as error:
            form.add_refusal(error)
        else:
            allowed = form.cleaned_data["allowed_models"]
            return _shown_once(request, tenant, area, issued, form.cleaned_data["name"], allowed)
    context = {**_frame(request, tenant, area), "form": form}
    return render_form(request, "tenants/issue_key.html", context)


@page("GET", "POST")
def rotate(request: HttpRequest, slug: str, area: str, key_id: int) -> HttpResponseBase:
    """Give a key a new secret; the answer holds it, once."""
    tenant = open_tenant(request.user, slug, Permission.TENANT_MANAGE_KEYS)
    key = one_key(tenant.id, key_id)
    form = RotateForm(request.POST or None, initial=_once())
    if request.method == "POST" and form.is_valid():
        try:
            issued = rotate_key(
                tenant_id=tenant.id, key_id=key.id, actor=acting(request), **form.cleaned_data
            )
        except DomainError as error:
            form.add_refusal(error)
        else:
            return _shown_once(request, tenant, area, issued, key.name, key.allowed_models)
    context = {**_frame(request, tenant, area), "form": form, "key": key}
    return render_form(request, "tenants/rotate_key.html", context)


@page("GET", "POST")
def revoke(request: HttpRequest, slug: str, area: str, key_id: int) -> HttpResponseBase:
    """End a key; asks to type the last characters of its prefix."""
    tenant = open_tenant(request.user, slug, Permission.TENANT_MANAGE_KEYS)
    key = one_key(tenant.id, key_id)
    last = key.prefix[-TYPED_CHARS:]
    form = RevokeForm(request.POST or None, expected=last, label=f"Type {last} to confirm")
    if request.method == "POST" and form.is_valid():
        revoke_key(
            tenant_id=tenant.id,
            key_id=key.id,
            actor=acting(request),
            reason=form.cleaned_data["reason"],
        )
        messages.success(request, f"Key {key.prefix} is revoked.", "ok")
        return redirect(f"{area}keys", slug=slug)
    context = {
        **_frame(request, tenant, area),
        "form": form,
        "key": key,
        "last": last,
        "traffic": traffic_of(tenant.id, [key.id], timezone.now(), grain="m").get(key.id),
    }
    return render_form(request, "tenants/revoke_key.html", context)


def state_of(key: KeyView, now: datetime) -> str:
    """Word of a key's state: `revoked`, `expired`, `rotating` (two secrets work) or `live`."""
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is not None and key.expires_at <= now:
        return "expired"
    if key.previous_until is not None and key.previous_until > now:
        return "rotating"
    return "live"


def _frame(request: HttpRequest, tenant: TenantView, area: str) -> dict[str, object]:
    return {
        "tenant": tenant,
        "area": area,
        "home": reverse(f"{area}tenant", kwargs={"slug": tenant.slug}),
        "keys_url": reverse(f"{area}keys", kwargs={"slug": tenant.slug}),
        "issue_url": reverse(f"{area}issue_key", kwargs={"slug": tenant.slug}),
        "may_manage": can(request.user, Permission.TENANT_MANAGE_KEYS, tenant.id),
    }


def _once() -> dict[str, str]:
    return {"idempotency_key": secrets.token_urlsafe(16)}


def _shown_once(
    request: HttpRequest,
    tenant: TenantView,
    area: str,
    issued: IssuedKey,
    name: str,
    allowed: Sequence[str],
) -> HttpResponseBase:
    context = {
        **_frame(request, tenant, area),
        "issued": issued,
        "name": name,
        "gateway_url": settings.GATEWAY_URL.rstrip("/"),
        "model": _example_model(allowed, tenant.allowed_models),
    }
    return render(request, "tenants/key_secret.html", "", context)


def _example_model(of_key: Sequence[str], of_tenant: Sequence[str]) -> str:
    """A model that the key may ask for: one that is named, else one with a price, else none."""
    for name in (*of_key, *of_tenant):
        if name != ALL_MODELS and _allows(of_key, name) and _allows(of_tenant, name):
            return name
    if not (ALL_MODELS in of_key and ALL_MODELS in of_tenant):
        return ""
    return a_priced_model()


def _allows(names: Sequence[str], name: str) -> bool:
    return ALL_MODELS in names or name in names

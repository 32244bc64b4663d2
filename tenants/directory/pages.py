"""Tenants: the list, a new one, suspending and restoring."""

from zoneinfo import available_timezones

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect

from console.accounts.person import acting
from console.accounts.selectors import Permission, can, require, visible_tenant_ids
from console.errors import DomainError, NotFound
from console.web.forms import ServiceForm, TypedConfirmation
from console.web.htmx import render
from console.web.keyset import DEFAULT_LIMIT, cut
from console.web.tables import Column, pager
from console.web.views import page
from routing.contracts.enums import WorkClass
from routing.contracts.snapshot import ALL_MODELS
from tenants.directory.access import open_tenant
from tenants.directory.selectors import TenantView, tenant_by_slug
from tenants.directory.selectors import tenants as listed_tenants
from tenants.directory.services import create_tenant, restore_tenant, suspend_tenant

MAX_SLUG_CHARS = 63
COLUMNS = (
    Column("Tenant"),
    Column("Name"),
    Column("State"),
    Column("Default class"),
    Column("Models"),
    Column("Time zone", meaning="Windows of its limits are cut in this zone"),
    Column("Since"),
)


class TenantForm(ServiceForm):
    """A new tenant."""

    slug = forms.SlugField(
        max_length=MAX_SLUG_CHARS, help_text="In addresses, in small letters; never changes."
    )
    name = forms.CharField(max_length=200)
    timezone = forms.ChoiceField(
        label="Time zone",
        choices=lambda: [(zone, zone) for zone in sorted(available_timezones())],
        initial="UTC",
        help_text="Days, weeks and months of its limits.",
    )
    default_class = forms.ChoiceField(
        choices=[(item.value, item.value) for item in WorkClass], initial=WorkClass.STANDARD.value
    )
    allowed_models = forms.CharField(
        max_length=4000, initial=ALL_MODELS, help_text="Names with commas, or * for all."
    )

    def clean_allowed_models(self) -> list[str]:
        """The names; blanks between commas do not count."""
        listed = str(self.cleaned_data["allowed_models"]).split(",")
        return [name.strip() for name in listed if name.strip()]


class SuspendForm(TypedConfirmation):
    """Suspending asks for the slug and a reason."""

    reason = forms.CharField(max_length=400)


@page("GET", query=("from", "after"))
def tenants(request: HttpRequest) -> HttpResponseBase:
    """Tenants by slug. `from` starts the list at a slug, so that one of many is found at once."""
    require(request.user, Permission.VIEW_ALL)
    start = request.GET.get("from", "").strip().lower()[:MAX_SLUG_CHARS]
    after = request.GET.get("after", "")[:MAX_SLUG_CHARS]
    rows = _listed(visible_tenant_ids(request.user), start, after)
    lines = cut(rows, DEFAULT_LIMIT, lambda line: line.slug)
    context = {
        "page": lines,
        "pager": pager(request, lines, "rows"),
        "columns": COLUMNS,
        "start": start,
        "may_manage": can(request.user, Permission.MANAGE_TENANTS),
    }
    return render(request, "tenants/tenants.html", "rows", context)


@page("GET", "POST")
def new_tenant(request: HttpRequest) -> HttpResponseBase:
    """Create a tenant with its default project."""
    require(request.user, Permission.MANAGE_TENANTS)
    form = TenantForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            create_tenant(**form.cleaned_data, actor=acting(request))
        except DomainError as error:
            form.add_refusal(error)
        else:
            messages.success(request, f"Tenant {form.cleaned_data['slug']} exists.", "ok")
            return redirect("tenant", slug=form.cleaned_data["slug"])
    status = 422 if form.errors else 200
    return render(request, "tenants/new_tenant.html", "", {"form": form}, status=status)


@page("GET", "POST")
def suspend(request: HttpRequest, slug: str) -> HttpResponseBase:
    """Refuse a tenant's requests at every gateway; asks to type its slug."""
    require(request.user, Permission.MANAGE_TENANTS)
    tenant = open_tenant(request.user, slug)
    form = SuspendForm(
        request.POST or None, expected=tenant.slug, label=f"Type {tenant.slug} to confirm"
    )
    if request.method == "POST" and form.is_valid():
        suspend_tenant(
            tenant_id=tenant.id, actor=acting(request), reason=form.cleaned_data["reason"]
        )
        messages.success(request, f"Tenant {tenant.slug} is suspended.", "warn")
        return redirect("tenant", slug=slug)
    context = {"form": form, "tenant": tenant}
    return render(request, "tenants/suspend.html", "", context, status=422 if form.errors else 200)


@page("POST")
def restore(request: HttpRequest, slug: str) -> HttpResponseBase:
    """Serve a suspended tenant again."""
    require(request.user, Permission.MANAGE_TENANTS)
    tenant = open_tenant(request.user, slug)
    restore_tenant(tenant_id=tenant.id, actor=acting(request))
    messages.success(request, f"Tenant {tenant.slug} is served again.", "ok")
    return redirect("tenant", slug=slug)


def _listed(visible: frozenset[int] | None, start: str, after: str) -> list[TenantView]:
    """One row more than a page, from `start` on, itself included, or behind `after`."""
    if after or not start:
        return listed_tenants(visible, after_slug=after, limit=DEFAULT_LIMIT + 1)
    try:
        named = tenant_by_slug(start)
    except NotFound:
        first = []
    else:
        first = [named] if visible is None or named.id in visible else []
    return first + listed_tenants(visible, after_slug=start, limit=DEFAULT_LIMIT + 1 - len(first))

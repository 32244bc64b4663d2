"""Tenants: a new one, suspending and restoring."""

from zoneinfo import available_timezones

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect

from console.accounts.person import acting
from console.accounts.selectors import Permission, require
from console.errors import DomainError
from console.web.forms import ServiceForm, TypedConfirmation
from console.web.htmx import render_form
from console.web.views import page
from routing.contracts.enums import WorkClass
from routing.contracts.snapshot import ALL_MODELS
from tenants.directory.access import open_tenant
from tenants.directory.services import create_tenant, restore_tenant, suspend_tenant

MAX_SLUG_CHARS = 63


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
    return render_form(request, "tenants/new_tenant.html", {"form": form})


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
    return render_form(request, "tenants/suspend.html", context)


@page("POST")
def restore(request: HttpRequest, slug: str) -> HttpResponseBase:
    """Serve a suspended tenant again."""
    require(request.user, Permission.MANAGE_TENANTS)
    tenant = open_tenant(request.user, slug)
    restore_tenant(tenant_id=tenant.id, actor=acting(request))
    messages.success(request, f"Tenant {tenant.slug} is served again.", "ok")
    return redirect("tenant", slug=slug)

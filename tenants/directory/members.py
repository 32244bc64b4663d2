"""Members of a tenant, for operators below `/tenants/` and for its own admins below `/t/`."""

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse

from console.accounts.person import acting, signed_in
from console.accounts.selectors import (
    Permission,
    can,
    may_reach_everybody,
    person_named,
)
from console.errors import DomainError
from console.web.forms import ServiceForm
from console.web.htmx import render, render_form
from console.web.keyset import DEFAULT_LIMIT, cut
from console.web.tables import Column, pager
from console.web.views import page
from tenants.directory.access import open_tenant, open_to_add
from tenants.directory.inviting import open_invitations
from tenants.directory.selectors import TenantView, member
from tenants.directory.selectors import members as listed_members
from tenants.directory.services import add_member, change_member_role, remove_member
from tenants.models import MemberRole

MAX_NAME_CHARS = 254  # the longest e-mail address
COLUMNS = (
    Column("Person"),
    Column("E-mail", meaning="Shown to operators, and to each person its own"),
    Column("Role"),
    Column("State"),
    Column("Member since"),
    Column("", meaning="Acts"),
)
INVITATION_COLUMNS = (
    Column("Invited"),
    Column("Role"),
    Column("By"),
    Column("Since"),
    Column("Works until", "UTC"),
    Column("", meaning="Acts"),
)


class MemberForm(ServiceForm):
    """An existing person, and a role."""

    person = forms.CharField(
        label="User name or e-mail",
        max_length=MAX_NAME_CHARS,
        help_text="Of a person that exists already.",
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    role = forms.ChoiceField(choices=MemberRole.choices, initial=MemberRole.VIEWER)


class RoleForm(ServiceForm):
    """A member's role."""

    role = forms.ChoiceField(choices=MemberRole.choices)


class RemoveForm(ServiceForm):
    """Why a person is taken out."""

    reason = forms.CharField(max_length=400)


@page("GET")
def members(request: HttpRequest, slug: str, area: str) -> HttpResponseBase:
    """Members by user name. `area` is the prefix of the page names that links stay in."""
    tenant = open_tenant(request.user, slug)
    after = request.GET.get("after", "")[:MAX_NAME_CHARS]
    rows = listed_members(
        tenant.id, viewer=signed_in(request), after_username=after, limit=DEFAULT_LIMIT + 1
    )
    lines = cut(rows, DEFAULT_LIMIT, lambda line: line.username)
    frame_of = frame(request, tenant, area)
    context = {
        **frame_of,
        "page": lines,
        "pager": pager(request, lines, "rows"),
        "columns": COLUMNS,
        "invitations": open_invitations(tenant.id) if frame_of["may_manage"] else [],
        "invitation_columns": INVITATION_COLUMNS,
    }
    return render(request, "tenants/members.html", "rows", context)


@page("GET", "POST")
def add(request: HttpRequest, slug: str, area: str) -> HttpResponseBase:
    """Give an existing person a role in the tenant, unasked: operators and admins alone."""
    tenant = open_to_add(request.user, slug)
    form = MemberForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        asked = form.cleaned_data
        try:
            add_member(
                tenant_id=tenant.id,
                user_id=person_named(asked["person"]),
                role=asked["role"],
                actor=acting(request),
            )
        except DomainError as error:
            error.field = {"user_id": "person"}.get(error.field, error.field)
            form.add_refusal(error)
        else:
            messages.success(request, f"{asked['person']} is a member of {slug}.", "ok")
            return redirect(f"{area}members", slug=slug)
    context = {**frame(request, tenant, area), "form": form}
    return render_form(request, "tenants/add_member.html", context)


@page("GET", "POST")
def change(request: HttpRequest, slug: str, area: str, user_id: int) -> HttpResponseBase:
    """Change a member's role; the last tenant admin keeps it."""
    tenant = open_tenant(request.user, slug, Permission.TENANT_MANAGE_MEMBERS)
    found = member(tenant.id, user_id)
    form = RoleForm(request.POST or None, initial={"role": found.role})
    if request.method == "POST" and form.is_valid():
        try:
            change_member_role(
                tenant_id=tenant.id,
                user_id=user_id,
                actor=acting(request),
                role=form.cleaned_data["role"],
            )
        except DomainError as error:
            form.add_refusal(error)
        else:
            messages.success(request, f"The role of {found.username} is changed.", "ok")
            return redirect(f"{area}members", slug=slug)
    context = {**frame(request, tenant, area), "form": form, "member": found}
    return render_form(request, "tenants/change_member.html", context)


@page("GET", "POST")
def remove(request: HttpRequest, slug: str, area: str, user_id: int) -> HttpResponseBase:
    """Take a person out of the tenant; the last tenant admin stays."""
    tenant = open_tenant(request.user, slug, Permission.TENANT_MANAGE_MEMBERS)
    found = member(tenant.id, user_id)
    form = RemoveForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            remove_member(
                tenant_id=tenant.id,
                user_id=user_id,
                actor=acting(request),
                reason=form.cleaned_data["reason"],
            )
        except DomainError as error:
            form.add_refusal(error)
        else:
            messages.success(request, f"{found.username} is no member of {slug} now.", "ok")
            if not can(request.user, Permission.TENANT_VIEW, tenant.id):
                return redirect("me")  # one took oneself out: the tenant is not found any more
            return redirect(f"{area}members", slug=slug)
    context = {**frame(request, tenant, area), "form": form, "member": found}
    return render_form(request, "tenants/remove_member.html", context)


def frame(request: HttpRequest, tenant: TenantView, area: str) -> dict[str, object]:
    """What every page about members shows: the tenant, ways back, and what the caller may do."""
    return {
        "tenant": tenant,
        "area": area,
        "home": reverse(f"{area}tenant", kwargs={"slug": tenant.slug}),
        "members_url": reverse(f"{area}members", kwargs={"slug": tenant.slug}),
        "add_url": reverse(f"{area}add_member", kwargs={"slug": tenant.slug}),
        "invite_url": reverse(f"{area}invite_member", kwargs={"slug": tenant.slug}),
        "may_add": may_reach_everybody(request.user),
        "may_manage": can(request.user, Permission.TENANT_MANAGE_MEMBERS, tenant.id),
    }

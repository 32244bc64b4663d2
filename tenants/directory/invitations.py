"""Pages of invitations: a tenant's admin sends one, the named person takes it."""

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse

from console.accounts.person import acting, signed_in
from console.accounts.selectors import Permission
from console.errors import DomainError
from console.web.forms import ServiceForm
from console.web.htmx import render, render_form
from console.web.views import page
from tenants.directory.access import open_tenant
from tenants.directory.inviting import accept, invitation, invitation_to, invite, withdraw
from tenants.directory.members import MAX_NAME_CHARS, frame
from tenants.directory.rules import DEFAULT_INVITED_DAYS, MOST_INVITED_DAYS
from tenants.models import MemberRole


class InviteForm(ServiceForm):
    """Who is invited, to what, and for how long the link works."""

    person = forms.CharField(
        label="User name or e-mail",
        max_length=MAX_NAME_CHARS,
        help_text="Only this person can use the link.",
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    role = forms.ChoiceField(choices=MemberRole.choices, initial=MemberRole.VIEWER)
    days = forms.IntegerField(
        label="Link works for, days",
        min_value=1,
        max_value=MOST_INVITED_DAYS,
        initial=DEFAULT_INVITED_DAYS,
    )


@page("GET", "POST")
def invite_member(request: HttpRequest, slug: str, area: str) -> HttpResponseBase:
    """Invite a person; the answer shows the link, once."""
    tenant = open_tenant(request.user, slug, Permission.TENANT_MANAGE_MEMBERS)
    form = InviteForm(request.POST or None)
    context = frame(request, tenant, area)
    if request.method == "POST" and form.is_valid():
        try:
            issued = invite(
                tenant_id=tenant.id,
                invited_by=signed_in(request).pk,
                actor=acting(request),
                **form.cleaned_data,
            )
        except DomainError as error:
            form.add_refusal(error)
        else:
            path = reverse("invitation", kwargs={"secret": issued.secret})
            shown = {"invitation": issued.invitation, "link": request.build_absolute_uri(path)}
            return render(request, "tenants/invitation_link.html", "", {**context, **shown})
    context["form"] = form
    return render_form(request, "tenants/invite_member.html", context)


@page("GET", "POST")
def withdraw_invitation(
    request: HttpRequest, slug: str, area: str, invitation_id: int
) -> HttpResponseBase:
    """End an invitation that nobody has used yet."""
    tenant = open_tenant(request.user, slug, Permission.TENANT_MANAGE_MEMBERS)
    found = invitation(tenant.id, invitation_id)
    if request.method == "POST":
        withdraw(tenant_id=tenant.id, invitation_id=invitation_id, actor=acting(request))
        messages.success(request, f"The invitation of {found.person} is withdrawn.", "ok")
        return redirect(f"{area}members", slug=slug)
    context = {**frame(request, tenant, area), "invitation": found}
    return render(request, "tenants/withdraw_invitation.html", "", context)


@page("GET", "POST")
def answer_invitation(request: HttpRequest, secret: str) -> HttpResponseBase:
    """What the link of an invitation opens: the named person joins, or leaves it."""
    person = signed_in(request)
    if request.method == "POST":
        joined = accept(user=person, user_id=person.pk, secret=secret, actor=acting(request))
        words = f"You are a member of {joined.tenant_name}: {joined.role_label.lower()}."
        messages.success(request, words, "ok")
        return redirect("own_tenant", slug=joined.tenant)
    found = invitation_to(person, secret)
    return render(request, "tenants/invitation.html", "", {"invitation": found})

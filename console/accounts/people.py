"""People for admins: the list, a new person, role and grants, suspending, sessions, passwords."""

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect

from console.accounts.person import acting
from console.accounts.selectors import (
    Permission,
    PersonView,
    people,
    person,
    require,
    tokens_of,
)
from console.accounts.services import (
    change_role,
    create_user,
    end_sessions,
    restore_user,
    set_password,
    suspend_user,
)
from console.errors import DomainError
from console.models import Grant, Role
from console.web.forms import ServiceForm, TypedConfirmation
from console.web.htmx import render, render_form
from console.web.keyset import DEFAULT_LIMIT, cut
from console.web.tables import Column, number, pager
from console.web.views import page

MAX_NAME_CHARS = 150
MAX_PASSWORD_CHARS = 256  # bounds what is hashed
MAX_REASON_CHARS = 400
COLUMNS = (
    Column("Person"),
    Column("E-mail"),
    Column("Role"),
    Column("Grants", meaning="Acts that an operator needs a grant for; admins hold all of them"),
    Column("State"),
    number("Tenants", meaning="Memberships"),
    number("Tokens", meaning="Live API tokens, which act as this person"),
    Column("Last sign-in"),
    Column("Since"),
)
NEW_PASSWORD = {"autocomplete": "new-password"}


class RoleForm(ServiceForm):
    """A console role, and grants that count while it is operator."""

    role = forms.ChoiceField(
        choices=Role.choices,
        help_text="Without a role a person sees only the tenants that list it as a member.",
    )
    grants = forms.MultipleChoiceField(
        choices=Grant.choices,
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text="Only operators need them; admins hold all.",
    )


class PersonForm(RoleForm):
    """A new person."""

    username = forms.CharField(
        label="User name",
        max_length=MAX_NAME_CHARS,
        help_text="Letters, digits and @ . + - _ only.",
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    email = forms.EmailField(label="E-mail", max_length=254, required=False)
    password = forms.CharField(
        label="First password",
        max_length=MAX_PASSWORD_CHARS,
        strip=False,
        widget=forms.PasswordInput(attrs=NEW_PASSWORD),
        help_text="At least 12 characters. Hand it over safely; it can be changed under Profile.",
    )
    field_order = ("username", "email", "password", "role", "grants")


class ChangeRoleForm(RoleForm):
    """Another role or other grants, and why."""

    reason = forms.CharField(max_length=MAX_REASON_CHARS)


class ReasonForm(ServiceForm):
    """Why."""

    reason = forms.CharField(max_length=MAX_REASON_CHARS)


class SuspendForm(TypedConfirmation):
    """Suspending asks for the user name and a reason."""

    reason = forms.CharField(max_length=MAX_REASON_CHARS)


class SetPasswordForm(ReasonForm):
    """A password chosen by an admin for somebody who has lost theirs."""

    password = forms.CharField(
        label="New password",
        max_length=MAX_PASSWORD_CHARS,
        strip=False,
        widget=forms.PasswordInput(attrs=NEW_PASSWORD),
        help_text="At least 12 characters.",
    )
    field_order = ("password", "reason")


@page("GET")
def people_list(request: HttpRequest) -> HttpResponseBase:
    """People by user name. `from` starts the list at a name."""
    require(request.user, Permission.MANAGE_ROLES)
    start = request.GET.get("from", "").strip()[:MAX_NAME_CHARS]
    after = request.GET.get("after", "")[:MAX_NAME_CHARS]
    rows = people(from_username=start, after_username=after, limit=DEFAULT_LIMIT + 1)
    lines = cut(rows, DEFAULT_LIMIT, lambda line: line.username)
    context = {
        "page": lines,
        "pager": pager(request, lines, "rows"),
        "columns": COLUMNS,
        "start": start,
    }
    return render(request, "console/people.html", "rows", context)


@page("GET", "POST")
def new_person(request: HttpRequest) -> HttpResponseBase:
    """Create a person with role and grants."""
    require(request.user, Permission.MANAGE_ROLES)
    form = PersonForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            user_id = create_user(**form.cleaned_data, actor=acting(request))
        except DomainError as error:
            form.add_refusal(error)
        else:
            messages.success(request, f"{form.cleaned_data['username']} can sign in.", "ok")
            return redirect("person", user_id=user_id)
    return render_form(request, "console/new_person.html", {"form": form})


@page("GET", "POST")
def one_person(request: HttpRequest, user_id: int) -> HttpResponseBase:
    """A person: facts, role and grants, tokens without their secrets, and acts."""
    require(request.user, Permission.MANAGE_ROLES)
    found = person(user_id)
    held = {"role": found.role, "grants": list(found.grants)}
    form = ChangeRoleForm(request.POST or None, initial=held)
    if request.method == "POST" and form.is_valid():
        try:
            change_role(user_id=user_id, actor=acting(request), **form.cleaned_data)
        except DomainError as error:
            form.add_refusal(error)
        else:
            messages.success(request, f"The role of {found.username} is changed.", "ok")
            return redirect("person", user_id=user_id)
    context = {"person": found, "form": form, "tokens": tokens_of(user_id)}
    return render_form(request, "console/person.html", context)


@page("GET", "POST")
def suspend(request: HttpRequest, user_id: int) -> HttpResponseBase:
    """Refuse a person; asks to type the user name."""
    require(request.user, Permission.MANAGE_ROLES)
    found = person(user_id)
    form = SuspendForm(
        request.POST or None, expected=found.username, label=f"Type {found.username} to confirm"
    )
    return _act(
        request,
        found,
        form,
        "console/suspend_person.html",
        lambda asked: suspend_user(user_id=user_id, actor=acting(request), reason=asked["reason"]),
        f"{found.username} is suspended.",
    )


@page("GET", "POST")
def restore(request: HttpRequest, user_id: int) -> HttpResponseBase:
    """Let a suspended person in again."""
    require(request.user, Permission.MANAGE_ROLES)
    found = person(user_id)
    return _act(
        request,
        found,
        ReasonForm(request.POST or None),
        "console/restore_person.html",
        lambda asked: restore_user(user_id=user_id, actor=acting(request), **asked),
        f"{found.username} may sign in again.",
    )


@page("GET", "POST")
def sign_out(request: HttpRequest, user_id: int) -> HttpResponseBase:
    """End a person's sessions."""
    require(request.user, Permission.MANAGE_ROLES)
    found = person(user_id)
    return _act(
        request,
        found,
        ReasonForm(request.POST or None),
        "console/end_sessions.html",
        lambda asked: end_sessions(user_id=user_id, actor=acting(request), **asked),
        f"{found.username} is signed out everywhere.",
    )


@page("GET", "POST")
def give_password(request: HttpRequest, user_id: int) -> HttpResponseBase:
    """Give a person another password; every session ends."""
    require(request.user, Permission.MANAGE_ROLES)
    found = person(user_id)
    return _act(
        request,
        found,
        SetPasswordForm(request.POST or None),
        "console/set_password.html",
        lambda asked: set_password(user_id=user_id, actor=acting(request), **asked),
        f"{found.username} has another password.",
    )


def _act(
    request: HttpRequest,
    found: PersonView,
    form: ServiceForm,
    template: str,
    act: Callable[[dict[str, Any]], object],
    done: str,
) -> HttpResponseBase:
    """One dialog: shown, refused at its fields, or done and back to the person."""
    if request.method == "POST" and form.is_valid():
        try:
            act(form.cleaned_data)
        except DomainError as error:
            form.add_refusal(error)
        else:
            messages.success(request, done, "ok")
            return redirect("person", user_id=found.id)
    context = {"form": form, "person": found}
    return render_form(request, template, context)

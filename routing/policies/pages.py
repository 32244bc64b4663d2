"""Policies: what is live, who runs it, publishing a document, rolling back."""

from django import forms
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect

from console.accounts.person import acting
from console.accounts.selectors import Permission, can, require
from console.errors import DomainError
from console.web.forms import TypedConfirmation
from console.web.htmx import render, render_form
from console.web.keyset import DEFAULT_LIMIT, cut, parse_id
from console.web.tables import Column, number, pager
from console.web.views import page
from routing.policies import text
from routing.policies.editor import tell
from routing.policies.rules.document import in_order
from routing.policies.selectors import PolicyVersionView, acks, draft, live
from routing.policies.selectors import policies as listed_policies
from routing.policies.selectors import policy as one_policy
from routing.policies.selectors import version as one_version
from routing.policies.selectors import versions as listed_versions
from routing.policies.services import roll_back

VERSION_COLUMNS = (
    Column("Version"),
    Column("State"),
    Column("Published"),
    Column("By"),
    Column("Note"),
    Column("Digest"),
    Column("", meaning="Acts"),
)
ACK_COLUMNS = (
    Column("Gateway"),
    Column("Runs"),
    number("Snapshot"),
    Column("State"),
    number("Last word"),
)


class RollBackForm(TypedConfirmation):
    """Rolling back asks for the policy's name; a reason may be given."""

    note = forms.CharField(required=False, max_length=400)
    base = forms.IntegerField(widget=forms.HiddenInput)


@page("GET")
def policies(request: HttpRequest) -> HttpResponseBase:
    """Every policy with its live version, and what each gateway runs."""
    require(request.user, Permission.VIEW_ALL)
    context = {
        "policies": listed_policies(),
        "acks": acks(),
        "ack_columns": ACK_COLUMNS,
        "may_publish": can(request.user, Permission.POLICY_PUBLISH),
    }
    return render(request, "routing/policies.html", "content", context)


@page("GET", query=("after",))
def policy(request: HttpRequest, name: str) -> HttpResponseBase:
    """One policy: versions, newest first, and who acknowledged the newest snapshot."""
    require(request.user, Permission.VIEW_ALL)
    found = one_policy(name)
    before = parse_id(request.GET.get("after"))
    rows = listed_versions(name, before_number=before, limit=DEFAULT_LIMIT + 1)
    lines = cut(rows, DEFAULT_LIMIT, lambda line: line.number)
    context = {
        "policy": found,
        "draft": draft(name),
        "page": lines,
        "pager": pager(request, lines, "rows"),
        "version_columns": VERSION_COLUMNS,
        "acks": acks(),
        "ack_columns": ACK_COLUMNS,
        "may_publish": can(request.user, Permission.POLICY_PUBLISH),
    }
    return render(request, "routing/policy.html", "rows", context)


@page("GET")
def policy_version(request: HttpRequest, name: str, number: int) -> HttpResponseBase:
    """One immutable version, and how it differs from the live one."""
    require(request.user, Permission.VIEW_ALL)
    found = one_version(name, number)
    current = live(name)
    told = acks()
    context = {
        "version": found,
        "acks": told if found.is_live else told.of(found.label),
        "ack_columns": ACK_COLUMNS,
        "document": text.to_text(in_order(found.document)),
        "live": current,
        "changes": _between(current, found.document),
        "may_publish": can(request.user, Permission.POLICY_PUBLISH),
    }
    return render(request, "routing/policy_version.html", "", context)


@page("GET", "POST")
def roll_back_policy(request: HttpRequest, name: str, number: int) -> HttpResponseBase:
    """Publish an earlier version again; asks to type the policy's name."""
    require(request.user, Permission.POLICY_PUBLISH)
    target, current = one_version(name, number), live(name)
    form = RollBackForm(
        request.POST or None,
        expected=name,
        label=f"Type {name} to confirm",
        initial={"base": current.number if current else None},
    )
    if request.method == "POST" and form.is_valid():
        try:
            published = roll_back(
                policy=name,
                number=number,
                base=form.cleaned_data["base"],
                note=form.cleaned_data["note"],
                actor=acting(request),
            )
        except DomainError as error:
            form.add_refusal(error)
        else:
            tell(request, published, form.cleaned_data["base"])
            return redirect("policy", name=name)
    context = {
        "version": target,
        "live": current,
        "form": form,
        "changes": _between(current, target.document),
    }
    return render_form(request, "routing/roll_back.html", context)


def _between(
    current: PolicyVersionView | None, document: dict[str, object]
) -> text.Comparison | None:
    """From the live version to `document`; nothing while no version is live."""
    return text.compare(current.document, document) if current else None

"""Hooks: what they are, which policies name them and how they do; adding, changing, removing."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect

from console.accounts.person import acting
from console.accounts.selectors import Permission, can, require
from console.errors import DomainError
from console.web.forms import ServiceForm
from console.web.htmx import render, render_form
from console.web.tables import Column
from console.web.views import page
from routing.contracts.hooks import ENTRY_POINTS, HookKind
from routing.hooks import selectors
from routing.hooks.services import add_hook, change_hook, remove_hook

COLUMNS = (
    Column("Hook"),
    Column("State", meaning="At the living gateways, of which each counts since it started"),
    Column("Named by", meaning="Lines of live policies"),
    Column("Calls", is_number=True),
    Column("Refused", is_number=True),
    Column("Failed", is_number=True, meaning="Late, unreachable or wrong answers"),
    Column("Skipped", is_number=True, meaning="Not asked, because it kept failing"),
    Column("p95", is_number=True, meaning="Of the last five to ten minutes"),
    Column("Last failure"),
)
_KINDS = ((HookKind.WEBHOOK.value, "Webhook"), (HookKind.PYTHON.value, "Python entry point"))
_SIGNS = "Signs each call (HMAC-SHA256). Kept encrypted and never shown again."


class HookForm(ServiceForm):
    """One hook; of a known one its kind decides which fields there are."""

    name = forms.CharField(max_length=40, help_text="Policies say it: small letters, digits and -.")
    kind = forms.ChoiceField(choices=_KINDS)
    url = forms.CharField(
        label="Address",
        required=False,
        max_length=500,
        help_text="Of a webhook, such as https://guard.example.com/check.",
    )
    secret = forms.CharField(
        label="Signing secret",
        required=False,
        max_length=200,
        widget=forms.PasswordInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
        help_text=f"Of a webhook, 16 characters or more. {_SIGNS}",
    )
    entry_point = forms.CharField(
        label="Entry point",
        required=False,
        max_length=80,
        help_text=f"Of a Python hook: its name in the group {ENTRY_POINTS} of a package.",
    )
    purpose = forms.CharField(required=False, max_length=200, help_text="For people who read this.")

    def __init__(self, *args: Any, known: selectors.HookView | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if known is None:
            return
        is_webhook = known.kind == HookKind.WEBHOOK
        gone = ("entry_point",) if is_webhook else ("url", "secret")
        for name in ("name", "kind", *gone):
            del self.fields[name]
        self.fields["url" if is_webhook else "entry_point"].required = True
        if is_webhook:
            self.fields["secret"].help_text = f"Empty keeps the present one. {_SIGNS}"


@page("GET")
def hooks(request: HttpRequest) -> HttpResponseBase:
    """All of them, and how they do."""
    require(request.user, Permission.VIEW_ALL)
    context = {
        "hooks": selectors.hooks(),
        "columns": COLUMNS,
        "may_act": can(request.user, Permission.POLICY_PUBLISH),
    }
    return render(request, "routing/hooks.html", "rows", context)


@page("GET", "POST")
def new_hook(request: HttpRequest) -> HttpResponseBase:
    """Make one known."""
    require(request.user, Permission.POLICY_PUBLISH)
    form = HookForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            made = add_hook(actor=acting(request), **form.cleaned_data)
        except DomainError as error:
            form.add_refusal(error)
        else:
            text = f"{made.name} is known. It is asked once a published policy names it."
            messages.success(request, text, "ok")
            return redirect("hooks")
    context = {"form": form, "hook": None}
    return render_form(request, "routing/hook.html", context)


@page("GET", "POST")
def one_hook(request: HttpRequest, name: str) -> HttpResponseBase:
    """Change one."""
    require(request.user, Permission.POLICY_PUBLISH)
    known = selectors.hook(name)
    form = HookForm(request.POST or None, known=known, initial=_present(known))
    if request.method == "POST" and form.is_valid():
        try:
            change_hook(name=name, actor=acting(request), **form.cleaned_data)
        except DomainError as error:
            form.add_refusal(error)
        else:
            messages.success(request, f"Saved {name}. Gateways follow within a second.", "ok")
            return redirect("hooks")
    context = {"form": form, "hook": known}
    return render_form(request, "routing/hook.html", context)


@page("POST")
def remove(request: HttpRequest, name: str) -> HttpResponseBase:
    """Forget one that no policy names."""
    require(request.user, Permission.POLICY_PUBLISH)
    remove_hook(name=name, actor=acting(request))
    messages.success(request, f"{name} is forgotten, and its secret with it.", "ok")
    return redirect("hooks")


def _present(known: selectors.HookView) -> dict[str, str]:
    return {"url": known.url, "entry_point": known.entry_point, "purpose": known.purpose}

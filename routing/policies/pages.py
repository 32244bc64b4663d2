"""Policies: what is live, who runs it, publishing a document, rolling back."""

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect

from console.accounts.person import acting
from console.accounts.selectors import Permission, can, require
from console.errors import DomainError
from console.web.forms import ServiceForm, TypedConfirmation
from console.web.htmx import render
from console.web.keyset import DEFAULT_LIMIT, cut, parse_id
from console.web.tables import Column, number, pager
from console.web.views import page
from routing.policies import text
from routing.policies.rules.document import digest_of, in_order, to_plain
from routing.policies.rules.validate import Checked
from routing.policies.selectors import PolicyVersionView, acks, live
from routing.policies.selectors import policies as listed_policies
from routing.policies.selectors import policy as one_policy
from routing.policies.selectors import version as one_version
from routing.policies.selectors import versions as listed_versions
from routing.policies.services import (
    PolicyRefused,
    StaleBase,
    check_document,
    publish,
    roll_back,
)

UNREHEARSED = "publish unrehearsed"
FIRST_DOCUMENT: dict[str, object] = {"schema_version": 1, "name": "", "models": {}}
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


class DocumentForm(ServiceForm):
    """A document typed as JSON on top of the live version `base` (empty: there is none)."""

    document = forms.CharField(
        label="Document (JSON)",
        max_length=text.MAX_CHARS,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 28, "spellcheck": "false"}),
    )
    note = forms.CharField(required=False, max_length=400, help_text="Why; kept with the version.")
    confirm = forms.CharField(
        required=False,
        max_length=40,
        label=f"Type {UNREHEARSED} to publish",
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
        help_text="This document was not rehearsed on recorded traffic.",
    )
    base = forms.IntegerField(required=False, widget=forms.HiddenInput)
    meanwhile: StaleBase | None = None

    def add_refusal(self, error: DomainError) -> None:
        """Keep what another person published meanwhile: the page says it in words."""
        if isinstance(error, StaleBase):
            self.meanwhile = error
        super().add_refusal(error)

    def parsed(self) -> dict[str, object] | None:
        """The document as an object; None with an error at the field if it is not one."""
        try:
            return text.parse(str(self.cleaned_data["document"]))
        except DomainError as error:
            self.add_refusal(error)
            return None


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
    context = {
        "version": found,
        "document": text.to_text(in_order(found.document)),
        "live": current,
        "changes": _between(current, found.document),
        "may_publish": can(request.user, Permission.POLICY_PUBLISH),
    }
    return render(request, "routing/policy_version.html", "", context)


@page("GET", "POST")
def edit_policy(request: HttpRequest, name: str) -> HttpResponseBase:
    """Check a document, or publish it as the next version; nothing typed is lost by a refusal."""
    require(request.user, Permission.POLICY_PUBLISH)
    current = live(name)
    form = DocumentForm(request.POST or None, initial=_start(name, current))
    typed = form.parsed() if request.method == "POST" and form.is_valid() else None
    is_publish = request.POST.get("act") == "publish"
    if typed is not None and is_publish and (published := _try_publish(request, name, form, typed)):
        _tell(request, published, form.cleaned_data["base"])
        return redirect("policy", name=name)
    checked = check_document(typed) if typed is not None else None
    findings = checked.findings if checked else ()
    context = {
        "name": name,
        "live": current,
        "form": form,
        "findings": findings,
        "is_checked": checked is not None and not form.errors,
        "refused": sum(finding.level == "refuse" for finding in findings),
        "changes": _planned(current, checked),
        "meanwhile": form.meanwhile,
        "changes_nothing": _changes_nothing(current, checked),
        "next_number": (current.number if current else 0) + 1,
    }
    status = 422 if form.errors or any(f.level == "refuse" for f in findings) else 200
    return render(request, "routing/edit_policy.html", "", context, status=status)


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
            _tell(request, published, form.cleaned_data["base"])
            return redirect("policy", name=name)
    context = {
        "version": target,
        "live": current,
        "form": form,
        "changes": _between(current, target.document),
    }
    return render(
        request, "routing/roll_back.html", "", context, status=422 if form.errors else 200
    )


def _start(name: str, current: PolicyVersionView | None) -> dict[str, object]:
    document = in_order(current.document) if current else {**FIRST_DOCUMENT, "name": name}
    return {"document": text.to_text(document), "base": current.number if current else None}


def _planned(current: PolicyVersionView | None, checked: Checked | None) -> text.Comparison | None:
    """What would change, both sides with their defaults filled in."""
    if checked is None or checked.document is None:
        return None
    return _between(current, to_plain(checked.document))


def _between(
    current: PolicyVersionView | None, document: dict[str, object]
) -> text.Comparison | None:
    """From the live version to `document`; nothing while no version is live."""
    return text.compare(current.document, document) if current else None


def _changes_nothing(current: PolicyVersionView | None, checked: Checked | None) -> bool:
    """Whether publishing what was checked would make no version: it has the live one's effect."""
    if current is None or checked is None or checked.document is None:
        return False
    return digest_of(checked.document) == current.digest


def _tell(request: HttpRequest, published: PolicyVersionView, base: int | None) -> None:
    """Say what publishing did: a version equal to its base is the one that was live before."""
    if published.number == base:
        messages.warning(
            request,
            f"No change: the document has the same effect as {published.label}, which stays live. "
            "Notes alone make no version; this note was not kept.",
            "warn",
        )
    else:
        messages.success(request, f"{published.label} is live.", "ok")


def _try_publish(
    request: HttpRequest, name: str, form: DocumentForm, typed: dict[str, object]
) -> PolicyVersionView | None:
    """The new live version; None with the refusal at its field. Findings are shown by the page."""
    if str(form.cleaned_data["confirm"]).strip() != UNREHEARSED:
        form.add_error("confirm", "That is not it: nothing was published.")
        return None
    try:
        return publish(
            policy=name,
            document=typed,
            base=form.cleaned_data["base"],
            note=form.cleaned_data["note"],
            actor=acting(request),
        )
    except PolicyRefused:
        form.add_error(None, "Nothing was published: the findings above refuse it.")
    except DomainError as error:
        form.add_refusal(error)
    return None

"""Writing a policy: a draft that is saved, checked while it is typed, and published on its base."""

from dataclasses import dataclass

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect

from console.accounts.person import acting
from console.accounts.selectors import Permission, require
from console.errors import DomainError, NotFound
from console.web.forms import ServiceForm
from console.web.htmx import is_partial, render
from console.web.views import page
from routing.policies import text
from routing.policies.rules.document import digest_of, in_order, to_plain
from routing.policies.rules.findings import Finding
from routing.policies.rules.lines import line_of, lines_of
from routing.policies.rules.listing import listed
from routing.policies.rules.validate import Checked
from routing.policies.selectors import DraftView, PolicyVersionView, draft, live, version
from routing.policies.services import (
    DraftChanged,
    PolicyRefused,
    StaleBase,
    check_document,
    discard_draft,
    publish_draft,
    save_draft,
)

FIRST_DOCUMENT: dict[str, object] = {"schema_version": 1, "name": "", "models": {}}


class DocumentForm(ServiceForm):
    """A document typed as JSON on top of version `base` (empty: of none).

    `tag` is the draft that it was read from (empty: there was none).
    """

    document = forms.CharField(
        label="Document (JSON)",
        max_length=text.MAX_CHARS,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 28, "spellcheck": "false"}),
    )
    note = forms.CharField(required=False, max_length=400, help_text="Why; kept with the version.")
    base = forms.IntegerField(required=False, widget=forms.HiddenInput)
    tag = forms.CharField(required=False, max_length=40, widget=forms.HiddenInput)
    meanwhile: StaleBase | None = None
    theirs: DraftChanged | None = None
    status = 422

    def add_refusal(self, error: DomainError) -> None:
        """Keep what another person did meanwhile: the page says it in words."""
        if isinstance(error, StaleBase):
            self.meanwhile, self.status = error, error.status
        if isinstance(error, DraftChanged):
            self.theirs, self.status = error, error.status
            # The page shows what they saved: whoever saves next does it knowingly on top of that.
            self.go_on_from(error.theirs.tag if error.theirs else "")
        super().add_refusal(error)

    def go_on_from(self, tag: str) -> None:
        """Let the page that shows this form stand on another edition of the draft."""
        self.data = {**{name: self.data[name] for name in self.data}, "tag": tag}

    def parsed(self) -> dict[str, object] | None:
        """The document as an object; None with an error at the field if it is not one."""
        try:
            return text.parse(str(self.cleaned_data["document"]))
        except DomainError as error:
            self.add_refusal(error)
            return None


@dataclass(frozen=True, slots=True)
class FindingRow:
    """A finding with the line of the text that it is about; None where that cannot be said."""

    finding: Finding
    line: int | None


@page("GET", "POST")
def edit_policy(request: HttpRequest, name: str) -> HttpResponseBase:
    """The draft: check, save, publish or discard it; nothing typed is lost by a refusal.

    htmx asks for the checks alone while a person types.
    """
    require(request.user, Permission.POLICY_PUBLISH)
    current, kept = live(name), draft(name)
    form = DocumentForm(request.POST or None, initial=_start(name, current, kept))
    if request.method == "POST":
        act = request.POST.get("act", "check")
        if form.is_valid() and act != "check" and (done := _act(request, name, form, act)):
            return done
        kept = draft(name)
    typed = _typed(form)
    checked = check_document(typed) if typed is not None else None
    base = _base(name, form, current)
    context = {
        "name": name,
        "live": current,
        "base": base,
        "draft": kept,
        "form": form,
        **_looked_at(checked, _text(form)),
        "is_checked": checked is not None and not form.errors,
        "changes": _planned(base, checked),
        "is_stale": current is not None and (base is None or base.number != current.number),
        "since_base": text.compare(base.document, current.document) if base and current else None,
        "meanwhile": form.meanwhile,
        "theirs": form.theirs,
        "their_changes": _their_changes(form),
        "changes_nothing": _changes_nothing(current, checked),
        "next_number": (current.number if current else 0) + 1,
    }
    return render(
        request,
        "routing/edit_policy.html",
        "checks",
        context,
        status=_status(request, form, checked),
    )


def _act(request: HttpRequest, name: str, form: DocumentForm, act: str) -> HttpResponseBase | None:
    """Carry a button out: where to go when it is done, None when the page says why not."""
    try:
        if act == "save":
            saved = _save(request, name, form)
            messages.success(request, f"Draft {saved.edition} is saved. Nothing is live.", "ok")
        elif act == "rebase":
            _rebase(request, name, form)
        elif act == "discard":
            discard_draft(policy=name, tag=form.cleaned_data["tag"], actor=acting(request))
            messages.success(request, "The draft is discarded. The live version stays.", "ok")
            return redirect("policy", name=name)
        else:
            return _publish(request, name, form)
    except PolicyRefused:
        form.add_error(None, "Nothing was published: the findings refuse it.")
        return None
    except DomainError as error:
        form.add_refusal(error)
        return None
    return redirect("edit_policy", name=name)


def _save(request: HttpRequest, name: str, form: DocumentForm) -> DraftView:
    return save_draft(
        policy=name,
        text=form.cleaned_data["document"],
        base=form.cleaned_data["base"],
        note=form.cleaned_data["note"],
        tag=form.cleaned_data["tag"],
        actor=acting(request),
    )


def _rebase(request: HttpRequest, name: str, form: DocumentForm) -> None:
    """Stand on the live version: its author has seen what it changed."""
    current = live(name)
    form.cleaned_data["base"] = current.number if current else None
    _save(request, name, form)
    messages.success(
        request,
        f"The draft stands on {current.label if current else 'no version'} now. "
        "What it does not take over, publishing would undo: look at the changes.",
        "ok",
    )


def _publish(request: HttpRequest, name: str, form: DocumentForm) -> HttpResponseBase:
    """Save what was typed and publish it: a refusal leaves it as the draft."""
    saved = _save(request, name, form)
    form.go_on_from(saved.tag)  # should publishing be refused
    published = publish_draft(
        policy=name, tag=saved.tag, note=form.cleaned_data["note"], actor=acting(request)
    )
    tell(request, published, form.cleaned_data["base"])
    return redirect("policy", name=name)


def tell(request: HttpRequest, published: PolicyVersionView, base: int | None) -> None:
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


def _start(
    name: str, current: PolicyVersionView | None, kept: DraftView | None
) -> dict[str, object]:
    if kept is not None:
        return {"document": kept.text, "base": kept.base, "note": kept.note, "tag": kept.tag}
    document = in_order(current.document) if current else {**FIRST_DOCUMENT, "name": name}
    return {"document": text.to_text(document), "base": current.number if current else None}


def _text(form: DocumentForm) -> str:
    """What stands in the text field now."""
    value = form["document"].value()
    return str(value or "")


def _typed(form: DocumentForm) -> dict[str, object] | None:
    """The object in the text field; None with an error there if it is none."""
    if form.is_bound:
        return form.parsed() if "document" in form.cleaned_data else None
    try:
        return text.parse(_text(form))
    except DomainError:
        return None  # a draft that was saved half-written: checking it says the line


def _base(
    name: str, form: DocumentForm, current: PolicyVersionView | None
) -> PolicyVersionView | None:
    """The version that the text stands on."""
    number = form["base"].value()
    if number in (None, ""):
        return None
    if current is not None and str(number) == str(current.number):
        return current
    try:
        return version(name, int(number))
    except (NotFound, ValueError):
        return None


def _looked_at(checked: Checked | None, typed: str) -> dict[str, object]:
    """Findings with their lines, the list of checks, and how many refuse."""
    findings = checked.findings if checked else ()
    lines = lines_of(typed) if findings else {}
    return {
        "findings": [FindingRow(one, line_of(one.path, lines)) for one in findings],
        "checks": listed(checked) if checked else (),
        "refused": sum(one.level == "refuse" for one in findings),
    }


def _planned(base: PolicyVersionView | None, checked: Checked | None) -> text.Comparison | None:
    """What would change against its base, both sides with their defaults filled in."""
    if checked is None or checked.document is None or base is None:
        return None
    return text.compare(base.document, to_plain(checked.document))


def _their_changes(form: DocumentForm) -> list[text.DiffLine]:
    """From what another person saved to what stands here, line by line."""
    theirs = form.theirs.theirs if form.theirs else None
    return text.diff_texts(theirs.text, _text(form)) if theirs else []


def _changes_nothing(current: PolicyVersionView | None, checked: Checked | None) -> bool:
    """Whether publishing what was checked would make no version: it has the live one's effect."""
    if current is None or checked is None or checked.document is None:
        return False
    return digest_of(checked.document) == current.digest


def _status(request: HttpRequest, form: DocumentForm, checked: Checked | None) -> int:
    if request.method == "GET" or is_partial(request):
        return 200  # what is said while a person types is an answer, not a refusal
    is_refused = checked is not None and checked.is_refused
    return form.status if form.errors else 422 if is_refused else 200

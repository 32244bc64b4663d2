"""How fast is each pool, and how do we know? Prior and fitted step times with their errors."""

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect

from capacity.profiles.selectors import ProfileRow, profile_detail, profile_page
from capacity.profiles.services import MAX_REASON_CHARS, set_profile
from capacity.simulation.calibration import ERROR_MOST, WINDOWS_LEAST
from console.accounts.person import acting
from console.accounts.selectors import Permission, can, require
from console.errors import DomainError
from console.web.forms import ServiceForm
from console.web.htmx import render, render_form
from console.web.keyset import DEFAULT_LIMIT
from console.web.tables import Column, number, pager
from console.web.views import page

COLUMNS = (
    Column("Pool"),
    Column("Model"),
    Column("State"),
    Column("Times from"),
    number("One token", meaning="A step that decodes one sequence"),
    number("Windows", meaning="Of a few seconds each, the last that told something"),
    number("Fit's error", "%", "Mean, of the step time, on windows that it had not seen"),
    number("Prior's error", "%", "On the same windows"),
    Column("Last calibration"),
)
TERM_COLUMNS = (
    Column("Term"),
    Column("Time of"),
    Column("Unit"),
    number("Prior"),
    number("In use", meaning="The fitted version"),
    number("Not taken", meaning="The last fit, where it was refused"),
)
VERSION_COLUMNS = (
    Column("Version"),
    Column("When", "UTC"),
    number("Revision", meaning="Of the pool, as it ran"),
    number("Windows"),
    number("Error", "%"),
    number("Prior's error", "%"),
    number("t0", "ms"),
    number("c", "µs"),
    number("d", "ns"),
    number("e", "ns"),
)
SKIPPED_WORDS = {
    "few_steps": "fewer than 20 steps",
    "preempted": "preemptions in them",
    "restarted": "a restart in them",
}


class ProfileForm(ServiceForm):
    """What the operator says of a pool's speed."""

    prior = forms.CharField(
        label="Prior",
        required=False,
        max_length=64,
        help_text="model/gpu/tpN/weights, such as qwen3-32b/h100/tp4/bf16, or a built-in name. "
        "Empty: what the pool's settings name.",
        widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
    is_pinned = forms.BooleanField(label="Keep the prior whatever is fitted", required=False)
    reason = forms.CharField(label="Reason", required=False, max_length=MAX_REASON_CHARS)


@page("GET", query=("after",))
def profiles(request: HttpRequest) -> HttpResponseBase:
    """Every pool: whether its times are fitted, how wrong fit and prior are, and why."""
    require(request.user, Permission.VIEW_ALL)
    rows = profile_page(after=request.GET.get("after"), limit=DEFAULT_LIMIT)
    context = {
        "rows": [{"row": row, "state": _state(row)} for row in rows.rows],
        "columns": COLUMNS,
        "page": rows,
        "pager": pager(request, rows, "rows"),
    }
    return render(request, "capacity/profiles.html", "rows", context)


@page("GET", "POST")
def profile(request: HttpRequest, name: str) -> HttpResponseBase:
    """One pool's terms, its versions, and the operator's word on them."""
    require(request.user, Permission.VIEW_ALL)
    detail = profile_detail(name)
    form = ProfileForm(
        request.POST or None,
        initial={
            "prior": detail.set_prior,
            "is_pinned": detail.row.is_pinned,
            "reason": detail.reason,
        },
    )
    if request.method == "POST":
        require(request.user, Permission.MANAGE_FLEET)
        if form.is_valid():
            try:
                set_profile(pool=name, actor=acting(request), **form.cleaned_data)
            except DomainError as error:
                form.add_refusal(error)
            else:
                who = (
                    "its prior"
                    if form.cleaned_data["is_pinned"]
                    else "its best fit, else its prior"
                )
                text = f"Pool {name} goes by {who}; the next plan uses that."
                messages.success(request, text, "ok")
                return redirect("profile", name=name)
    tone, word = _state(detail.row)
    context = {
        "detail": detail,
        "tone": tone,
        "word": word,
        "from_words": f"version {detail.row.version}" if detail.row.is_fitted else word,
        "from_note": "fitted to what it did" if detail.row.is_fitted else "assumed",
        "form": form,
        "term_columns": TERM_COLUMNS,
        "version_columns": VERSION_COLUMNS,
        "skipped": [(SKIPPED_WORDS.get(why, why), n) for why, n in sorted(detail.skipped.items())],
        "windows_least": WINDOWS_LEAST,
        "error_most": ERROR_MOST,
        "may_set": can(request.user, Permission.MANAGE_FLEET),
    }
    return render_form(request, "capacity/profile.html", context)


def _state(row: ProfileRow) -> tuple[str, str]:
    """Tone and word of a pool's badge."""
    if not row.prior:
        return "stale", "unknown"
    if row.is_pinned:
        return "warn", "pinned"
    if row.is_fitted:
        return "ok", "fitted"
    return "stale", "prior"

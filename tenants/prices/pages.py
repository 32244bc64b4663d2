"""The price book: every version of every model's price, and the next one."""

from datetime import datetime

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone

from console.accounts.person import acting
from console.accounts.selectors import Permission, can, require
from console.errors import DomainError
from console.web import units
from console.web.forms import ServiceForm
from console.web.htmx import render
from console.web.keyset import DEFAULT_LIMIT, cut, parse_id
from console.web.tables import Column, number, pager
from console.web.views import page
from tenants.prices.selectors import PriceView
from tenants.prices.selectors import prices as listed_prices
from tenants.prices.services import add_price

COLUMNS = (
    Column("Model"),
    number("Version"),
    Column("State"),
    number("Input", "USD/M tok"),
    number("Cached input", "USD/M tok"),
    number("Output", "USD/M tok"),
    number("Cache write", "USD/M tok", "— : as input"),
    number("Reasoning", "USD/M tok", "— : as output"),
    number("Image", "USD"),
    Column("Valid from", "UTC"),
    Column("Note"),
)
RATES = ("input_nanousd", "cached_nanousd", "output_nanousd")
OWN_RATES = ("cache_write_nanousd", "reasoning_nanousd", "image_nanousd")  # may be left empty


class PriceForm(ServiceForm):
    """A model's next price, typed in USD per million tokens."""

    model = forms.CharField(max_length=200)
    input_nanousd = forms.CharField(label="Input, USD per million tokens", max_length=24)
    cached_nanousd = forms.CharField(label="Cached input, USD per million tokens", max_length=24)
    output_nanousd = forms.CharField(label="Output, USD per million tokens", max_length=24)
    cache_write_nanousd = forms.CharField(
        label="Cache write, USD per million tokens",
        max_length=24,
        required=False,
        help_text="Empty: as input.",
    )
    reasoning_nanousd = forms.CharField(
        label="Reasoning, USD per million tokens",
        max_length=24,
        required=False,
        help_text="Empty: as output.",
    )
    image_nanousd = forms.CharField(
        label="Image, USD each",
        max_length=24,
        required=False,
        help_text="Besides its tokens; empty: nothing more.",
    )
    valid_from = forms.DateTimeField(
        required=False,
        help_text="UTC; empty: now.",
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}),
    )
    note = forms.CharField(required=False, max_length=200)
    confirm = forms.BooleanField(label="Yes, this unusual rate is meant", required=False)
    is_doubted = False

    def add_refusal(self, error: DomainError) -> None:
        """A doubtful rate is the one refusal that a tick overrules."""
        if error.code == "price_needs_confirmation":
            self.is_doubted = True
            error.hint = "Check the unit, USD per million tokens; tick below if it is meant."
        super().add_refusal(error)

    def clean(self) -> dict[str, object]:
        """Rates in nano-dollars per million tokens."""
        cleaned = dict(super().clean() or {})
        for name in (*RATES, *OWN_RATES):
            if name in OWN_RATES and not cleaned.get(name):
                cleaned[name] = 0 if name == "image_nanousd" else None
                continue
            try:
                cleaned[name] = units.parse_usd(str(cleaned.get(name, "")))
            except ValueError:
                self.add_error(name, "Write dollars, such as 0.60; 0 must be said.")
        return cleaned


@page("GET", query=("model", "after"))
def prices(request: HttpRequest) -> HttpResponseBase:
    """Price rows, newest first."""
    require(request.user, Permission.VIEW_ALL)
    model = request.GET.get("model", "")[:200]
    before_id = parse_id(request.GET.get("after"))
    rows = listed_prices(model=model or None, before_id=before_id, limit=DEFAULT_LIMIT + 1)
    lines = cut(rows, DEFAULT_LIMIT, lambda line: line.id)
    now = timezone.now()
    newest: set[str] = set()
    context = {
        "page": lines,
        "pager": pager(request, lines, "rows"),
        "columns": COLUMNS,
        "rows": [{"price": row, "state": _state(row, now, newest)} for row in lines.rows],
        "model": model,
        "may_manage": can(request.user, Permission.MANAGE_PRICES),
    }
    return render(request, "tenants/prices.html", "rows", context)


@page("GET", "POST")
def new_price(request: HttpRequest) -> HttpResponseBase:
    """Add a price; rows are never edited."""
    require(request.user, Permission.MANAGE_PRICES)
    form = PriceForm(request.POST or None, initial={"model": request.GET.get("model", "")[:200]})
    if request.method == "POST" and form.is_valid():
        try:
            version = add_price(actor=acting(request), **form.cleaned_data)
        except DomainError as error:
            form.add_refusal(error)
        else:
            text = f"Price version {version} of {form.cleaned_data['model']} is in the book."
            messages.success(request, text, "ok")
            return redirect("prices")
    if not form.is_doubted:  # a box that is always there is ticked without reading
        del form.fields["confirm"]
    return render(
        request, "tenants/new_price.html", "", {"form": form}, status=422 if form.errors else 200
    )


def _state(row: PriceView, now: datetime, newest: set[str]) -> str:
    """`next` for a future price, `in force` for the first of a model that began, else `ended`.

    Rows come newest first; `newest` holds the models whose price in force was seen already.
    """
    if row.valid_from > now:
        return "next"
    if row.model in newest:
        return "ended"
    newest.add(row.model)
    return "in force"

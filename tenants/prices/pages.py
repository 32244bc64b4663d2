"""The price book: every version of every model's price, and the next one."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone

from console.accounts.person import acting
from console.accounts.selectors import Permission, can, require
from console.errors import DomainError
from console.web.htmx import render, render_form
from console.web.keyset import DEFAULT_LIMIT, cut, parse_id
from console.web.tables import Column, number, pager
from console.web.views import page
from tenants.prices.forms import AddForm, PoolPriceForm, PriceForm, ResourcePriceForm
from tenants.prices.selectors import (
    PriceView,
    SinglePriceView,
    pool_prices,
    resource_limits,
    resource_prices,
)
from tenants.prices.selectors import prices as listed_prices
from tenants.prices.services import add_pool_price, add_price, add_resource_price

SECONDS_AN_HOUR = 3600
MAX_LIMITS_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Book:
    """One of the books: what it prices, and its pages' url names."""

    tab: str
    title: str
    subject: str
    list_url: str
    new_url: str
    none: str
    footer: str


BOOKS = {
    book.tab: book
    for book in (
        Book(
            "models",
            "Prices",
            "model",
            "prices",
            "new_price",
            "A model without a price cannot be served: 0 must be said.",
            "Requests keep the price that was in force when they started. One rounding a row: up "
            "to the next nano-dollar.",
        ),
        Book(
            "resources",
            "Prices of resources",
            "resource",
            "resource_prices",
            "new_resource_price",
            "A resource is known, and may be used, from its first price on: 0 must be said.",
            "A use keeps the price that it was reserved under.",
        ),
        Book(
            "pools",
            "Prices of GPU-seconds",
            "pool",
            "pool_prices",
            "new_pool_price",
            "Say what a GPU of a pool costs a second, and costs of tokens can be told.",
            "What a pool costs us, used or idle. Nobody is charged by it: callers pay their "
            "model's price.",
        ),
    )
}
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
        "book": BOOKS["models"],
        "books": BOOKS.values(),
        "page": lines,
        "pager": pager(request, lines, "rows"),
        "columns": COLUMNS,
        "rows": [
            {"price": row, "state": _state(row, row.model, now, newest)} for row in lines.rows
        ],
        "model": model,
        "may_manage": can(request.user, Permission.MANAGE_PRICES),
    }
    return render(request, "tenants/prices.html", "rows", context)


@page("GET", "POST")
def new_price(request: HttpRequest) -> HttpResponseBase:
    """Add a price; rows are never edited."""
    require(request.user, Permission.MANAGE_PRICES)
    form = PriceForm(request.POST or None, initial={"model": request.GET.get("model", "")[:200]})
    return _adding(request, form, add_price, "model", {"book": BOOKS["models"]})


def _adding(
    request: HttpRequest,
    form: AddForm,
    add: Callable[..., int],
    subject: str,
    context: dict[str, object],
) -> HttpResponseBase:
    """The form, or the book it was added to."""
    book = context["book"]
    assert isinstance(book, Book)  # noqa: S101 - ours
    if request.method == "POST" and form.is_valid():
        try:
            version = add(actor=acting(request), **form.cleaned_data)
        except DomainError as error:
            form.add_refusal(error)
        else:
            text = f"Price version {version} of {form.cleaned_data[subject]} is in the book."
            messages.success(request, text, "ok")
            return redirect(book.list_url)
    if not form.is_doubted:  # a box that is always there is ticked without reading
        del form.fields["confirm"]
    return render_form(request, "tenants/new_price.html", context | {"form": form})


@page("GET", query=("name", "after"))
def resources(request: HttpRequest) -> HttpResponseBase:
    """What a use of each named resource costs, and who may use how much of it."""
    require(request.user, Permission.VIEW_ALL)
    name = request.GET.get("name", "")[:100]
    limits = resource_limits(name=name or None, limit=MAX_LIMITS_SHOWN + 1)
    columns = (Column("Resource"), number("Version"), Column("State"), number("A use", "USD"))
    more = {
        "limits": limits[:MAX_LIMITS_SHOWN],
        "has_more_limits": len(limits) > MAX_LIMITS_SHOWN,
        "is_hourly": False,
    }
    return _single_book(request, BOOKS["resources"], resource_prices, columns, name, more)


@page("GET", query=("name", "after"))
def pools(request: HttpRequest) -> HttpResponseBase:
    """What a second of a GPU costs in each pool of ours."""
    require(request.user, Permission.VIEW_ALL)
    name = request.GET.get("name", "")[:120]
    columns = (
        Column("Pool"),
        number("Version"),
        Column("State"),
        number("GPU-second", "USD"),
        number("GPU-hour", "USD"),
    )
    more: dict[str, object] = {"is_hourly": True, "limits": None}
    return _single_book(request, BOOKS["pools"], pool_prices, columns, name, more)


def _single_book(
    request: HttpRequest,
    book: Book,
    listed: Callable[..., list[SinglePriceView]],
    columns: tuple[Column, ...],
    name: str,
    more: dict[str, object],
) -> HttpResponseBase:
    before_id = parse_id(request.GET.get("after"))
    rows = listed(name=name or None, before_id=before_id, limit=DEFAULT_LIMIT + 1)
    lines = cut(rows, DEFAULT_LIMIT, lambda line: line.id)
    now = timezone.now()
    newest: set[str] = set()
    context = more | {
        "book": book,
        "books": BOOKS.values(),
        "page": lines,
        "pager": pager(request, lines, "rows"),
        "columns": (*columns, Column("Valid from", "UTC"), Column("Note")),
        "rows": [
            {
                "price": row,
                "state": _state(row, row.name, now, newest),
                "hourly_nanousd": row.nanousd * SECONDS_AN_HOUR,
            }
            for row in lines.rows
        ],
        "name": name,
        "may_manage": can(request.user, Permission.MANAGE_PRICES),
    }
    return render(request, "tenants/single_prices.html", "rows", context)


@page("GET", "POST")
def new_resource_price(request: HttpRequest) -> HttpResponseBase:
    """Add a resource's next price; its first makes it known."""
    require(request.user, Permission.MANAGE_PRICES)
    form = ResourcePriceForm(
        request.POST or None, initial={"resource": request.GET.get("name", "")[:100]}
    )
    context: dict[str, object] = {"book": BOOKS["resources"]}
    return _adding(request, form, add_resource_price, "resource", context)


@page("GET", "POST")
def new_pool_price(request: HttpRequest) -> HttpResponseBase:
    """Add what a GPU-second of a pool costs next."""
    require(request.user, Permission.MANAGE_PRICES)
    form = PoolPriceForm(request.POST or None, initial={"pool": request.GET.get("name", "")[:120]})
    context: dict[str, object] = {"book": BOOKS["pools"]}
    return _adding(request, form, add_pool_price, "pool", context)


def _state(row: PriceView | SinglePriceView, name: str, now: datetime, newest: set[str]) -> str:
    """`next` for a future price, `in force` for the first of a name that began, else `ended`.

    Rows come newest first; `newest` holds the names whose price in force was seen already.
    """
    if row.valid_from > now:
        return "next"
    if name in newest:
        return "ended"
    newest.add(name)
    return "in force"

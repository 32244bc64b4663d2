"""Asking for more: a tenant's own requests, and the operators' list with the fleet beside it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

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
from console.web.htmx import render, render_form
from console.web.keyset import DEFAULT_LIMIT
from console.web.tables import Column, number, pager
from console.web.views import choice, page
from routing.contracts.enums import Dimension
from tenants.directory.access import open_tenant
from tenants.directory.selectors import TenantView
from tenants.models import QuotaRequestState
from tenants.quotas.selectors import LimitView
from tenants.requests.rules import Load
from tenants.requests.selectors import (
    RequestView,
    Room,
    askable_limits,
    one_request,
    present_limit,
    requests_page,
    room_beside,
)
from tenants.requests.services import ask_for_more, grant, refuse, withdraw
from tenants.requests.words import amount, happened, named, typed, unit_of

SHOWN = {
    "open": (QuotaRequestState.OPEN,),
    "decided": tuple(one for one in QuotaRequestState if one is not QuotaRequestState.OPEN),
    "all": (),
}
_LOCAL = {"type": "datetime-local"}
OWN_COLUMNS = (
    Column("Limit"),
    number("Then", meaning="The limit when it was asked for"),
    number("Asked"),
    Column("Until"),
    Column("State"),
    Column("Outcome"),
    Column("Asked by"),
    Column("", meaning="Acts"),
)
COLUMNS = (
    Column("Tenant"),
    Column("Limit"),
    number("Then", meaning="The limit when it was asked for"),
    number("Asked"),
    Column("Until", "UTC"),
    Column("Why"),
    Column("Fleet", meaning="What tenants may take by limits like it, with this one, and the load"),
    Column("State"),
    Column("Asked"),
)


class _AmountForm(ServiceForm):
    """A form with an amount in the unit of a limit, as text."""

    def amount_for(self, limit: LimitView) -> int | None:
        """The amount typed; None with an error at the field."""
        is_money = limit.dimension is Dimension.SPEND_NANOUSD
        try:
            return units.parse_amount(str(self.cleaned_data["amount"]), is_money=is_money)
        except ValueError:
            self.add_error("amount", "Write a plain number, such as 100.00 or 150000.")
            return None


class AskForm(_AmountForm):
    """A higher limit. Spend is typed in USD, everything else as a whole number."""

    limit_id = forms.TypedChoiceField(label="Limit", coerce=int)
    amount = forms.CharField(label="Raise it to", max_length=24, help_text="USD for spend.")
    until = forms.DateTimeField(
        label="Until", required=False, widget=forms.DateTimeInput(attrs=_LOCAL)
    )
    reason = forms.CharField(
        label="Why",
        max_length=400,
        widget=forms.Textarea(attrs={"rows": 3, "class": "short"}),
        help_text="What it is for, and what happens without it.",
    )

    def __init__(
        self, *args: object, limits: Sequence[LimitView], tenant: TenantView, **kwargs: object
    ) -> None:
        super().__init__(*args, **kwargs)
        self._zone = ZoneInfo(tenant.timezone)
        self.fields["until"].help_text = f"{tenant.timezone}; empty: for good."
        field = self.fields["limit_id"]
        if isinstance(field, forms.TypedChoiceField):
            field.choices = [
                (one.id, f"{named(one)}: now {amount(one, one.amount)}") for one in limits
            ]

    def clean_until(self) -> datetime | None:
        """The instant that was meant in the tenant's zone."""
        typed_at: datetime | None = self.cleaned_data["until"]
        return typed_at.replace(tzinfo=self._zone) if typed_at else None


class DecideForm(_AmountForm):
    """How much of it, until when, and why."""

    amount = forms.CharField(label="Grant", required=False, max_length=24)
    ends_at = forms.DateTimeField(
        label="Until",
        required=False,
        help_text="UTC; empty: for good. Then the limit returns to what it is now.",
        widget=forms.DateTimeInput(attrs=_LOCAL, format="%Y-%m-%dT%H:%M"),
    )
    reason = forms.CharField(
        required=False,
        max_length=400,
        widget=forms.Textarea(attrs={"rows": 3, "class": "short"}),
        help_text="The tenant reads it. Needed to refuse.",
    )


@page("GET", query=("after",))
def own_requests(request: HttpRequest, slug: str) -> HttpResponseBase:
    """What this tenant asked for and what became of it, newest first."""
    tenant = open_tenant(request.user, slug)
    found = requests_page(
        tenant_ids=frozenset({tenant.id}), after=request.GET.get("after"), limit=DEFAULT_LIMIT
    )
    context = {
        "tenant": tenant,
        "area": "own_",
        "may_ask": can(request.user, Permission.TENANT_MANAGE_LIMITS, tenant.id),
        "page": found,
        "pager": pager(request, found, "rows"),
        "columns": OWN_COLUMNS,
        "rows": [_row(one) for one in found.rows],
    }
    return render(request, "tenants/requests.html", "rows", context)


@page("GET", "POST", query=("limit",))
def ask(request: HttpRequest, slug: str) -> HttpResponseBase:
    """Ask for a higher limit; `limit` chooses one beforehand."""
    tenant = open_tenant(request.user, slug, Permission.TENANT_MANAGE_LIMITS)
    limits = askable_limits(tenant.id)
    form = AskForm(
        request.POST or None,
        limits=limits,
        tenant=tenant,
        initial={"limit_id": request.GET.get("limit", "")},
    )
    if request.method == "POST" and form.is_valid() and _asked(request, tenant, limits, form):
        return redirect("own_quota_requests", slug=slug)
    context = {"tenant": tenant, "area": "own_", "form": form, "limits": limits}
    return render_form(request, "tenants/ask_for_more.html", context)


@page("POST")
def withdraw_own(request: HttpRequest, slug: str, request_id: int) -> HttpResponseBase:
    """Take an open request back."""
    tenant = open_tenant(request.user, slug, Permission.TENANT_MANAGE_LIMITS)
    withdraw(tenant_id=tenant.id, request_id=request_id, actor=acting(request))
    messages.success(request, "The request is withdrawn. Nothing else changed.", "ok")
    return redirect("own_quota_requests", slug=slug)


@page("GET", query=("after", "state", "tenant"))
def quota_requests(request: HttpRequest) -> HttpResponseBase:
    """Requests of every tenant, the open ones first to see, with the fleet's room beside each."""
    require(request.user, Permission.VIEW_ALL)
    slug = request.GET.get("tenant", "")
    tenant = open_tenant(request.user, slug) if slug else None
    shown = choice(request, "state", SHOWN, "open")
    found = requests_page(
        tenant_ids=frozenset({tenant.id}) if tenant else None,
        after=request.GET.get("after"),
        limit=DEFAULT_LIMIT,
        states=SHOWN[shown],
    )
    rooms = room_beside(found.rows)
    context = {
        "page": found,
        "pager": pager(request, found, "rows"),
        "columns": COLUMNS,
        "rows": [_row(one, rooms.get(one.id)) for one in found.rows],
        "load": _whole_fleet(found.rows, rooms),
        "state": shown,
        "states": tuple(SHOWN),
        "tenant_slug": slug,
    }
    return render(request, "tenants/quota_requests.html", "rows", context)


@page("GET", "POST")
def quota_request(request: HttpRequest, request_id: int) -> HttpResponseBase:
    """One request: what it asks, what the fleet has left, and the decision."""
    require(request.user, Permission.VIEW_ALL)
    found = one_request(request_id, tenant_ids=None)
    may_grant = can(request.user, Permission.QUOTA_GRANT)
    form = DecideForm(
        request.POST or None,
        initial={"amount": typed(found.limit, found.amount_asked), "ends_at": found.until},
    )
    status = 200
    if request.method == "POST":
        require(request.user, Permission.QUOTA_GRANT)
        status = _decide(request, found, form)
        if status == 302:
            return redirect("quota_requests")
        found = one_request(request_id, tenant_ids=None)
    present = present_limit(found)
    context = {
        "row": _row(found, room_beside([found]).get(found.id)),
        "present": amount(present, present.amount) if present else "",
        "form": form,
        "may_grant": may_grant,
        "unit": unit_of(found.limit),
    }
    return render(request, "tenants/quota_request.html", "", context, status=status)


def _asked(
    request: HttpRequest, tenant: TenantView, limits: Sequence[LimitView], form: AskForm
) -> bool:
    """Whether the request was made; its refusal stands at the field otherwise."""
    chosen = next(one for one in limits if one.id == form.cleaned_data["limit_id"])
    asked = form.amount_for(chosen)
    if asked is None:
        return False
    try:
        ask_for_more(
            tenant_id=tenant.id,
            actor=acting(request),
            **{**form.cleaned_data, "amount": asked},
        )
    except DomainError as error:
        form.add_refusal(error)
        return False
    messages.success(
        request,
        f"Asked: {named(chosen)} to {amount(chosen, asked)}. An operator decides; "
        "this page says what they did.",
        "ok",
    )
    return True


def _decide(request: HttpRequest, found: RequestView, form: DecideForm) -> int:
    """Carry the decision out: 302 when done, else the status of the page that says why not."""
    is_grant = request.POST.get("act") == "grant"
    asked = form.amount_for(found.limit) if form.is_valid() and is_grant else None
    if form.errors:
        return 422
    try:
        if is_grant:
            grant(
                request_id=found.id,
                actor=acting(request),
                **{**form.cleaned_data, "amount": asked or 0},
            )
        else:
            refuse(request_id=found.id, reason=form.cleaned_data["reason"], actor=acting(request))
    except DomainError as error:
        form.add_refusal(error)
        return error.status
    decided = one_request(found.id, tenant_ids=None)
    messages.success(request, f"{found.tenant}, {named(found.limit)}: {happened(decided)}", "ok")
    return 302


def _whole_fleet(found: Sequence[RequestView], rooms: Mapping[int, Room]) -> Load | None:
    """The fleet's load, if a request shown is about all models."""
    loads = (rooms[one.id].load for one in found if one.id in rooms and not one.limit.model)
    return next(loads, None)


def _row(found: RequestView, room: Room | None = None) -> dict[str, object]:
    limit = found.limit
    return {
        "request": found,
        "named": named(limit),
        "unit": unit_of(limit),
        "then": amount(limit, found.amount_then),
        "asked": amount(limit, found.amount_asked),
        "happened": happened(found),
        "is_in_force": found.state is QuotaRequestState.GRANTED
        and (found.ends_at is None or found.ends_at > timezone.now()),
        "room": room,
        "promised": amount(limit, room.headroom.promised) if room else "",
        "promised_after": amount(limit, room.headroom.promised_after) if room else "",
        "bound": amount(limit, room.headroom.bound) if room and room.headroom.bound else "",
    }

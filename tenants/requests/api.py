"""REST: tenants ask for more, operators decide.

Counts are integers, money is decimal text under the same name with `_usd`: exactly one is set.
"""

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.selectors import Permission, actor_of, require
from console.errors import InvalidInput
from console.rest.fields import (
    InstantField,
    OfferedField,
    OutSerializer,
    PageQuery,
    StrictInteger,
    StrictSerializer,
    StrictText,
    UsdField,
)
from console.rest.schema import endpoint, page_of
from console.rest.views import Endpoint, shown
from console.web.keyset import Page
from routing.contracts.enums import Dimension, WindowKind, WorkClass
from tenants.directory.access import open_tenant
from tenants.directory.selectors import tenant_by_slug
from tenants.models import ASKED_SCOPES, QuotaRequestState
from tenants.quotas.selectors import LimitView
from tenants.requests import selectors, services
from tenants.requests.words import happened

_STATES = [state.value for state in QuotaRequestState]


class _Counted(serializers.IntegerField):
    """An amount of a limit that counts; null where it is money."""

    def __init__(self, name: str) -> None:
        super().__init__(source="*", allow_null=True, read_only=True)
        self._name = name

    def to_representation(self, value: Any) -> int | None:  # type: ignore[override]
        """The whole number, or null."""
        found: int | None = getattr(value, self._name)
        return None if _is_money(value.limit) else found


class _Money(serializers.CharField):
    """The same for a limit on spend: decimal text of US dollars; null for all others."""

    def __init__(self, name: str) -> None:
        super().__init__(source="*", allow_null=True, read_only=True)
        self._name = name

    def to_representation(self, value: Any) -> str | None:  # type: ignore[override]
        """Decimal text, or null."""
        found: int | None = getattr(value, self._name)
        is_shown = _is_money(value.limit) and found is not None
        return UsdField().to_representation(found) if is_shown else None


class QuotaRequestSerializer(OutSerializer):
    """A request and what became of it; `outcome` says that in a sentence."""

    id = serializers.IntegerField()
    tenant = serializers.CharField()
    limit = serializers.CharField(source="limit.name")
    scope = serializers.CharField(source="limit.scope")
    dimension = serializers.CharField(source="limit.dimension")
    window = serializers.CharField(source="limit.window")
    model = serializers.CharField(source="limit.model", allow_null=True)
    work_class = serializers.CharField(source="limit.work_class")
    resource = serializers.CharField(source="limit.resource")
    amount_then = _Counted("amount_then")
    amount_then_usd = _Money("amount_then")
    amount_asked = _Counted("amount_asked")
    amount_asked_usd = _Money("amount_asked")
    reason = serializers.CharField()
    until = InstantField(allow_null=True)
    asked_by = serializers.CharField()
    created_at = InstantField()
    state = serializers.CharField()
    decided_by = serializers.CharField()
    decided_at = InstantField(allow_null=True)
    decision_reason = serializers.CharField()
    amount_granted = _Counted("amount_granted")
    amount_granted_usd = _Money("amount_granted")
    ends_at = InstantField(allow_null=True)
    ended_at = InstantField(allow_null=True)
    outcome = serializers.SerializerMethodField()

    def get_outcome(self, found: selectors.RequestView) -> str:
        """What became of it; empty while it is open."""
        return happened(found)


class HeadroomSerializer(OutSerializer):
    """The fleet beside an open request, in the unit of its limit (money in nano-dollars).

    `promised`: what all active tenants may take by limits like it; `bound`: what the fleet takes at
    most. Loads are of the replicas that serve the limit's model; null is unknown, never 0.
    """

    tenants = serializers.IntegerField(source="headroom.tenants")
    promised = serializers.IntegerField(source="headroom.promised")
    promised_after = serializers.IntegerField(source="headroom.promised_after")
    bound = serializers.IntegerField(source="headroom.bound", allow_null=True)
    replicas = serializers.IntegerField(source="load.replicas")
    ready_replicas = serializers.IntegerField(source="load.ready_replicas")
    kv_free_tokens = serializers.IntegerField(source="load.kv_free_tokens", allow_null=True)
    kv_tokens = serializers.IntegerField(source="load.kv_tokens", allow_null=True)
    input_tokens_per_min = serializers.IntegerField(
        source="load.input_tokens_per_min", allow_null=True
    )
    output_tokens_per_min = serializers.IntegerField(
        source="load.output_tokens_per_min", allow_null=True
    )


class QuotaCaseSerializer(QuotaRequestSerializer):
    """A request as operators see it; `room` is null once it is decided."""

    room = HeadroomSerializer(allow_null=True)


class AskRequest(StrictSerializer):
    """Which limit, to how much, why, and until when (null: for good)."""

    scope = OfferedField(choices=list(ASKED_SCOPES))
    dimension = OfferedField(choices=[item.value for item in Dimension])
    window = OfferedField(choices=[item.value for item in WindowKind])
    model = StrictText(required=False, max_length=200)
    work_class = OfferedField(required=False, choices=[item.value for item in WorkClass])
    resource = StrictText(required=False, max_length=100)
    amount = StrictInteger(required=False, min_value=1)
    amount_usd = UsdField(required=False)
    reason = StrictText(max_length=400)
    until = InstantField(required=False, allow_null=True)


class GrantRequest(StrictSerializer):
    """How much, at most what was asked, and until when (null: for good)."""

    amount = StrictInteger(required=False, min_value=1)
    amount_usd = UsdField(required=False)
    ends_at = InstantField(required=False, allow_null=True)
    reason = StrictText(max_length=400, required=False, default="", allow_blank=True)


class RefuseRequest(StrictSerializer):
    """Why not; the tenant reads it."""

    reason = StrictText(max_length=400)


class OwnRequestsQuery(PageQuery):
    """Which requests to list."""

    state = OfferedField(required=False, choices=_STATES)


class RequestsQuery(OwnRequestsQuery):
    """Which requests to list, of one tenant or of all."""

    tenant = serializers.SlugField(required=False, max_length=63)


class OwnRequests(Endpoint):
    """A tenant's requests."""

    @endpoint(
        operation_id="tenant_quota_requests_list",
        query=OwnRequestsQuery,
        answer=page_of(QuotaRequestSerializer),
        summary="List a tenant's quota requests",
    )
    def get(self, request: Request, slug: str) -> Response:
        """Newest first."""
        found = open_tenant(self.user, slug)
        page = _page(self.query(OwnRequestsQuery), frozenset({found.id}))
        return Response(
            {
                "items": QuotaRequestSerializer(page.rows, many=True).data,
                "next": page.next_after,
            }
        )

    @endpoint(
        operation_id="tenant_quota_requests_ask",
        request=AskRequest,
        answer=QuotaRequestSerializer,
        status=201,
        summary="Ask for a higher limit",
    )
    def post(self, request: Request, slug: str) -> Response:
        """Ask. One request a limit may be open: a repeated call is 409 `taken`, never a second."""
        found = open_tenant(self.user, slug, Permission.TENANT_MANAGE_LIMITS)
        asked = self.body(AskRequest)
        amounts = {name: asked.pop(name, None) for name in ("amount", "amount_usd")}
        reason, until = asked.pop("reason"), asked.pop("until", None)
        limit = selectors.limit_named(found.id, **asked)
        made = services.ask_for_more(
            tenant_id=found.id,
            limit_id=limit.id,
            amount=_amount(limit, **amounts),
            reason=reason,
            until=until,
            actor=actor_of(self.user),
        )
        own = frozenset({found.id})
        return shown(
            QuotaRequestSerializer, selectors.one_request(made, tenant_ids=own), status=201
        )


class OwnRequest(Endpoint):
    """One of a tenant's requests."""

    @endpoint(
        operation_id="tenant_quota_requests_read",
        answer=QuotaRequestSerializer,
        summary="Read a tenant's quota request",
    )
    def get(self, request: Request, slug: str, request_id: int) -> Response:
        """The request."""
        found = open_tenant(self.user, slug)
        own = frozenset({found.id})
        return shown(QuotaRequestSerializer, selectors.one_request(request_id, tenant_ids=own))


class OwnWithdrawal(Endpoint):
    """Taking a request back."""

    @endpoint(
        operation_id="tenant_quota_requests_withdraw",
        answer=QuotaRequestSerializer,
        summary="Withdraw a quota request",
    )
    def post(self, request: Request, slug: str, request_id: int) -> Response:
        """Withdraw it; 409 `already_decided` says what happened before."""
        found = open_tenant(self.user, slug, Permission.TENANT_MANAGE_LIMITS)
        services.withdraw(tenant_id=found.id, request_id=request_id, actor=actor_of(self.user))
        own = frozenset({found.id})
        return shown(QuotaRequestSerializer, selectors.one_request(request_id, tenant_ids=own))


class Requests(Endpoint):
    """Requests of every tenant."""

    @endpoint(
        operation_id="quota_requests_list",
        query=RequestsQuery,
        answer=page_of(QuotaCaseSerializer),
        summary="List quota requests with the fleet's headroom",
    )
    def get(self, request: Request) -> Response:
        """Newest first; open ones have the fleet's room beside them."""
        require(self.user, Permission.VIEW_ALL)
        asked = self.query(RequestsQuery)
        slug = asked.pop("tenant", "")
        page = _page(asked, frozenset({tenant_by_slug(slug).id}) if slug else None)
        rooms = selectors.room_beside(page.rows)
        return Response(
            {
                "items": [_case(row, rooms.get(row.id)) for row in page.rows],
                "next": page.next_after,
            }
        )


class QuotaRequest(Endpoint):
    """One request."""

    @endpoint(
        operation_id="quota_requests_read",
        answer=QuotaCaseSerializer,
        summary="Read a quota request with the fleet's headroom",
    )
    def get(self, request: Request, request_id: int) -> Response:
        """The request."""
        require(self.user, Permission.VIEW_ALL)
        return _one(request_id)


class Grant(Endpoint):
    """Saying yes."""

    @endpoint(
        operation_id="quota_requests_grant",
        request=GrantRequest,
        answer=QuotaCaseSerializer,
        summary="Grant a quota request",
    )
    def post(self, request: Request, request_id: int) -> Response:
        """Raise the limit, in force within seconds; 409 `already_decided` if another was first."""
        require(self.user, Permission.QUOTA_GRANT)
        asked = self.body(GrantRequest)
        found = selectors.one_request(request_id, tenant_ids=None)
        services.grant(
            request_id=request_id,
            amount=_amount(found.limit, asked.get("amount"), asked.get("amount_usd")),
            ends_at=asked.get("ends_at"),
            reason=asked["reason"],
            actor=actor_of(self.user),
        )
        return _one(request_id)


class Refusal(Endpoint):
    """Saying no."""

    @endpoint(
        operation_id="quota_requests_refuse",
        request=RefuseRequest,
        answer=QuotaCaseSerializer,
        summary="Refuse a quota request",
    )
    def post(self, request: Request, request_id: int) -> Response:
        """Refuse it with a reason; 409 `already_decided` if another was first."""
        require(self.user, Permission.QUOTA_GRANT)
        services.refuse(
            request_id=request_id,
            reason=self.body(RefuseRequest)["reason"],
            actor=actor_of(self.user),
        )
        return _one(request_id)


def _page(asked: dict[str, Any], tenant_ids: frozenset[int] | None) -> Page[selectors.RequestView]:
    state = asked.get("state")
    return selectors.requests_page(
        tenant_ids=tenant_ids,
        after=asked.get("after"),
        limit=asked["limit"],
        states=(QuotaRequestState(state),) if state else (),
    )


def _one(request_id: int) -> Response:
    found = selectors.one_request(request_id, tenant_ids=None)
    return Response(_case(found, selectors.room_beside([found]).get(found.id)))


def _case(found: selectors.RequestView, room: selectors.Room | None) -> dict[str, Any]:
    return {
        **QuotaRequestSerializer(found).data,
        "room": HeadroomSerializer(room).data if room is not None else None,
    }


def _is_money(limit: LimitView) -> bool:
    return limit.dimension is Dimension.SPEND_NANOUSD


def _amount(limit: LimitView, amount: int | None, amount_usd: int | None) -> int:
    """The one that fits the limit. Raises `InvalidInput` naming it."""
    is_money = _is_money(limit)
    wanted, other = (amount_usd, amount) if is_money else (amount, amount_usd)
    if wanted is None or other is not None:
        field = "amount_usd" if is_money else "amount"
        raise InvalidInput(
            f"This limit takes {field}, and only that.",
            field=field,
            hint="Spend is decimal text in US dollars; everything else is a whole number.",
        )
    return wanted

"""REST: ledger rows and corrections of them."""

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.selectors import (
    Permission,
    actor_of,
    can,
    require,
    visible_tenant_ids,
)
from console.errors import NotFound
from console.rest.fields import (
    InstantField,
    OfferedField,
    OutSerializer,
    PageQuery,
    StrictSerializer,
    StrictText,
    UsdField,
)
from console.rest.schema import endpoint, page_of
from console.rest.views import Endpoint, fields_named, shown, shown_rows
from routing.contracts.enums import RequestStatus
from routing.contracts.ids import day_of
from tenants.directory.access import open_tenant
from tenants.ledger import selectors, services


class TenantUsageSerializer(OutSerializer):
    """One request as its own tenant sees it: nothing of the fleet."""

    request_id = serializers.CharField()
    kind = serializers.CharField()
    tenant = serializers.CharField()
    project = serializers.CharField()
    key_id = serializers.IntegerField()
    key_prefix = serializers.CharField()
    model_asked = serializers.CharField()
    model = serializers.CharField()
    work_class = serializers.CharField()
    status = serializers.CharField()
    http_status = serializers.IntegerField()
    error_code = serializers.CharField()
    usage_source = serializers.CharField()
    is_suspicious = serializers.BooleanField()
    is_above_hold = serializers.BooleanField()
    is_stream = serializers.BooleanField()
    started_at = InstantField()
    first_token_at = InstantField(allow_null=True)
    ended_at = InstantField()
    input_tokens = serializers.IntegerField()
    cached_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField()
    reasoning_tokens = serializers.IntegerField()
    cache_write_tokens = serializers.IntegerField(allow_null=True)
    images = serializers.IntegerField(allow_null=True)
    spend_usd = UsdField(source="spend_nanousd")
    adjusted_usd = UsdField(source="adjusted_nanousd")
    net_usd = UsdField(source="net_nanousd")
    attempts = serializers.IntegerField()
    policy = serializers.CharField()
    price_version = serializers.IntegerField()
    task_id = serializers.CharField()
    task_kind = serializers.CharField()
    step = serializers.CharField()
    session = serializers.CharField()
    parent_id = serializers.CharField()
    operation = serializers.CharField()


class UsageSerializer(TenantUsageSerializer):
    """One request. The fields of the fleet are there for callers who may see it."""

    pool = serializers.CharField(required=False)
    replica = serializers.CharField(required=False)
    region = serializers.CharField(required=False)
    gateway = serializers.CharField(required=False)
    upstream_request_id = serializers.CharField(required=False)
    hops_us = serializers.DictField(child=serializers.IntegerField(), required=False)


class AdjustmentSerializer(OutSerializer):
    """A correction."""

    id = serializers.IntegerField()
    request_id = serializers.CharField()
    tenant = serializers.CharField()
    reason = serializers.CharField()
    note = serializers.CharField()
    spend_usd = UsdField(source="spend_nanousd")
    created_at = InstantField()


class UsageQuery(PageQuery):
    """Which rows to list. Days are UTC days of the requests' start, both included."""

    tenant = serializers.SlugField(required=False, max_length=63)
    since = serializers.DateField(required=False)
    until = serializers.DateField(required=False)
    key_id = serializers.IntegerField(required=False, min_value=1)
    project_id = serializers.IntegerField(required=False, min_value=1)
    model = serializers.CharField(required=False, max_length=200)
    status = OfferedField(required=False, choices=[item.value for item in RequestStatus])
    with_void = serializers.BooleanField(required=False, default=False)


class AdjustmentQuery(PageQuery):
    """Which corrections to list."""

    tenant = serializers.SlugField(required=False, max_length=63)
    request_id = serializers.UUIDField(required=False)


class AdjustmentRequest(StrictSerializer):
    """A correction: what to add to a request's spend, negative to give back."""

    request_id = serializers.UUIDField()
    reason = StrictText(max_length=64)
    spend_usd = UsdField(is_signed=True)
    note = StrictText(max_length=200, required=False, default="", allow_blank=True)


class AddedAdjustmentSerializer(OutSerializer):
    """Which row the correction is."""

    id = serializers.IntegerField()


class Usage(Endpoint):
    """Ledger rows."""

    @endpoint(
        operation_id="usage_list",
        query=UsageQuery,
        answer=page_of(UsageSerializer),
        summary="List requests and what they cost",
    )
    def get(self, request: Request) -> Response:
        """Rows that the caller may see, newest first."""
        asked = self.query(UsageQuery)
        tenant_ids = self._tenants(asked.pop("tenant", None))
        page = selectors.usage_page(tenant_ids=tenant_ids, after=asked.pop("after", None), **asked)
        kind = UsageSerializer if can(self.user, Permission.VIEW_ALL) else TenantUsageSerializer
        return shown_rows(kind, page.rows, page.next_after)

    def _tenants(self, slug: str | None) -> frozenset[int] | None:
        if slug is None:
            return visible_tenant_ids(self.user)
        return frozenset({open_tenant(self.user, slug).id})


class UsageLine(Endpoint):
    """One ledger row."""

    @endpoint(operation_id="usage_read", answer=UsageSerializer, summary="Read a request")
    def get(self, request: Request, request_id: str) -> Response:
        """The request of that id."""
        tenant_ids = visible_tenant_ids(self.user)
        line = selectors.usage_line(tenant_ids=tenant_ids, request_id=str(request_id))
        if line is None:
            raise NotFound("No such request.")
        sees_fleet = can(self.user, Permission.VIEW_ALL)
        return shown(UsageSerializer if sees_fleet else TenantUsageSerializer, line)


class Adjustments(Endpoint):
    """Corrections."""

    @endpoint(
        operation_id="adjustments_list",
        query=AdjustmentQuery,
        answer=page_of(AdjustmentSerializer),
        summary="List corrections",
    )
    def get(self, request: Request) -> Response:
        """Corrections that the caller may see, newest first."""
        asked = self.query(AdjustmentQuery)
        slug = asked.get("tenant")
        tenant_ids = (
            visible_tenant_ids(self.user)
            if slug is None
            else frozenset({open_tenant(self.user, slug).id})
        )
        page = selectors.adjustments_page(
            tenant_ids=tenant_ids,
            after=asked.get("after"),
            limit=asked["limit"],
            request_id=str(asked.get("request_id", "")),
        )
        return shown_rows(AdjustmentSerializer, page.rows, page.next_after)

    @endpoint(
        operation_id="adjustments_add",
        request=AdjustmentRequest,
        answer=AddedAdjustmentSerializer,
        status=201,
        summary="Correct what a request cost",
    )
    def post(self, request: Request) -> Response:
        """Add a correction, once for each reason; counters follow within about a second."""
        require(self.user, Permission.ADJUST_USAGE)
        asked = self.body(AdjustmentRequest)
        request_id = str(asked["request_id"])
        try:
            day = day_of(request_id)
        except (ValueError, OverflowError) as error:
            raise NotFound("No such request.") from error
        with fields_named({"spend_nanousd": "spend_usd"}):
            made = services.adjust(
                request_id=request_id,
                day=day,
                reason=asked["reason"],
                spend_nanousd=asked["spend_usd"],
                note=asked["note"],
                actor=actor_of(self.user),
            )
        return shown(AddedAdjustmentSerializer, {"id": made}, status=201)

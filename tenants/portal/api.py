"""REST: a tenant's refused calls with what to do next, and its use over time."""

from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.errors import NotFound
from console.rest.fields import (
    InstantField,
    OfferedField,
    OutSerializer,
    PageQuery,
    StrictSerializer,
    UsdField,
)
from console.rest.schema import endpoint, page_of
from console.rest.views import Endpoint, shown_rows
from routing.decision.types import Reason
from tenants.directory.access import open_tenant
from tenants.ledger.refusals import RefusalLine, refusal, refusals_page
from tenants.ledger.selectors import spend_by_key, spend_by_model
from tenants.ledger.series import MAX_CHOSEN, GroupBy, Step, usage_series
from tenants.portal.rules import day_slots, explain, hour_slots, minute_slots

SLOTS = {Step.MINUTE: 60, Step.HOUR: 24, Step.DAY: 30}
_GROUPS = {"model": (GroupBy.MODEL, spend_by_model), "key": (GroupBy.KEY, spend_by_key)}


class RefusalSerializer(OutSerializer):
    """A refused call: which limit, of whom, what to do. `retry_after_ms` null: no time was told."""

    request_id = serializers.CharField()
    at = InstantField()
    key_id = serializers.IntegerField(allow_null=True)
    model = serializers.CharField()
    work_class = serializers.CharField()
    code = serializers.CharField()
    http_status = serializers.IntegerField()
    limit = serializers.CharField()
    scope = serializers.CharField()
    retry_after_ms = serializers.IntegerField(allow_null=True)
    input_tokens = serializers.IntegerField()
    max_tokens = serializers.IntegerField(allow_null=True)
    what = serializers.SerializerMethodField()
    next_step = serializers.SerializerMethodField()

    def get_what(self, line: RefusalLine) -> str:
        """What happened, in a sentence."""
        return explain(**_of(line)).what

    def get_next_step(self, line: RefusalLine) -> str:
        """What to do next."""
        return explain(**_of(line)).next_step


class RefusalQuery(PageQuery):
    """Which refusals to list."""

    code = OfferedField(required=False, choices=[reason.value for reason in Reason])


class UsagePointSerializer(OutSerializer):
    """Sums of one slot; `group` is a model's name or a key's id, empty where nothing divides."""

    start = InstantField()
    group = serializers.CharField()
    requests = serializers.IntegerField(source="totals.requests")
    failed = serializers.IntegerField(source="totals.failed")
    input_tokens = serializers.IntegerField(source="totals.input_tokens")
    cached_tokens = serializers.IntegerField(source="totals.cached_tokens")
    output_tokens = serializers.IntegerField(source="totals.output_tokens")
    spend_usd = UsdField(source="totals.spend_nanousd")


class UsageSeriesQuery(StrictSerializer):
    """The last 60 minutes, 24 hours or 30 days (of the tenant's zone), divided or not."""

    step = OfferedField(
        required=False, default=Step.MINUTE.value, choices=[step.value for step in Step]
    )
    by = OfferedField(required=False, choices=list(_GROUPS))


class Refusals(Endpoint):
    """A tenant's refused calls of the last seven days."""

    @endpoint(
        operation_id="refusals_list",
        query=RefusalQuery,
        answer=page_of(RefusalSerializer),
        summary="List refused calls and what to do about each",
    )
    def get(self, request: Request, slug: str) -> Response:
        """Newest first."""
        found = open_tenant(self.user, slug)
        asked = self.query(RefusalQuery)
        page = refusals_page(
            tenant_id=found.id,
            after=asked.get("after"),
            limit=asked["limit"],
            code=asked.get("code", ""),
        )
        return shown_rows(RefusalSerializer, page.rows, page.next_after)


class Refusal(Endpoint):
    """One refused call."""

    @endpoint(
        operation_id="refusals_read",
        answer=RefusalSerializer,
        summary="Why a call was refused, by its request id",
    )
    def get(self, request: Request, slug: str, request_id: UUID) -> Response:
        """The refusal; 404 also for a call that was served (see usage/{id}/)."""
        found = open_tenant(self.user, slug)
        line = refusal(tenant_id=found.id, request_id=str(request_id))
        if line is None:
            raise NotFound("No refused call of this tenant has that id.")
        return Response(RefusalSerializer(line).data)


class UsageSeries(Endpoint):
    """A tenant's use over time."""

    @endpoint(
        operation_id="usage_series",
        query=UsageSeriesQuery,
        answer=UsagePointSerializer(many=True),
        summary="Use by minute, hour or day; divided by model or key",
    )
    def get(self, request: Request, slug: str) -> Response:
        """In order of time; slots without use are left out. Divided: the dearest groups."""
        found = open_tenant(self.user, slug)
        asked = self.query(UsageSeriesQuery)
        step, now = Step(asked["step"]), timezone.now()
        since = _first_slot(step, found.timezone, now)
        by, chosen = None, []
        if name := asked.get("by"):
            by, sums_of = _GROUPS[name]
            groups = sums_of(tenant_ids=frozenset({found.id}), since=since, until=now)
            chosen = [one.subject for one in groups[:MAX_CHOSEN]]
        points = usage_series(
            tenant_ids=frozenset({found.id}),
            since=since,
            until=now,
            step=step,
            zone=found.timezone,
            by=by,
            chosen=chosen,
        )
        return Response(UsagePointSerializer(points, many=True).data)


def _first_slot(step: Step, zone: str, now: datetime) -> datetime:
    if step is Step.DAY:
        return day_slots(now, SLOTS[step], zone)[0]
    slots = minute_slots if step is Step.MINUTE else hour_slots
    return slots(now, SLOTS[step])[0]


def _of(line: RefusalLine) -> dict[str, Any]:
    return {
        "code": line.code,
        "limit": line.limit,
        "scope": line.scope,
        "retry_after_ms": line.retry_after_ms,
    }

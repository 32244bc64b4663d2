"""REST: series of slices."""

from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from console.accounts.selectors import Permission, require, visible_tenant_ids
from console.errors import InvalidInput, NotFound
from console.models import User
from console.web.units import usd_text
from telemetry.slices.rules import Point
from telemetry.slices.selectors import SliceFilter, series
from tenants.directory.selectors import tenant_by_slug

DEFAULT_SPAN = timedelta(hours=1)


class SeriesQuery(serializers.Serializer[Any]):
    """Parameters of a series."""

    tenant = serializers.SlugField(required=False, default="")
    model = serializers.CharField(required=False, default="", max_length=200)
    pool = serializers.CharField(required=False, default="", max_length=120)
    since = serializers.DateTimeField(required=False)
    until = serializers.DateTimeField(required=False)
    step_s = serializers.IntegerField(required=False, default=None, min_value=60)


class PointSerializer(serializers.Serializer[Any]):
    """One step. Percentiles are null without samples, p99 below 30 samples."""

    at = serializers.DateTimeField(help_text="When the step begins")
    requests = serializers.IntegerField(help_text="Requests that ended in the step")
    failed = serializers.IntegerField()
    refused = serializers.IntegerField(help_text="Requests refused before a replica was chosen")
    input_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField()
    spend_usd = serializers.CharField(help_text="Settled spend, exact decimal")
    ttft_count = serializers.IntegerField(help_text="Samples behind the percentiles")
    ttft_p50_s = serializers.FloatField(allow_null=True)
    ttft_p95_s = serializers.FloatField(allow_null=True)
    ttft_p99_s = serializers.FloatField(allow_null=True)


class SeriesSerializer(serializers.Serializer[Any]):
    """A series, oldest point first."""

    step_s = serializers.IntegerField()
    points = PointSerializer(many=True)


_PARAMETERS = [
    OpenApiParameter("tenant", str, description="Slug of one tenant; default: all you may see"),
    OpenApiParameter("model", str),
    OpenApiParameter("pool", str, description="Needs a role that sees pools"),
    OpenApiParameter("since", OpenApiTypes.DATETIME, description="Default: an hour ago"),
    OpenApiParameter("until", OpenApiTypes.DATETIME, description="Default: now"),
    OpenApiParameter("step_s", int, description="Whole minutes; default: finest of 1,500 points"),
]


class SeriesView(APIView):
    """Traffic, time to first token and spend over time."""

    @extend_schema(operation_id="series", parameters=_PARAMETERS, responses=SeriesSerializer)
    def get(self, request: Request) -> Response:
        """Points of the slices that match, merged."""
        query = SeriesQuery(data=request.query_params)
        query.is_valid(raise_exception=True)
        asked = query.validated_data
        until = asked.get("until") or timezone.now()
        since = asked.get("since") or until - DEFAULT_SPAN
        if since >= until:
            raise InvalidInput("since must be before until.", field="since")
        step_s, found = series(
            _filter(request, asked),
            since_s=int(since.timestamp()),
            until_s=int(until.timestamp()),
            step_s=asked["step_s"],
        )
        points = [_shown(point) for point in found]
        return Response(SeriesSerializer({"step_s": step_s, "points": points}).data)


def _filter(request: Request, asked: dict[str, Any]) -> SliceFilter:
    user = request.user if isinstance(request.user, User) else None
    tenant_ids = visible_tenant_ids(user)
    if asked["pool"]:
        require(user, Permission.VIEW_ALL)
    if asked["tenant"]:
        tenant_id = tenant_by_slug(asked["tenant"]).id
        if tenant_ids is not None and tenant_id not in tenant_ids:
            raise NotFound("No such tenant.")
        tenant_ids = frozenset({tenant_id})
    return SliceFilter(tenant_ids=tenant_ids, model=asked["model"], pool=asked["pool"])


def _shown(point: Point) -> dict[str, object]:
    return {
        "at": datetime.fromtimestamp(point.at_s, UTC),
        "requests": point.requests,
        "failed": point.failed,
        "refused": point.refused,
        "input_tokens": point.input_tokens,
        "output_tokens": point.output_tokens,
        "spend_usd": usd_text(point.spend_nanousd),
        "ttft_count": point.ttft_count,
        "ttft_p50_s": point.ttft_p50_s,
        "ttft_p95_s": point.ttft_p95_s,
        "ttft_p99_s": point.ttft_p99_s,
    }

"""REST: series of slices."""

from dataclasses import dataclass
from datetime import timedelta

from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.selectors import Caller, Permission, require, visible_tenant_ids
from console.errors import InvalidInput
from console.rest.fields import InstantField, OutSerializer, StrictSerializer, UsdField
from console.rest.schema import endpoint
from console.rest.views import Endpoint, shown
from telemetry.slices.rules import Point
from telemetry.slices.selectors import SliceFilter, series
from tenants.directory.access import open_tenant

DEFAULT_SPAN = timedelta(hours=1)


class SeriesQuery(StrictSerializer):
    """Parameters of a series."""

    tenant = serializers.SlugField(
        required=False, default="", help_text="One tenant; default: all that you may see"
    )
    model = serializers.CharField(required=False, default="", max_length=200)
    pool = serializers.CharField(
        required=False, default="", max_length=120, help_text="Needs a role that sees pools"
    )
    since = InstantField(required=False, help_text="Default: an hour before `until`")
    until = InstantField(required=False, help_text="Default: now")
    step_s = serializers.IntegerField(
        required=False, min_value=60, help_text="Whole minutes; default: at most 1,500 points"
    )


class PointSerializer(OutSerializer):
    """One step. Percentiles are null without samples, p99 below 30 samples."""

    at = InstantField(help_text="When the step begins")
    requests = serializers.IntegerField(help_text="Requests that ended in the step")
    failed = serializers.IntegerField()
    refused = serializers.IntegerField(help_text="Requests refused before a replica was chosen")
    input_tokens = serializers.IntegerField()
    output_tokens = serializers.IntegerField()
    spend_usd = UsdField(source="spend_nanousd")
    ttft_count = serializers.IntegerField(help_text="Samples behind the percentiles")
    ttft_p50_s = serializers.FloatField(allow_null=True)
    ttft_p95_s = serializers.FloatField(allow_null=True)
    ttft_p99_s = serializers.FloatField(allow_null=True)


class SeriesSerializer(OutSerializer):
    """A series, oldest point first."""

    step_s = serializers.IntegerField()
    points = PointSerializer(many=True)


@dataclass(frozen=True, slots=True)
class _Series:
    step_s: int
    points: list[Point]


class SeriesView(Endpoint):
    """Traffic, time to first token and spend over time."""

    @endpoint(
        operation_id="series",
        summary="Traffic, time to first token and spend over time",
        query=SeriesQuery,
        answer=SeriesSerializer,
    )
    def get(self, request: Request) -> Response:
        """Points of the slices that match, merged."""
        asked = self.query(SeriesQuery)
        until = asked.get("until") or timezone.now()
        since = asked.get("since") or until - DEFAULT_SPAN
        if since >= until:
            raise InvalidInput("since must be before until.", field="since")
        step_s, found = series(
            _filter(self.user, asked["tenant"], asked["model"], asked["pool"]),
            since_s=int(since.timestamp()),
            until_s=int(until.timestamp()),
            step_s=asked.get("step_s"),
        )
        return shown(SeriesSerializer, _Series(step_s, found))


def _filter(user: Caller, tenant: str, model: str, pool: str) -> SliceFilter:
    tenant_ids = visible_tenant_ids(user)
    if pool:
        require(user, Permission.VIEW_ALL)
    if tenant:
        tenant_ids = frozenset({open_tenant(user, tenant).id})
    return SliceFilter(tenant_ids=tenant_ids, model=model, pool=pool)

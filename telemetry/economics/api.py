"""REST: GPU time and carbon of a period, and the figures behind them."""

from datetime import timedelta

from django.utils import timezone
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.selectors import Permission, actor_of, require
from console.rest.fields import (
    InstantField,
    OutSerializer,
    StrictNumber,
    StrictSerializer,
    StrictText,
    UsdField,
)
from console.rest.schema import endpoint
from console.rest.views import Endpoint, shown
from telemetry.economics import selectors, services

MAX_HOURS = 24 * 31


class PoolCarbonSerializer(OutSerializer):
    """One pool. Grams and inputs are null where `missing` names what nobody stated."""

    pool = serializers.CharField(source="facts.pool")
    region = serializers.CharField(source="facts.region")
    hardware = serializers.CharField(source="facts.hardware")
    gpu_s = serializers.FloatField(source="facts.gpu_s")
    task_gpu_s = serializers.FloatField()
    energy_kwh = serializers.FloatField(source="footprint.energy_kwh", default=None)
    operational_g = serializers.FloatField(source="footprint.operational_g", default=None)
    embodied_g = serializers.FloatField(source="footprint.embodied_g", default=None)
    missing = serializers.CharField()


class EconomicsSerializer(OutSerializer):
    """A period. Per task: of those whose outcome was reported in it."""

    since = InstantField()
    until = InstantField()
    gpu_s = serializers.FloatField()
    unknown_gpu_s = serializers.FloatField()
    total_g = serializers.FloatField(allow_null=True)
    tasks_succeeded = serializers.IntegerField()
    tasks_failed = serializers.IntegerField()
    success_usd = UsdField(allow_null=True)
    task_gpu_s = serializers.FloatField(allow_null=True)
    task_g = serializers.FloatField(allow_null=True)
    pools = PoolCarbonSerializer(many=True)


class EconomicsQuery(StrictSerializer):
    """How many hours back."""

    hours = serializers.IntegerField(required=False, default=24, min_value=1, max_value=MAX_HOURS)


class GridRequest(StrictSerializer):
    """A region's grid."""

    region = StrictText(max_length=64)
    g_co2e_per_kwh = StrictNumber(min_value=0, max_value=2000)
    pue = StrictNumber(min_value=1, max_value=3)
    source = StrictText(max_length=300)  # type: ignore[assignment]


class PowerRequest(StrictSerializer):
    """A kind of hardware's power."""

    hardware = StrictText(max_length=64)
    power_w = StrictNumber(min_value=0, max_value=5000)
    source = StrictText(max_length=300)  # type: ignore[assignment]


class Carbon(Endpoint):
    """GPU time and carbon."""

    @endpoint(
        operation_id="carbon_read",
        query=EconomicsQuery,
        answer=EconomicsSerializer,
        summary="Read GPU time and carbon of the last hours",
    )
    def get(self, request: Request) -> Response:
        """The hours before now."""
        require(self.user, Permission.VIEW_ALL)
        until = timezone.now()
        since = until - timedelta(hours=self.query(EconomicsQuery)["hours"])
        found = selectors.period(since, until)
        total = found.economics.footprint
        value = {
            "since": since,
            "until": until,
            "gpu_s": found.economics.gpu_s,
            "unknown_gpu_s": found.economics.unknown_gpu_s,
            "total_g": total.total_g if total else None,
            "tasks_succeeded": found.outcomes.succeeded,
            "tasks_failed": found.outcomes.failed,
            "success_usd": found.outcomes.success_nanousd,
            "task_gpu_s": found.economics.task_gpu_s,
            "task_g": found.economics.task_g,
            "pools": found.economics.pools,
        }
        return shown(EconomicsSerializer, value)


class Grid(Endpoint):
    """Grid inputs."""

    @endpoint(
        operation_id="carbon_state_grid",
        request=GridRequest,
        status=204,
        summary="State a region's grid intensity and PUE with their source",
    )
    def put(self, request: Request) -> Response:
        """Idempotent."""
        require(self.user, Permission.ACT)
        services.state_grid(**self.body(GridRequest), actor=actor_of(self.user))
        return Response(status=204)


class Power(Endpoint):
    """Power inputs."""

    @endpoint(
        operation_id="carbon_state_power",
        request=PowerRequest,
        status=204,
        summary="State the power of one GPU of a kind of hardware with its source",
    )
    def put(self, request: Request) -> Response:
        """Idempotent."""
        require(self.user, Permission.ACT)
        services.state_power(**self.body(PowerRequest), actor=actor_of(self.user))
        return Response(status=204)

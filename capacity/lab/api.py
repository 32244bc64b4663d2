"""REST: what if? One demand over one fleet, by the closed forms that plans use."""

from math import isfinite
from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from capacity.lab.rules import Inputs, answer
from capacity.profiles.selectors import named_profile
from capacity.simulation.profiles import UnknownProfileError
from console.accounts.selectors import Permission, require
from console.rest.fields import (
    OutSerializer,
    StrictInteger,
    StrictNumber,
    StrictSerializer,
    StrictText,
)
from console.rest.schema import endpoint
from console.rest.views import Endpoint, shown


class LabRequest(StrictSerializer):
    """A demand and a fleet. Ratios are 0 to 1; `growth` multiplies the rate."""

    profile = StrictText(
        max_length=128, help_text="A built-in name, model/gpu/tpN/weights, or pool:NAME"
    )
    replicas = StrictInteger(min_value=1, max_value=10_000)
    domains = StrictInteger(min_value=1, max_value=16)
    rate_rps = StrictNumber(min_value=0.01, max_value=100_000)
    input_tokens = StrictNumber(min_value=1, max_value=1_000_000)
    output_tokens = StrictNumber(min_value=1, max_value=100_000)
    cached_ratio = StrictNumber(required=False, default=0.0, min_value=0, max_value=0.99)
    growth = StrictNumber(required=False, default=1.0, min_value=0.1, max_value=100)
    lost_ratio = StrictNumber(required=False, default=0.0, min_value=0, max_value=1)
    retry_ratio = StrictNumber(required=False, default=0.0, min_value=0, max_value=3)
    itl_target_s = StrictNumber(required=False, default=0.05, min_value=0.001, max_value=10)

    def validate_profile(self, name: str) -> str:
        """Refuse a name that nobody knows, saying which there are."""
        try:
            named_profile(name)
        except UnknownProfileError as error:
            raise serializers.ValidationError(f"{error}.") from error
        return name


class FiniteField(serializers.FloatField):
    """A figure that may be without bound: then null, as JSON knows no infinity."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_null=True, **options)

    def to_representation(self, value: float) -> float | None:  # type: ignore[override]
        """The figure, or null."""
        return float(value) if isfinite(value) else None


class LabSerializer(OutSerializer):
    """Shares above 1 do not fit; null has no bound. `need_*` null: no number is enough."""

    fits = serializers.BooleanField()
    bottleneck = serializers.CharField()
    replicas_left = serializers.IntegerField()
    compute_ratio = FiniteField()
    prefill_ratio = FiniteField()
    decode_ratio = FiniteField()
    kv_ratio = FiniteField()
    itl_s = FiniteField()
    decodes = FiniteField()
    cold_prefill_ratio = FiniteField()
    shed_ratio = FiniteField()
    need_now = serializers.IntegerField(source="plan.need.replicas", allow_null=True)
    need_domain_lost = serializers.IntegerField(source="plan.domain_lost", allow_null=True)
    need_quarter_lost = serializers.IntegerField(source="plan.quarter_lost", allow_null=True)


class Lab(Endpoint):
    """One question to the lab."""

    @endpoint(
        operation_id="capacity_lab",
        is_read=True,
        request=LabRequest,
        answer=LabSerializer,
        summary="Ask what a fleet does under a demand",
    )
    def post(self, request: Request) -> Response:
        """Computed, nothing is kept."""
        require(self.user, Permission.VIEW_ALL)
        inputs = Inputs(**self.body(LabRequest))
        return shown(LabSerializer, answer(inputs, named_profile(inputs.profile)))

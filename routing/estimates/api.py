"""REST: how well holds predict usage."""

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from console.accounts.selectors import Permission, require
from console.rest.fields import OutSerializer
from console.rest.schema import endpoint
from console.rest.views import Endpoint, shown
from routing.estimates.selectors import model_estimates


class ModelEstimateSerializer(OutSerializer):
    """One model; a rate is null while its prior stands."""

    model = serializers.CharField()
    samples = serializers.IntegerField()
    plain_rate = serializers.FloatField(allow_null=True)
    plain_median = serializers.FloatField(allow_null=True)
    dense_rate = serializers.FloatField(allow_null=True)
    template_tokens = serializers.IntegerField(allow_null=True)
    held_ratio_p5 = serializers.FloatField(allow_null=True)
    held_ratio_p50 = serializers.FloatField(allow_null=True)
    held_ratio_p95 = serializers.FloatField(allow_null=True)


class EstimatesSerializer(OutSerializer):
    """Models by name; null while the store is away."""

    models = ModelEstimateSerializer(many=True, allow_null=True)


class Estimates(Endpoint):
    """Bytes per token as learnt, and holds against usage."""

    @endpoint(
        operation_id="estimates_list",
        answer=EstimatesSerializer,
        summary="List what is learnt of each model's tokens",
    )
    def get(self, request: Request) -> Response:
        """Every model that gateways have learnt of."""
        require(self.user, Permission.VIEW_ALL)
        return shown(EstimatesSerializer, {"models": model_estimates()})

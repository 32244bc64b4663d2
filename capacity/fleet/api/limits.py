"""REST: limits over all tenants, of a pool and of the whole fleet."""

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from capacity.fleet.selectors import capacity_limits
from capacity.fleet.services import (
    set_capacity_limit,
)
from console.accounts.selectors import Permission, actor_of, require
from console.rest.fields import (
    OfferedField,
    OutSerializer,
    StrictFlag,
    StrictInteger,
    StrictSerializer,
)
from console.rest.schema import endpoint
from console.rest.views import Endpoint
from routing.contracts.capacity import LIMITED


class CapacityLimitSerializer(OutSerializer):
    """A bound over all tenants: rates per minute (`m`), concurrency and KV tokens at once (`g`)."""

    dimension = serializers.CharField()
    window = serializers.CharField()
    amount = serializers.IntegerField()


class CapacityLimitName(StrictSerializer):
    """Which limit."""

    dimension = OfferedField(choices=LIMITED)


class CapacityLimitRequest(CapacityLimitName):
    """A limit to set; `confirm` accepts 0, which stops every tenant there."""

    amount = StrictInteger(min_value=0)
    confirm = StrictFlag(required=False, default=False)


class _Limits(Endpoint):
    """Limits over all tenants."""

    def shown(self, pool: str | None) -> Response:
        """All of the pool, or of the fleet."""
        require(self.user, Permission.VIEW_ALL)
        return Response(CapacityLimitSerializer(capacity_limits(pool), many=True).data)

    def change(self, pool: str | None) -> Response:
        """Set one; answers with all."""
        require(self.user, Permission.MANAGE_FLEET)
        asked = self.body(CapacityLimitRequest)
        set_capacity_limit(pool=pool, actor=actor_of(self.user), **asked)
        return self.shown(pool)

    def remove(self, pool: str | None) -> Response:
        """Remove one; what is not there changes nothing."""
        require(self.user, Permission.MANAGE_FLEET)
        asked = self.query(CapacityLimitName)
        set_capacity_limit(pool=pool, amount=None, actor=actor_of(self.user), **asked)
        return Response(status=204)


class PoolLimits(_Limits):
    """Limits of one pool."""

    @endpoint(
        operation_id="pool_limits_list",
        answer=CapacityLimitSerializer(many=True),
        summary="Limits of a pool over all tenants",
    )
    def get(self, request: Request, name: str) -> Response:
        """In a fixed order of dimensions."""
        return self.shown(name)

    @endpoint(
        operation_id="pool_limits_set",
        request=CapacityLimitRequest,
        answer=CapacityLimitSerializer(many=True),
        summary="Set a limit of a pool",
    )
    def put(self, request: Request, name: str) -> Response:
        """Set it; answers with all limits of the pool."""
        return self.change(name)

    @endpoint(
        operation_id="pool_limits_remove",
        query=CapacityLimitName,
        status=204,
        summary="Remove a limit of a pool",
    )
    def delete(self, request: Request, name: str) -> Response:
        """Remove it."""
        return self.remove(name)


class FleetLimits(_Limits):
    """Limits of the whole fleet."""

    @endpoint(
        operation_id="fleet_limits_list",
        answer=CapacityLimitSerializer(many=True),
        summary="Limits of the fleet over all tenants",
    )
    def get(self, request: Request) -> Response:
        """In a fixed order of dimensions."""
        return self.shown(None)

    @endpoint(
        operation_id="fleet_limits_set",
        request=CapacityLimitRequest,
        answer=CapacityLimitSerializer(many=True),
        summary="Set a limit of the fleet",
    )
    def put(self, request: Request) -> Response:
        """Set it; answers with all limits of the fleet."""
        return self.change(None)

    @endpoint(
        operation_id="fleet_limits_remove",
        query=CapacityLimitName,
        status=204,
        summary="Remove a limit of the fleet",
    )
    def delete(self, request: Request) -> Response:
        """Remove it."""
        return self.remove(None)

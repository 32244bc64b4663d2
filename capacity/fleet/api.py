"""REST: pools and replicas with their lifecycle, their health, and why."""

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from capacity.fleet.selectors import capacity_limits, fleet_page, pool_detail
from capacity.fleet.services import set_capacity_limit
from console.accounts.selectors import Permission, actor_of, require
from console.rest.fields import (
    InstantField,
    OutSerializer,
    PageQuery,
    StrictInteger,
    StrictSerializer,
)
from console.rest.schema import endpoint, page_of
from console.rest.views import Endpoint, shown
from routing.contracts.capacity import LIMITED


class ReplicaSerializer(OutSerializer):
    """A replica. `state` is the health when it is not ok, else the lifecycle; null is unknown."""

    name = serializers.CharField()
    ordinal = serializers.IntegerField()
    address = serializers.CharField()
    state = serializers.CharField()
    lifecycle = serializers.CharField()
    since = InstantField()
    cause = serializers.CharField()
    health = serializers.CharField(allow_null=True)
    health_reason = serializers.CharField()
    running = serializers.IntegerField(allow_null=True)
    waiting = serializers.IntegerField(allow_null=True)
    kv_usage_ratio = serializers.FloatField(allow_null=True)
    kv_free_tokens = serializers.IntegerField(allow_null=True)
    prompt_tokens_per_s = serializers.FloatField(allow_null=True)
    generation_tokens_per_s = serializers.FloatField(allow_null=True)
    prefix_hit_ratio = serializers.FloatField(allow_null=True)
    engine_version = serializers.CharField()
    scrape_age_s = serializers.FloatField(allow_null=True)


class PoolSerializer(OutSerializer):
    """A pool with its replicas."""

    name = serializers.CharField()
    model = serializers.CharField()
    driver = serializers.CharField()
    region = serializers.CharField()
    domain = serializers.CharField()
    hardware = serializers.CharField()
    desired_replicas = serializers.IntegerField()
    ready_replicas = serializers.IntegerField()
    kv_capacity_tokens = serializers.IntegerField()
    live_age_s = serializers.FloatField(allow_null=True)
    replicas = ReplicaSerializer(many=True)


class ReplicaChangeSerializer(OutSerializer):
    """One change of a replica's lifecycle."""

    replica = serializers.CharField()
    at = InstantField()
    before = serializers.CharField()
    after = serializers.CharField()
    cause = serializers.CharField()


class PoolDetailSerializer(OutSerializer):
    """A pool, its settings, and the newest changes of its replicas."""

    pool = PoolSerializer()
    spec = serializers.JSONField()
    revision = serializers.IntegerField()
    block_size_tokens = serializers.IntegerField()
    changes = ReplicaChangeSerializer(many=True)


class CapacityLimitSerializer(OutSerializer):
    """A bound over all tenants: rates per minute (`m`), concurrency and KV tokens at once (`g`)."""

    dimension = serializers.CharField()
    window = serializers.CharField()
    amount = serializers.IntegerField()


class CapacityLimitName(StrictSerializer):
    """Which limit."""

    dimension = serializers.ChoiceField(choices=LIMITED)


class CapacityLimitRequest(CapacityLimitName):
    """A limit to set."""

    amount = StrictInteger(min_value=0)


class Pools(Endpoint):
    """All pools."""

    @endpoint(
        operation_id="pools_list",
        query=PageQuery,
        answer=page_of(PoolSerializer),
        summary="List pools with their replicas",
    )
    def get(self, request: Request) -> Response:
        """In order of name."""
        require(self.user, Permission.VIEW_ALL)
        asked = self.query(PageQuery)
        page = fleet_page(after=asked.get("after"), limit=asked["limit"])
        items = PoolSerializer(page.rows, many=True).data
        return Response({"items": items, "next": page.next_after})


class Pool(Endpoint):
    """One pool."""

    @endpoint(operation_id="pools_read", answer=PoolDetailSerializer, summary="Read a pool")
    def get(self, request: Request, name: str) -> Response:
        """The pool, its replicas and their newest changes."""
        require(self.user, Permission.VIEW_ALL)
        return shown(PoolDetailSerializer, pool_detail(name))


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

"""REST: pools and replicas with their lifecycle, their health, and why."""

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from capacity.fleet.selectors import fleet_page, pool_detail
from console.accounts.selectors import Permission, require
from console.rest.fields import InstantField, OutSerializer, PageQuery
from console.rest.schema import endpoint, page_of
from console.rest.views import Endpoint, shown


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
    block_size_tokens = serializers.IntegerField()
    changes = ReplicaChangeSerializer(many=True)


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

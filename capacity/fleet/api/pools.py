"""REST: pools and replicas with their lifecycle, their health and why; a provider's key."""

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from capacity.fleet.selectors import fleet_page, pool_detail
from capacity.fleet.services import (
    remove_provider_key,
    set_capabilities,
    set_provider_key,
)
from console.accounts.selectors import Permission, actor_of, require
from console.rest.fields import (
    InstantField,
    OutSerializer,
    PageQuery,
    StrictSerializer,
    StrictText,
)
from console.rest.schema import endpoint, page_of
from console.rest.views import Endpoint, shown, shown_rows


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
    """A pool, its settings, and the newest changes of its replicas.

    `api` is whose it speaks: `engine` (ours), `openai` or `anthropic` (a hosted provider's).
    """

    pool = PoolSerializer()
    spec = serializers.JSONField()
    revision = serializers.IntegerField()
    block_size_tokens = serializers.IntegerField()
    changes = ReplicaChangeSerializer(many=True)
    api = serializers.CharField(source="style")
    capabilities = serializers.ListField(child=serializers.CharField())
    are_capabilities_stated = serializers.BooleanField()
    key_hint = serializers.CharField()
    key_set_at = InstantField(allow_null=True)


class ProviderRequest(StrictSerializer):
    """What to change: the provider's API key, or what the pool can do (an empty list: as usual)."""

    api_key = StrictText(required=False, max_length=400, trim_whitespace=False)
    capabilities = serializers.ListField(
        child=StrictText(max_length=64), required=False, max_length=64
    )


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
        return shown_rows(PoolSerializer, page.rows, page.next_after)


class Pool(Endpoint):
    """One pool."""

    @endpoint(operation_id="pools_read", answer=PoolDetailSerializer, summary="Read a pool")
    def get(self, request: Request, name: str) -> Response:
        """The pool, its replicas and their newest changes."""
        require(self.user, Permission.VIEW_ALL)
        return shown(PoolDetailSerializer, pool_detail(name))


class PoolProvider(Endpoint):
    """The key of a pool's provider, and what the pool can do."""

    @endpoint(
        operation_id="pool_provider_set",
        request=ProviderRequest,
        answer=PoolDetailSerializer,
        summary="Set a provider's API key, or what a pool can do",
    )
    def put(self, request: Request, name: str) -> Response:
        """Only what is named changes. The key is kept sealed and never shown again."""
        require(self.user, Permission.MANAGE_FLEET)
        asked = self.body(ProviderRequest)
        actor = actor_of(self.user)
        if "capabilities" in asked:
            set_capabilities(pool=name, capabilities=asked["capabilities"], actor=actor)
        if "api_key" in asked:
            set_provider_key(pool=name, api_key=asked["api_key"], actor=actor)
        return shown(PoolDetailSerializer, pool_detail(name))

    @endpoint(
        operation_id="pool_provider_key_remove",
        status=204,
        summary="Forget a provider's API key",
    )
    def delete(self, request: Request, name: str) -> Response:
        """Gateways call without it from the next snapshot on; none is no error."""
        require(self.user, Permission.MANAGE_FLEET)
        remove_provider_key(pool=name, actor=actor_of(self.user))
        return Response(status=204)

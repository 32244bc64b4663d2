"""REST: pools and replicas with their lifecycle, their health, and why."""

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from capacity.fleet.catalogue import disagreements, table_page
from capacity.fleet.importer import ImportRefused, bring_in, kind_named
from capacity.fleet.rules.table import MAX_CHARS, row_of
from capacity.fleet.selectors import capacity_limits, fleet_page, pool_detail
from capacity.fleet.services import (
    remove_provider_key,
    set_capabilities,
    set_capacity_limit,
    set_provider_key,
)
from capacity.fleet.services.assets import put
from console.accounts.selectors import Permission, actor_of, require
from console.errors import InvalidInput
from console.rest.fields import (
    InstantField,
    OfferedField,
    OutSerializer,
    PageQuery,
    StrictFlag,
    StrictInteger,
    StrictSerializer,
    StrictText,
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


class InventoryRowSerializer(OutSerializer):
    """A row of an inventory table: a value for each column of its kind."""

    values = serializers.DictField()


class InventoryPutRequest(StrictSerializer):
    """A row to have: made, changed or left alone, so it may be sent again."""

    values = serializers.DictField()


class InventoryPutSerializer(OutSerializer):
    """What became of the row: `created`, `changed` or `same`."""

    outcome = serializers.CharField()


class ImportRequest(StrictSerializer):
    """A CSV text with a header. A dry run says what it would do and does nothing."""

    csv = StrictText(max_length=MAX_CHARS, trim_whitespace=False)
    dry_run = StrictFlag(required=False, default=True)


class ImportFaultSerializer(OutSerializer):
    """What is wrong in a cell; `column` is empty for a whole line."""

    column = serializers.CharField()
    message = serializers.CharField()
    hint = serializers.CharField()


class ImportLineSerializer(OutSerializer):
    """A line and what it does: `created`, `changed`, `same` or `refused`."""

    line = serializers.IntegerField()
    name = serializers.CharField()
    outcome = serializers.CharField()
    faults = ImportFaultSerializer(many=True)


class ImportSerializer(OutSerializer):
    """What a file does, or did."""

    kind = serializers.CharField()
    is_applied = serializers.BooleanField()
    created = serializers.IntegerField()
    changed = serializers.IntegerField()
    same = serializers.IntegerField()
    refused = serializers.IntegerField()
    lines = ImportLineSerializer(many=True)


class DriftItemSerializer(OutSerializer):
    """One disagreement and what to do about it."""

    pool = serializers.CharField()
    replica = serializers.CharField()
    what = serializers.CharField()
    recorded = serializers.CharField()
    seen = serializers.CharField()
    next_step = serializers.CharField()


class DriftSerializer(OutSerializer):
    """Where record and engines disagree; `is_blind` while nothing is known of the engines."""

    drift = DriftItemSerializer(many=True)
    placement = DriftItemSerializer(many=True)
    pools = serializers.IntegerField()
    is_cut = serializers.BooleanField()
    is_blind = serializers.BooleanField()


class Inventory(Endpoint):
    """A table of the inventory."""

    @endpoint(
        operation_id="inventory_list",
        query=PageQuery,
        answer=page_of(InventoryRowSerializer),
        summary="List a table: region, domain, gpu_type, node, model, artifact or pool",
    )
    def get(self, request: Request, kind: str) -> Response:
        """In order of name."""
        require(self.user, Permission.VIEW_ALL)
        asked = self.query(PageQuery)
        page = table_page(kind, after=asked.get("after"), limit=asked["limit"])
        return Response({"items": [{"values": row} for row in page.rows], "next": page.next_after})

    @endpoint(
        operation_id="inventory_put",
        request=InventoryPutRequest,
        answer=InventoryPutSerializer,
        summary="Put a row: made, changed, or left alone",
    )
    def put(self, request: Request, kind: str) -> Response:
        """Repeated, it changes nothing."""
        require(self.user, Permission.MANAGE_FLEET)
        found = kind_named(kind)
        row = row_of(found, self.body(InventoryPutRequest)["values"])
        if row.faults:
            first = row.faults[0]
            raise InvalidInput(first.message, field=first.column, hint=first.hint)
        outcome = put(kind=kind, values=row.values, actor=actor_of(self.user))
        return Response({"outcome": outcome.value})


class InventoryImport(Endpoint):
    """CSV into a table."""

    @endpoint(
        operation_id="inventory_import",
        request=ImportRequest,
        answer=ImportSerializer,
        summary="Bring in a CSV file, or say what that would do: all of it or nothing",
    )
    def post(self, request: Request, kind: str) -> Response:
        """422 with a finding for each fault unless it is a dry run."""
        require(self.user, Permission.MANAGE_FLEET)
        asked = self.body(ImportRequest)
        report = bring_in(
            kind=kind, text=asked["csv"], actor=actor_of(self.user), is_dry_run=asked["dry_run"]
        )
        if not asked["dry_run"] and not report.is_applied:
            raise ImportRefused(report)
        return shown(ImportSerializer, report)


class Drift(Endpoint):
    """Record against engines."""

    @endpoint(
        operation_id="inventory_drift",
        answer=DriftSerializer,
        summary="Where the record and the engines disagree, and what is placed badly",
    )
    def get(self, request: Request) -> Response:
        """Of every pool."""
        require(self.user, Permission.VIEW_ALL)
        return shown(DriftSerializer, disagreements())

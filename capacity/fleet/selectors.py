"""The fleet as gateways, pages and REST need it: bounded, ordered, as frozen values."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from django.db.models import Count, OuterRef, QuerySet, Subquery

from capacity.models import CapacityLimit as LimitRow
from capacity.models import Driver, Pool, PoolRevision, ProviderKey, Replica, ReplicaChange
from capacity.models import Model as ModelRow
from console.errors import NotFound
from console.web.keyset import DEFAULT_LIMIT, MAX_LIMIT, Page, take
from console.web.live_state import SeenPool, age_of_ms, pool_states
from routing.contracts.capabilities import OFFERED, ApiStyle, capabilities_of
from routing.contracts.capacity import LIMITED, CapacityLimit
from routing.contracts.endpoint_state import EndpointState
from routing.contracts.enums import Dimension, ReplicaHealth, ReplicaLifecycle
from routing.contracts.snapshot import EndpointEntry, PoolEntry

MAX_POOLS = 2000  # of one snapshot: beyond it the fleet is split over installations
MAX_MODELS = 2000
MAX_CHANGES = 50  # newest shown with a pool
_ROUTED = (ReplicaLifecycle.READY.value, ReplicaLifecycle.DRAINING.value)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A model as policies and admission need it. `bytes_per_token` is the low quantile."""

    name: str
    context_tokens: int
    output_cap_tokens: int
    bytes_per_token: float


@dataclass(frozen=True, slots=True)
class ReplicaRow:
    """A replica with what the collector last saw of it; None is unknown, never 0.

    `state` is the health when it is not ok, else the lifecycle. `scrape_age_s` is how old the live
    values are; `kv_free_tokens` follows from the reported occupancy.
    """

    name: str
    ordinal: int
    address: str
    lifecycle: str
    since: datetime
    cause: str
    state: str
    health: ReplicaHealth | None = None
    health_reason: str = ""
    running: int | None = None
    waiting: int | None = None
    kv_usage_ratio: float | None = None
    kv_free_tokens: int | None = None
    generation_tokens_per_s: float | None = None
    prompt_tokens_per_s: float | None = None
    prefix_hit_ratio: float | None = None
    engine_version: str = ""
    scrape_age_s: float | None = None


@dataclass(frozen=True, slots=True)
class PoolRow:
    """A pool with its replicas by ordinal.

    `live_age_s` is the age of the collector's report, None without one.
    """

    name: str
    model: str
    driver: str
    region: str
    domain: str
    hardware: str
    desired_replicas: int
    ready_replicas: int
    kv_capacity_tokens: int
    replicas: tuple[ReplicaRow, ...]
    live_age_s: float | None


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """One change of a replica's state."""

    replica: str
    at: datetime
    before: str
    after: str
    cause: str


@dataclass(frozen=True, slots=True)
class PoolDetail:
    """A pool, its settings, and the newest changes of its replicas.

    `capabilities` are those that requests are held against; `key_hint` is the end of the provider's
    API key, empty without one.
    """

    pool: PoolRow
    spec: dict[str, object]
    revision: int
    block_size_tokens: int
    changes: tuple[ChangeRow, ...]
    style: ApiStyle
    capabilities: tuple[str, ...]
    are_capabilities_stated: bool
    key_hint: str
    key_set_at: datetime | None


def models_for_snapshot() -> dict[str, ModelFacts]:
    """Every model by name."""
    rows = ModelRow.objects.order_by("name").values_list(
        "name", "context_tokens", "output_cap_tokens", "bytes_per_token"
    )[:MAX_MODELS]
    return {row[0]: ModelFacts(*row) for row in rows}


def pools_for_snapshot() -> dict[str, PoolEntry]:
    """Every pool by name with the replicas that may hold work: ready ones, and draining ones."""
    pools = list(_pools().order_by("name")[:MAX_POOLS])
    endpoints: dict[int, list[EndpointEntry]] = {pool.pk: [] for pool in pools}
    limits: dict[int | None, list[LimitRow]] = {}
    for bound in LimitRow.objects.exclude(pool=None):
        limits.setdefault(bound.pool_id, []).append(bound)
    running: dict[int, set[int]] = {pool.pk: {pool.revision} for pool in pools}
    for row in Replica.objects.filter(removed_at=None, lifecycle__in=_ROUTED).order_by(
        "pool_id", "ordinal"
    ):
        if row.pool_id in endpoints and row.port:
            endpoints[row.pool_id].append(_endpoint(row))
            running[row.pool_id] |= {row.revision} if row.revision else set()
    keys = {row.pool_id: bytes(row.sealed) for row in ProviderKey.objects.all()[:MAX_POOLS]}
    refusing = _refuse_priority({pool.pk: pool for pool in pools}, running)
    return {
        pool.name: PoolEntry(
            id=pool.name,
            served_model=_served_name(pool),
            region=pool.domain.region.slug,
            failure_domain=f"{pool.domain.region.slug}/{pool.domain.slug}",
            hardware=pool.hardware,
            kv_capacity_tokens=pool.kv_capacity_tokens,
            block_size_tokens=pool.block_size_tokens,
            endpoints=tuple(endpoints[pool.pk]),
            takes_priority=_takes_priority(pool.driver, pool.spec) and pool.pk not in refusing,
            limits=_limits(limits.get(pool.pk, ())),
            style=style_of(pool.spec),
            has_tls=style_of(pool.spec) is not ApiStyle.ENGINE or bool(pool.spec.get("tls")),
            path_prefix=str(pool.spec.get("path_prefix", "")),
            sealed_key=keys.get(pool.pk, b""),
            capabilities=tuple(pool.capabilities),
        )
        for pool in pools
    }


def capacity_limits(pool: str | None) -> tuple[CapacityLimit, ...]:
    """Limits of a pool, or of the whole fleet (None), over all tenants. Raises `NotFound`."""
    if pool is None:
        return _limits(LimitRow.objects.filter(pool=None))
    row = Pool.objects.filter(name=pool).first()
    if row is None:
        raise NotFound("No such pool.")
    return _limits(LimitRow.objects.filter(pool=row))


def _limits(rows: Iterable[LimitRow]) -> tuple[CapacityLimit, ...]:
    found = [CapacityLimit(Dimension(row.dimension), row.amount) for row in rows]
    return tuple(sorted(found, key=lambda one: LIMITED.index(one.dimension)))


def fleet_page(*, after: str | None = None, limit: int = DEFAULT_LIMIT) -> Page[PoolRow]:
    """Pools by name with their replicas and live values: two queries and one store round trip."""
    page = take(_pools(), order=("name",), after=after, limit=limit)
    return Page(tuple(_with_live(list(page.rows))), page.next_after, page.limit)


def pools_named(text: str, *, limit: int) -> list[tuple[str, str]]:
    """Name and model of pools whose name holds the text, in order of name."""
    rows = Pool.objects.filter(name__contains=text.lower()).order_by("name")
    return list(rows.values_list("name", "model__name")[: min(limit, MAX_LIMIT)])


def pool_detail(pool: str) -> PoolDetail:
    """One pool by name. Raises `NotFound`."""
    row = _pools().select_related("provider_key").filter(name=pool).first()
    if row is None:
        raise NotFound("No such pool.")
    able = capabilities_of(style_of(row.spec), row.capabilities)
    key: ProviderKey | None = getattr(row, "provider_key", None)
    changes = (
        ReplicaChange.objects.filter(replica__pool=row)
        .select_related("replica")
        .order_by("-id")[:MAX_CHANGES]
    )
    return PoolDetail(
        pool=_with_live([row])[0],
        spec=row.spec,
        revision=row.revision,
        block_size_tokens=row.block_size_tokens,
        changes=tuple(
            ChangeRow(one.replica.name, one.at, one.before, one.after, one.cause) for one in changes
        ),
        style=style_of(row.spec),
        capabilities=tuple(one.value for one in OFFERED if one in able),
        are_capabilities_stated=bool(row.capabilities),
        key_hint=key.hint if key else "",
        key_set_at=key.set_at if key else None,
    )


def restarts(names: Collection[str], since: datetime) -> dict[str, tuple[int, str]]:
    """How often each of these replicas was started again since then, and why last; one query."""
    failures = ReplicaChange.objects.filter(
        replica=OuterRef("replica"), after=ReplicaLifecycle.FAILED.value
    )
    rows = (
        ReplicaChange.objects.filter(
            replica__name__in=names,
            at__gte=since,
            before=ReplicaLifecycle.FAILED.value,
            after=ReplicaLifecycle.LOADING.value,
        )
        .values("replica__name")
        .annotate(count=Count("id"), why=Subquery(failures.order_by("-id").values("cause")[:1]))
    )
    return {row["replica__name"]: (row["count"], row["why"]) for row in rows}


def _pools() -> QuerySet[Pool]:
    return Pool.objects.select_related("model", "domain__region")


def style_of(spec: Mapping[str, object]) -> ApiStyle:
    """Whose API a pool's addresses speak."""
    return ApiStyle(str(spec.get("api", ApiStyle.ENGINE.value)))


def _served_name(pool: Pool) -> str:
    """The name that a pool's engines, or its provider, know the model by."""
    return str(pool.spec.get("upstream_model") or pool.model.name)


def _takes_priority(driver: str, spec: Mapping[str, object]) -> bool:
    """The process driver always starts vLLM so; others are as their settings say."""
    return driver == Driver.PROCESS or spec.get("scheduling_policy") == "priority"


def _refuse_priority(pools: Mapping[int, Pool], running: Mapping[int, set[int]]) -> set[int]:
    """Pools with a replica of another revision whose engine would refuse a call with a priority."""
    mixed = [pk for pk, numbers in running.items() if len(numbers) > 1]
    if not mixed:
        return set()
    rows = PoolRevision.objects.filter(pool_id__in=mixed).values_list("pool_id", "number", "spec")
    return {
        pk
        for pk, number, spec in rows
        if number in running[pk] and not _takes_priority(pools[pk].driver, spec)
    }


def _endpoint(row: Replica) -> EndpointEntry:
    is_draining = row.lifecycle == ReplicaLifecycle.DRAINING.value
    return EndpointEntry(
        replica_id=row.name,
        host=row.host,
        port=row.port,
        is_draining=is_draining,
        ready_at_ms=0 if is_draining else int(row.lifecycle_since.timestamp() * 1000),
        kv_events=str(row.handle.get("kv_events", "")),
        kv_replay=str(row.handle.get("kv_replay", "")),
    )


def _with_live(pools: list[Pool]) -> list[PoolRow]:
    replicas: dict[int, list[Replica]] = {pool.pk: [] for pool in pools}
    for row in Replica.objects.filter(pool__in=pools, removed_at=None).order_by(
        "pool_id", "ordinal"
    ):
        replicas[row.pool_id].append(row)
    live = pool_states(pool.name for pool in pools) or {}
    return [_pool_row(pool, replicas[pool.pk], live.get(pool.name)) for pool in pools]


def _pool_row(pool: Pool, rows: list[Replica], live: SeenPool | None) -> PoolRow:
    states = {state.replica_id: state for state in live.state.endpoints} if live else {}
    ready = ReplicaLifecycle.READY.value
    return PoolRow(
        name=pool.name,
        model=pool.model.name,
        driver=pool.driver,
        region=pool.domain.region.slug,
        domain=pool.domain.slug,
        hardware=pool.hardware,
        desired_replicas=pool.desired_replicas,
        ready_replicas=sum(1 for row in rows if row.lifecycle == ready),
        kv_capacity_tokens=pool.kv_capacity_tokens,
        replicas=tuple(_replica_row(row, states.get(row.name)) for row in rows),
        live_age_s=live.age_s if live else None,
    )


def _replica_row(row: Replica, state: EndpointState | None) -> ReplicaRow:
    base = ReplicaRow(
        name=row.name,
        ordinal=row.ordinal,
        address=f"{row.host}:{row.port}" if row.port else "",
        lifecycle=row.lifecycle,
        since=row.lifecycle_since,
        cause=row.cause,
        state=row.lifecycle,
    )
    if state is None:
        return base
    free = None
    if state.kv_usage_ratio is not None and state.kv_capacity_tokens is not None:
        free = round((1 - state.kv_usage_ratio) * state.kv_capacity_tokens)
    return replace(
        base,
        state=row.lifecycle if state.health is ReplicaHealth.OK else state.health.value,
        health=state.health,
        health_reason=state.reason,
        running=state.running,
        waiting=state.waiting,
        kv_usage_ratio=state.kv_usage_ratio,
        kv_free_tokens=free,
        generation_tokens_per_s=state.generation_tokens_per_s,
        prompt_tokens_per_s=state.prompt_tokens_per_s,
        prefix_hit_ratio=state.prefix_hit_ratio,
        engine_version=state.engine_version,
        scrape_age_s=age_of_ms(state.at_ms),
    )

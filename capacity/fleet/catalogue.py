"""The inventory as pages and REST show it: rows of each table, drift, placement."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

from capacity.fleet.rules.drift import (
    Drift,
    Placement,
    PoolSides,
    ReplicaSides,
    drift_of,
    placement_warnings,
)
from capacity.fleet.rules.table import BY_NAME, Value
from capacity.models import (
    Artifact,
    FailureDomain,
    GpuType,
    Model,
    Node,
    NodeState,
    Pool,
    PoolRevision,
    Region,
    Replica,
)
from console.errors import NotFound
from console.web.keyset import DEFAULT_LIMIT, Page, take
from console.web.live_state import STALE_AFTER_S, SeenPool, age_of_ms, pool_states
from routing.contracts.endpoint_state import EndpointState
from routing.contracts.enums import ReplicaLifecycle

MAX_POOLS = 2000
MAX_SHOWN = 500  # disagreements of one page; more mean one cause, not many
MAX_NODES = 20_000


@dataclass(frozen=True, slots=True)
class Table:
    """How the rows of a kind are read: the query, its order, and a row's values by column."""

    rows: Callable[[], QuerySet[Any]]
    order: tuple[str, ...]
    values: Callable[[Any], dict[str, Value]]


@dataclass(frozen=True, slots=True)
class Disagreements:
    """Where record and engines disagree; `is_cut` when there are more than are shown.

    `is_blind` while nothing is known of the engines, because the store does not answer.
    """

    drift: tuple[Drift, ...]
    placement: tuple[Drift, ...]
    pools: int
    is_cut: bool
    is_blind: bool


def _named(*names: str) -> Callable[[Any], dict[str, Value]]:
    return lambda row: {name: getattr(row, name) for name in names}


def _node(row: Node) -> dict[str, Value]:
    return {
        "name": row.name,
        "region": row.domain.region.slug,
        "domain": row.domain.slug,
        "gpu_type": row.gpu_type.name if row.gpu_type else "",
        "gpu_count": row.gpu_count,
        "state": row.state,
        "note": row.note,
    }


def _pool(row: Pool) -> dict[str, Value]:
    return {
        "name": row.name,
        "model": row.model.name,
        "driver": row.driver,
        "region": row.domain.region.slug,
        "domain": row.domain.slug,
        "hardware": row.hardware,
        "gpus_per_replica": row.gpus_per_replica,
        "block_size_tokens": row.block_size_tokens,
        "desired_replicas": row.desired_replicas,
        "spec": row.spec,
    }


TABLES: Mapping[str, Table] = {
    "region": Table(Region.objects.all, ("slug",), _named("slug", "name")),
    "domain": Table(
        lambda: FailureDomain.objects.select_related("region"),
        ("id",),
        lambda row: {"region": row.region.slug, "slug": row.slug},
    ),
    "gpu_type": Table(
        GpuType.objects.all,
        ("name",),
        _named(*BY_NAME["gpu_type"].header),
    ),
    "node": Table(
        lambda: Node.objects.select_related("domain__region", "gpu_type"), ("name",), _node
    ),
    "model": Table(Model.objects.all, ("name",), _named(*BY_NAME["model"].header)),
    "artifact": Table(
        lambda: Artifact.objects.select_related("model"),
        ("id",),
        lambda row: {
            **_named("version", "location", "sha256", "size_bytes", "precision")(row),
            "model": row.model.name,
        },
    ),
    "pool": Table(lambda: Pool.objects.select_related("model", "domain__region"), ("name",), _pool),
}


def table_page(
    kind: str, *, after: str | None = None, limit: int = DEFAULT_LIMIT
) -> Page[dict[str, Value]]:
    """Rows of a kind by column: one query. Raises `NotFound`."""
    table = TABLES.get(kind)
    if table is None:
        raise NotFound("No such kind.", field="kind", hint=f"One of {', '.join(TABLES)}.")
    page = take(table.rows(), order=table.order, after=after, limit=limit)
    return page.map(table.values)


def disagreements() -> Disagreements:
    """Every pool's record beside what the collector says: four queries, one store round trip."""
    pools = list(
        Pool.objects.select_related("model", "domain__region").order_by("name")[:MAX_POOLS]
    )
    replicas: dict[int, list[Replica]] = {pool.pk: [] for pool in pools}
    for row in Replica.objects.filter(removed_at=None).order_by("ordinal"):
        replicas.setdefault(row.pool_id, []).append(row)
    wanted = _wanted_versions(pools)
    seen = pool_states(pool.name for pool in pools)
    found: list[Drift] = []
    for pool in pools:
        live = (seen or {}).get(pool.name)
        found += drift_of(_sides(pool, replicas[pool.pk], live, wanted.get(pool.pk, "")))
    return Disagreements(
        drift=tuple(found[:MAX_SHOWN]),
        placement=placement_warnings([_placed(pool) for pool in pools], _gpus_by_domain()),
        pools=len(pools),
        is_cut=len(found) > MAX_SHOWN,
        is_blind=seen is None,
    )


def _wanted_versions(pools: list[Pool]) -> dict[int, str]:
    present = {(pool.pk, pool.revision) for pool in pools}
    rows = PoolRevision.objects.exclude(engine_version="").values_list(
        "pool_id", "number", "engine_version"
    )
    return {pool: version for pool, number, version in rows if (pool, number) in present}


def _sides(
    pool: Pool, rows: list[Replica], live: SeenPool | None, engine_version: str
) -> PoolSides:
    states = {one.replica_id: one for one in live.state.endpoints} if live else {}
    # A retired replica is on its way out: neither side has to say anything of it.
    known = [(row, states.pop(row.name, None)) for row in rows]
    sides = [_known(pool, row, state) for row, state in known if not row.is_retired]
    fresh = [one for one in states.values() if _is_fresh(one)]
    sides += [ReplicaSides(name=one.replica_id, lifecycle=None) for one in fresh]
    return PoolSides(
        name=pool.name,
        revision=pool.revision,
        desired_replicas=pool.desired_replicas,
        kv_capacity_tokens=pool.kv_capacity_tokens,
        block_size_tokens=pool.block_size_tokens,
        engine_version=engine_version,
        is_rolling=pool.surge_replicas > 0,
        replicas=tuple(sides),
        is_hosted="api" in pool.spec,
    )


def _is_fresh(state: EndpointState) -> bool:
    return age_of_ms(state.at_ms) <= STALE_AFTER_S


def _known(pool: Pool, row: Replica, state: EndpointState | None) -> ReplicaSides:
    lifecycle, revision = ReplicaLifecycle(row.lifecycle), row.revision or pool.revision
    if state is None or not _is_fresh(state):
        return ReplicaSides(row.name, lifecycle, revision)
    return ReplicaSides(
        name=row.name,
        lifecycle=lifecycle,
        revision=revision,
        health=state.health,
        health_reason=state.reason,
        engine_version=state.engine_version,
        kv_capacity_tokens=state.kv_capacity_tokens,
        block_size_tokens=state.block_size_tokens,
    )


def _placed(pool: Pool) -> Placement:
    where = f"{pool.domain.region.slug}/{pool.domain.slug}"
    return Placement(
        pool.name, pool.model.name, where, pool.desired_replicas, pool.gpus_per_replica
    )


def _gpus_by_domain() -> dict[str, int]:
    found: dict[str, int] = {}
    rows = Node.objects.filter(state=NodeState.IN_SERVICE).values_list(
        "domain__region__slug", "domain__slug", "gpu_count"
    )
    for region, domain, count in rows[:MAX_NODES]:
        found[f"{region}/{domain}"] = found.get(f"{region}/{domain}", 0) + count
    return found

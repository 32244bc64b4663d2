"""Inventory writes. Each is audited and reaches gateways and reconciling in its own transaction."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from capacity.drivers.base import DriverError, PoolDriver, PoolSpec
from capacity.drivers.process import ProcessDriver
from capacity.drivers.simulated import SimulatedDriver
from capacity.drivers.static import StaticDriver
from capacity.fleet.rules import MAX_REPLICAS, free_ordinals
from capacity.models import (
    Driver,
    FailureDomain,
    Model,
    Pool,
    PoolRevision,
    Region,
    Replica,
    ReplicaChange,
)
from capacity.simulation.catalogue import named
from console.audit.rules import Actor
from console.audit.services import record
from console.errors import Conflict, InvalidInput, NotFound
from console.jobs.services import enqueue
from console.validation import save_valid
from routing.contracts.enums import ReplicaLifecycle

PUSH_SNAPSHOT = "push_snapshot"
RECONCILE_POOLS = "reconcile_pools"
DEFAULT_PROFILE = "demo"


@lru_cache(maxsize=1)
def drivers() -> Mapping[str, PoolDriver]:
    """Drivers of this installation by name; a pool of any other kind is refused."""
    return {
        Driver.SIMULATED.value: SimulatedDriver(settings.STATE_DIR, settings.BASE_DIR),
        Driver.PROCESS.value: ProcessDriver(settings.STATE_DIR, settings.BASE_DIR),
        Driver.STATIC.value: StaticDriver(settings.PROVIDER_CA_FILE, settings.PRIVATE_PROVIDERS),
    }


def spec_of(pool: Pool) -> PoolSpec:
    """The pool as its driver sees it. Reads the pool's model."""
    return PoolSpec(
        pool=pool.name,
        model=pool.model.name,
        settings=pool.spec,
        block_size_tokens=pool.block_size_tokens,
    )


def specs_of(pool: Pool, replicas: Iterable[Replica]) -> dict[int, PoolSpec]:
    """By number, each revision that the pool or one of its replicas runs, as the driver sees it."""
    numbers = {row.revision for row in replicas if row.revision} - {pool.revision}
    specs = {pool.revision: spec_of(pool)}
    for row in PoolRevision.objects.filter(pool=pool, number__in=numbers):
        specs[row.number] = revised(pool, row)
    return specs


def revised(pool: Pool, revision: PoolRevision) -> PoolSpec:
    """A revision of the pool as its driver sees it. Reads the pool's model."""
    return PoolSpec(pool.name, pool.model.name, revision.spec, revision.block_size_tokens)


@transaction.atomic
def create_region(*, slug: str, name: str, actor: Actor) -> int:
    """Add a region; returns its id. Raises `InvalidInput`, or `Conflict` when the slug is taken."""
    row = Region(slug=slug, name=name)
    save_valid(row, taken="A region with this slug exists.", field="slug")
    _audit(actor, "region.create", "region", row.pk, {"slug": slug, "name": name})
    return row.pk


@transaction.atomic
def create_domain(*, region: str, slug: str, actor: Actor) -> int:
    """Add a failure domain to a region; returns its id. Raises `NotFound`, `Conflict`."""
    row = FailureDomain(region=_region(region), slug=slug)
    save_valid(row, taken="The region has a domain of this slug.", field="slug")
    _audit(actor, "domain.create", "failure_domain", row.pk, {"region": region, "slug": slug})
    return row.pk


@transaction.atomic
def create_model(
    *,
    name: str,
    context_tokens: int,
    output_cap_tokens: int = 4096,
    bytes_per_token: float = 2.5,
    actor: Actor,
) -> int:
    """Add a model that pools can serve; returns its id. Raises `InvalidInput`, `Conflict`."""
    row = Model(
        name=name,
        context_tokens=context_tokens,
        output_cap_tokens=output_cap_tokens,
        bytes_per_token=bytes_per_token,
    )
    save_valid(row, taken="A model of this name exists.", field="name")
    after = {"name": name, "context_tokens": context_tokens, "bytes_per_token": bytes_per_token}
    _audit(actor, "model.create", "model", row.pk, after)
    _push()
    return row.pk


@transaction.atomic
def create_pool(  # noqa: PLR0913 - the columns of a pool, all by name
    *,
    name: str,
    model: str,
    driver: str,
    region: str,
    domain: str,
    hardware: str = "",
    kv_capacity_tokens: int = 0,
    block_size_tokens: int = 16,
    spec: Mapping[str, Any] | None = None,
    desired_replicas: int = 0,
    actor: Actor,
) -> int:
    """Add a pool; its replicas start with the next reconciling. Returns its id.

    The KV capacity follows from the settings, where they fix it, unless given. Raises `NotFound`
    for an unknown model or domain, `InvalidInput` for settings that the driver refuses, `Conflict`.
    """
    row = Pool(
        name=name,
        model=_model(model),
        driver=driver,
        domain=_domain(region, domain),
        hardware=hardware,
        desired_replicas=_count(desired_replicas),
        block_size_tokens=block_size_tokens,
        spec=dict(spec or {}),
    )
    _check_spec(row)
    row.kv_capacity_tokens = kv_capacity_tokens or kv_tokens_of(row)
    save_valid(row, taken="A pool of this name exists.", field="name")
    after = {"name": name, "model": model, "driver": driver, "desired_replicas": desired_replicas}
    PoolRevision.objects.create(
        pool=row,
        number=row.revision,
        spec=row.spec,
        block_size_tokens=block_size_tokens,
        note="as it was made",
        author=actor.label,
    )
    _audit(actor, "pool.create", "pool", row.pk, after)
    _push()
    enqueue(RECONCILE_POOLS, dedupe_key=RECONCILE_POOLS)
    return row.pk


@transaction.atomic
def set_desired_replicas(*, pool: str, replicas: int, actor: Actor, reason: str = "") -> None:
    """How many replicas a pool shall have; reconciling starts or drains them.

    Raises `NotFound`, `InvalidInput` beyond `MAX_REPLICAS`, or `Conflict` during a rollout.
    """
    row = Pool.objects.select_for_update().filter(name=pool).first()
    if row is None:
        raise NotFound("No such pool.")
    before, row.desired_replicas = row.desired_replicas, _count(replicas)
    if before == replicas:
        return
    if row.surge_replicas:
        raise Conflict(
            f"A rollout has pool {pool}: it counts on {before} replicas.",
            code="rollout_running",
            field="replicas",
            hint="Wait until it ends, or abort it.",
        )
    row.save(update_fields=["desired_replicas"])
    record(
        actor=actor,
        act="pool.scale",
        object_type="pool",
        object_id=pool,
        reason=reason,
        before={"desired_replicas": before},
        after={"desired_replicas": replicas},
    )
    enqueue(RECONCILE_POOLS, dedupe_key=RECONCILE_POOLS)


@transaction.atomic
def ensure_replicas(*, pool_id: int) -> None:
    """Rows until the pool has as many as it desires; removed ones of that name come back."""
    pool = Pool.objects.select_for_update().get(pk=pool_id)
    present = Replica.objects.filter(pool=pool, removed_at=None)
    taken = set(present.values_list("ordinal", flat=True))
    kept = present.filter(is_retired=False).count()
    missing = min(pool.desired_replicas, MAX_REPLICAS) - kept
    for ordinal in free_ordinals(taken, missing):
        add_replica(pool=pool, ordinal=ordinal, cause="desired")


def add_replica(
    *, pool: Pool, ordinal: int, cause: str, revision: int | None = None, is_held: bool = False
) -> Replica:
    """A row for one more replica, not started yet; call with the pool's row locked.

    Reconciling starts it; one that `is_held` gets no work until it is let go.
    """
    now = timezone.now()
    cold = ReplicaLifecycle.COLD.value
    row, _created = Replica.objects.update_or_create(
        name=f"{pool.name}-{ordinal}",
        defaults={
            "pool": pool,
            "ordinal": ordinal,
            "host": "",
            "port": 0,
            "handle": {},
            "lifecycle": cold,
            "lifecycle_since": now,
            "cause": cause,
            "revision": revision or pool.revision,
            "is_held": is_held,
            "is_retired": False,
            "drain_limit_s": None,
            "removed_at": None,
        },
    )
    ReplicaChange.objects.create(replica=row, at=now, before="", after=cold, cause=cause)
    return row


@transaction.atomic
def change_replica(
    *,
    replica_id: int,
    expected: str,
    lifecycle: str,
    cause: str,
    handle: Mapping[str, Any],
    address: tuple[str, int] = ("", 0),
    removed_at: datetime | None = None,
) -> bool:
    """Record a replica's state, handle and address; a change of state is kept and pushed.

    False, and nothing written, when the row is no longer in the `expected` state: somebody else
    went on with it.
    """
    row = Replica.objects.select_for_update().get(pk=replica_id)
    if row.lifecycle != expected:
        return False
    row.handle = dict(handle)
    row.host, row.port = address
    row.removed_at = removed_at
    fields = ["handle", "host", "port", "removed_at"]
    is_changed = lifecycle != expected
    if is_changed:
        row.lifecycle = lifecycle
        row.lifecycle_since = timezone.now()
        row.cause = cause[:200]
        fields += ["lifecycle", "lifecycle_since", "cause"]
        ReplicaChange.objects.create(
            replica=row, at=row.lifecycle_since, before=expected, after=lifecycle, cause=row.cause
        )
    row.save(update_fields=fields)
    if is_changed:
        _push()
    return True


def _push() -> None:
    enqueue(PUSH_SNAPSHOT, dedupe_key=PUSH_SNAPSHOT)


def _audit(actor: Actor, act: str, kind: str, pk: int, after: Mapping[str, object]) -> None:
    record(actor=actor, act=act, object_type=kind, object_id=str(pk), after=dict(after))


def _count(replicas: int) -> int:
    if not 0 <= replicas <= MAX_REPLICAS:
        raise InvalidInput(
            f"A pool has 0 to {MAX_REPLICAS} replicas.",
            field="replicas",
            hint="Spread more over several pools, each in its own failure domain.",
        )
    return replicas


def _check_spec(pool: Pool) -> None:
    driver = drivers().get(pool.driver)
    if driver is None:
        known = ", ".join(sorted(drivers()))
        raise InvalidInput(
            f"No driver {pool.driver!r} here.", field="driver", hint=f"Choose one of {known}."
        )
    try:
        driver.check(spec_of(pool))
    except DriverError as error:
        raise InvalidInput(str(error), field="spec") from error


def kv_tokens_of(pool: Pool) -> int:
    """KV capacity of a replica as the settings fix it, else 0: not known before one runs."""
    if pool.driver == Driver.SIMULATED:
        profile = named(pool.spec.get("profile", DEFAULT_PROFILE))
        blocks = pool.spec.get("kv_blocks", profile.kv_blocks)
    else:
        blocks = pool.spec.get("num_gpu_blocks_override", 0)
    return int(blocks) * pool.block_size_tokens


def _region(slug: str) -> Region:
    row = Region.objects.filter(slug=slug).first()
    if row is None:
        raise NotFound("No such region.", field="region")
    return row


def _domain(region: str, slug: str) -> FailureDomain:
    row = FailureDomain.objects.filter(region__slug=region, slug=slug).first()
    if row is None:
        raise NotFound("The region has no such failure domain.", field="domain")
    return row


def _model(name: str) -> Model:
    row = Model.objects.filter(name=name).first()
    if row is None:
        raise NotFound("No such model.", field="model")
    return row

"""Where the record and the engines disagree, and what follows from how pools are placed."""

from collections.abc import Sequence
from dataclasses import dataclass

from routing.contracts.enums import ReplicaHealth, ReplicaLifecycle


@dataclass(frozen=True, slots=True)
class ReplicaSides:
    """A replica in the record (`lifecycle`, None: not there) and as its engine was last seen.

    `health` None: no fresh report. Sizes are None where nobody says.
    """

    name: str
    lifecycle: ReplicaLifecycle | None
    revision: int = 0
    health: ReplicaHealth | None = None
    health_reason: str = ""
    engine_version: str = ""
    kv_capacity_tokens: int | None = None
    block_size_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class PoolSides:
    """A pool's record with both sides of its replicas."""

    name: str
    revision: int
    desired_replicas: int
    kv_capacity_tokens: int
    block_size_tokens: int
    engine_version: str
    is_rolling: bool
    replicas: tuple[ReplicaSides, ...]
    is_hosted: bool = False  # a provider reports nothing


@dataclass(frozen=True, slots=True)
class Drift:
    """One disagreement: what is recorded, what is seen, what to do."""

    pool: str
    replica: str
    what: str
    recorded: str
    seen: str
    next_step: str


def drift_of(pool: PoolSides) -> tuple[Drift, ...]:
    """Every disagreement of a pool; what a running rollout is about to change is none."""
    found = [one for replica in pool.replicas for one in _replica(pool, replica)]
    return (*_pool(pool), *found)


def _pool(pool: PoolSides) -> list[Drift]:
    found = []
    known = [one for one in pool.replicas if one.lifecycle is not None]
    ready = sum(one.lifecycle is ReplicaLifecycle.READY for one in known)
    if ready < pool.desired_replicas and not pool.is_rolling:
        found.append(
            Drift(
                pool.name,
                "",
                "ready replicas",
                str(pool.desired_replicas),
                str(ready),
                "See the pool's replicas for the cause.",
            )
        )
    versions = sorted({one.engine_version for one in known if one.engine_version})
    if len(versions) > 1 and not pool.is_rolling:
        found.append(
            Drift(
                pool.name,
                "",
                "engine version",
                "one for the pool",
                ", ".join(versions),
                "Roll the pool out, so that its replicas are alike.",
            )
        )
    return found


def _replica(pool: PoolSides, one: ReplicaSides) -> list[Drift]:
    if one.lifecycle is None:
        return [
            Drift(
                pool.name,
                one.name,
                "replica",
                "not in the record",
                "its engine reports",
                "End that engine, or wait: the collector forgets what left the snapshot.",
            )
        ]
    found = []
    if one.revision != pool.revision and not pool.is_rolling:
        found.append(
            _of(
                pool,
                one,
                "revision",
                pool.revision,
                one.revision,
                "Roll back, or start a rollout of the pool.",
            )
        )
    is_ready = one.lifecycle is ReplicaLifecycle.READY and not pool.is_hosted
    if is_ready and one.health is not ReplicaHealth.OK:
        seen = "no fresh report" if one.health is None else f"{one.health}: {one.health_reason}"
        found.append(
            _of(pool, one, "state", "ready", seen, "Look at its log; is the collector running?")
        )
    return found + _sizes(pool, one)


def _sizes(pool: PoolSides, one: ReplicaSides) -> list[Drift]:
    found = []
    mend = "Correct the pool's record, or roll the pool out."
    for what, recorded, seen in (
        ("KV capacity, tok", pool.kv_capacity_tokens, one.kv_capacity_tokens),
        ("KV block, tok", pool.block_size_tokens, one.block_size_tokens),
    ):
        if recorded and seen is not None and seen != recorded and not pool.is_rolling:
            found.append(_of(pool, one, what, recorded, seen, mend))
    wanted = pool.engine_version
    if wanted and one.engine_version and not one.engine_version.startswith(wanted):
        found.append(_of(pool, one, "engine version", wanted, one.engine_version, mend))
    return found


def _of(
    pool: PoolSides, one: ReplicaSides, what: str, recorded: object, seen: object, next_step: str
) -> Drift:
    return Drift(pool.name, one.name, what, str(recorded), str(seen), next_step)


@dataclass(frozen=True, slots=True)
class Placement:
    """A pool as its place sees it: what it wants of the GPUs that its failure domain has."""

    pool: str
    model: str
    domain: str
    desired_replicas: int
    gpus_per_replica: int


def placement_warnings(
    pools: Sequence[Placement], gpus_by_domain: dict[str, int]
) -> tuple[Drift, ...]:
    """What is placed badly: more GPUs wanted than a domain has, a model in one domain only."""
    found = []
    for domain in sorted({one.domain for one in pools}):
        here = [one for one in pools if one.domain == domain]
        wanted = sum(one.desired_replicas * one.gpus_per_replica for one in here)
        if wanted > gpus_by_domain.get(domain, 0):
            found.append(
                Drift(
                    ", ".join(one.pool for one in here if one.gpus_per_replica),
                    "",
                    f"GPUs of {domain}",
                    f"{gpus_by_domain.get(domain, 0)} in service",
                    f"{wanted} wanted",
                    "Add nodes, want fewer replicas, or place a pool elsewhere.",
                )
            )
    for model in sorted({one.model for one in pools}):
        serving = [one for one in pools if one.model == model and one.desired_replicas]
        if len({one.domain for one in serving}) == 1:
            found.append(
                Drift(
                    ", ".join(one.pool for one in serving),
                    "",
                    f"placement of {model}",
                    "several failure domains",
                    f"{serving[0].domain} only",
                    "Add a pool in another domain: losing this one loses the model.",
                )
            )
    return tuple(found)

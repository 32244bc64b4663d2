"""The pool of a rollout that is about to start."""

from dataclasses import dataclass

from capacity.models import (
    Artifact,
    Driver,
    Pool,
    Replica,
    Rollout,
)
from capacity.rollouts.selectors.lists import ACTIVE_STATES
from console.errors import NotFound
from routing.contracts.enums import ReplicaLifecycle

MAX_ARTIFACTS = 200


@dataclass(frozen=True, slots=True)
class PoolToRoll:
    """A pool as the start page needs it. `running_id` is a rollout that has it."""

    name: str
    model: str
    driver: str
    revision: int
    spec: dict[str, object]
    desired_replicas: int
    ready_replicas: int
    artifacts: tuple[str, ...]
    running_id: int | None
    is_rolled_here: bool


def pool_to_roll(pool: str) -> PoolToRoll:
    """The pool of a rollout that is about to start: four queries. Raises `NotFound`."""
    row = Pool.objects.select_related("model").filter(name=pool).first()
    if row is None:
        raise NotFound("No such pool.", field="pool")
    artifacts = Artifact.objects.filter(model=row.model).order_by("version")
    running = Rollout.objects.filter(pool=row, state__in=ACTIVE_STATES)
    return PoolToRoll(
        name=row.name,
        model=row.model.name,
        driver=row.driver,
        revision=row.revision,
        spec=row.spec,
        desired_replicas=row.desired_replicas,
        ready_replicas=ready_in(row),
        artifacts=tuple(artifacts.values_list("version", flat=True)[:MAX_ARTIFACTS]),
        running_id=running.values_list("pk", flat=True).first(),
        is_rolled_here=row.driver != Driver.STATIC,
    )


def ready_in(pool: Pool) -> int:
    """Replicas of the pool that serve: one query."""
    return Replica.objects.filter(
        pool=pool, removed_at=None, is_retired=False, lifecycle=ReplicaLifecycle.READY.value
    ).count()

"""What acts and machine share: locking a rollout, ending a lane, ending a rollout.

All of it runs in the caller's transaction with the rollout's row locked, then the pool's, then a
replica's: always in this order.
"""

from django.utils import timezone

from capacity.fleet.services import RECONCILE_POOLS
from capacity.models import Pool, Replica, Rollout, RolloutLane, RolloutState, RolloutStep
from capacity.rollouts.rules.lanes import COMMITTED, MOST_CAUSE_CHARS, Step
from console.audit.rules import SYSTEM, Actor
from console.audit.services import record
from console.errors import NotFound
from console.jobs.services import enqueue

ADVANCE_ROLLOUTS = "advance_rollouts"
SURGE = 1  # replicas above the desired number: one lane at a time


def locked(rollout_id: int) -> Rollout:
    """The rollout's row, locked, with its pool. Raises `NotFound`."""
    row = (
        Rollout.objects.select_for_update(of=("self",))
        .select_related("pool__model")
        .filter(pk=rollout_id)
        .first()
    )
    if row is None:
        raise NotFound("No such rollout.")
    return row


def open_lane(rollout: Rollout) -> RolloutLane | None:
    """The lane under way, if any."""
    return rollout.lanes.select_related("old", "new").filter(result="").first()


def enter(lane: RolloutLane, step: Step, note: str = "") -> None:
    """Take a lane to a step; the step before it ends. The table refuses a step taken twice."""
    now = timezone.now()
    lane.steps.filter(ended_at=None).update(ended_at=now)
    is_end = step in (Step.DONE, Step.DROPPED)
    RolloutStep.objects.create(
        lane=lane, step=step, begun_at=now, ended_at=now if is_end else None, note=note[:400]
    )
    lane.step, lane.step_since = step.value, now
    if is_end:
        lane.result, lane.cause = step.value, note[:400]
    lane.save(update_fields=["new", "step", "step_since", "result", "cause"])


def drop(rollout: Rollout, cause: str) -> None:
    """Give up the lane under way, with its new replica, unless the old one is going already."""
    lane = open_lane(rollout)
    if lane is None:
        return
    if lane.step in COMMITTED:
        enter(lane, Step.DONE, f"{cause}; the old replica was draining already")
        return
    if lane.new is not None:
        Replica.objects.filter(pk=lane.new.pk).update(is_retired=True)
    enter(lane, Step.DROPPED, cause)


def hold_pool(pool_id: int, surge: int) -> None:
    """Give the pool to a rollout (`SURGE`), or back (0)."""
    Pool.objects.filter(pk=pool_id).update(surge_replicas=surge)


def turn(rollout: Rollout, state: RolloutState, actor: Actor, *, reason: str = "") -> None:
    """Set a rollout's state, audited; the machine and reconciling go on with it."""
    before = rollout.state
    rollout.state = state.value
    is_over = state not in (RolloutState.RUNNING, RolloutState.PAUSED, RolloutState.ROLLING_BACK)
    rollout.ended_at = timezone.now() if is_over else None
    rollout.save(update_fields=["state", "resumes_to", "cause", "ended_at"])
    if is_over:
        hold_pool(rollout.pool_id, 0)
    record(
        actor=actor,
        act=f"rollout.{state.value}",
        object_type="rollout",
        object_id=str(rollout.pk),
        reason=reason or rollout.cause,
        before={"state": before},
        after={
            "state": state.value,
            "pool": rollout.pool.name,
            "from_revision": rollout.from_revision,
            "to_revision": rollout.to_revision,
        },
    )
    go_on()


def wait_for_person(rollout: Rollout, cause: str) -> None:
    """Stand still until somebody resumes it, aborts it or rolls it back; `cause` says why."""
    rollout.resumes_to = rollout.state
    rollout.cause = cause[:MOST_CAUSE_CHARS]
    turn(rollout, RolloutState.PAUSED, SYSTEM)


def go_on() -> None:
    """Ask the workers to look at pools and rollouts now. Call it last."""
    enqueue(RECONCILE_POOLS, dedupe_key=RECONCILE_POOLS)
    enqueue(ADVANCE_ROLLOUTS, dedupe_key=ADVANCE_ROLLOUTS)

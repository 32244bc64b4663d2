"""Moves rollouts on: one step, one transaction. Any worker may be killed anywhere.

A step is decided from what is seen without a lock, and written only if the lane still stands where
it was seen: so two workers, or one that comes back late, cannot take a step twice. Engines are only
asked questions here; starting and stopping them is reconciling's, which finds what it started.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from capacity.drivers.base import PoolSpec
from capacity.fleet.rules import free_ordinals
from capacity.fleet.services import (
    PUSH_SNAPSHOT,
    add_replica,
    change_replica,
    drivers,
    kv_tokens_of,
    revised,
)
from capacity.models import (
    Pool,
    PoolRevision,
    Replica,
    ReplicaChange,
    Rollout,
    RolloutLane,
    RolloutState,
)
from capacity.rollouts.rules.judging import Bar
from capacity.rollouts.rules.lanes import (
    LaneView,
    Limits,
    Member,
    NewReplica,
    Next,
    Step,
    Verdict,
    advance,
    checked,
    misfit,
    next_to_replace,
    pause_is_due,
)
from capacity.rollouts.services.judging import bar_of, judged, note_judgement
from capacity.rollouts.services.steps import (
    drop,
    enter,
    go_on,
    locked,
    open_lane,
    turn,
    wait_for_person,
)
from console.audit.rules import SYSTEM
from console.jobs.services import enqueue
from console.web.live_state import STALE_AFTER_S, age_of_ms, pool_states
from routing.contracts.enums import ReplicaHealth, ReplicaLifecycle

logger = logging.getLogger(__name__)

MAX_ROLLOUTS = 500  # looked at by one pass
MAX_MOVES = 12  # of one rollout in one pass: a lane has nine steps
MOVING = (RolloutState.RUNNING.value, RolloutState.ROLLING_BACK.value)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A lane as it was looked at, without a lock."""

    lane: RolloutLane
    view: LaneView
    limits: Limits


def advance_rollouts(
    *,
    is_cancelled: Callable[[], bool] = lambda: False,
    after_each: Callable[[int, float], None] = lambda _rollout, _ratio: None,
) -> int:
    """Move every rollout as far as it can go now; how many steps were taken.

    `after_each` is called with each rollout's id and the share of this pass that is done.
    """
    ids = list(
        Rollout.objects.filter(state__in=MOVING)
        .order_by("pk")
        .values_list("pk", flat=True)[:MAX_ROLLOUTS]
    )
    moves = 0
    for position, rollout_id in enumerate(ids, 1):
        for _ in range(MAX_MOVES):
            if is_cancelled() or not advance_once(rollout_id):
                break
            moves += 1
        after_each(rollout_id, position / len(ids))
    return moves


def advance_once(rollout_id: int) -> bool:
    """One step of one rollout; whether anything changed."""
    rollout = Rollout.objects.select_related("pool__model").filter(pk=rollout_id).first()
    if rollout is None or rollout.state not in MOVING:
        return False
    lane = open_lane(rollout)
    if lane is None:
        return _begin_lane_or_end(rollout_id)
    limits = Limits(rollout.load_limit_s, rollout.warm_s, bar_of(rollout))
    seen = _Seen(lane, _view(rollout, lane, limits.bar), limits)
    step = advance(seen.view, seen.limits, timezone.now().timestamp())
    if step.verdict is Verdict.CHECK:
        step = _check(rollout, seen)
    if step.verdict is Verdict.WAIT:
        note_judgement(lane, seen.view.judgement)
        return False
    return _take(rollout_id, seen, step)


def _view(rollout: Rollout, lane: RolloutLane, bar: Bar) -> LaneView:
    new = lane.new
    return LaneView(
        step=Step(lane.step),
        since_s=lane.step_since.timestamp(),
        new=None if new is None or new.removed_at is not None else _new(rollout, lane, new),
        is_old_gone=lane.old.removed_at is not None,
        judgement=judged(rollout, lane, bar),
    )


def _new(rollout: Rollout, lane: RolloutLane, new: Replica) -> NewReplica:
    failures = int(new.handle.get("failures", 0))
    cause = new.cause
    if failures:
        broke = ReplicaChange.objects.filter(replica=new, after=ReplicaLifecycle.FAILED.value)
        cause = broke.order_by("-id").values_list("cause", flat=True).first() or cause
    health, reason = (None, "")
    if lane.step in (Step.WARM, Step.JUDGE):
        health, reason = _health(rollout.pool.name, new.name, lane)
    return NewReplica(ReplicaLifecycle(new.lifecycle), cause, failures, health, reason)


def _health(pool: str, replica: str, lane: RolloutLane) -> tuple[ReplicaHealth | None, str]:
    """What the collector says of it since the step began; nothing said is no ground to stop."""
    seen = (pool_states([pool]) or {}).get(pool)
    begun_ms = lane.step_since.timestamp() * 1000
    for state in seen.state.endpoints if seen else ():
        is_fresh = state.at_ms >= begun_ms and age_of_ms(state.at_ms) <= STALE_AFTER_S
        if state.replica_id == replica and is_fresh:
            return state.health, state.reason
    return None, ""


def _check(rollout: Rollout, seen: _Seen) -> Next:
    """Ask the new engine what it is, or for a token."""
    lane, new = seen.lane, seen.lane.new
    driver = drivers().get(rollout.pool.driver)
    age_s = (timezone.now() - lane.step_since).total_seconds()
    step = Step(lane.step)
    if driver is None or new is None:
        return checked(step, "no driver of its kind answers here", is_answer=False, age_s=age_s)
    revision = PoolRevision.objects.get(pool=rollout.pool, number=lane.revision)
    spec: PoolSpec = revised(rollout.pool, revision)
    if step is Step.PROBE:
        is_good = driver.probe(spec, new.handle)
        return checked(step, "" if is_good else "completes nothing", is_answer=is_good, age_s=age_s)
    found = driver.identify(spec, new.handle)
    if found is None:
        return checked(step, "does not say what it serves", is_answer=False, age_s=age_s)
    wrong = misfit(found, spec.model, revision.engine_version)
    return checked(step, wrong, is_answer=True, age_s=age_s)


@transaction.atomic
def _take(rollout_id: int, seen: _Seen, step: Next) -> bool:
    """Write one step, unless the rollout or the lane went on meanwhile."""
    rollout = locked(rollout_id)
    lane = open_lane(rollout)
    if rollout.state not in MOVING or lane is None or lane.pk != seen.lane.pk:
        return False
    if lane.step != seen.view.step:
        return False
    note_judgement(lane, seen.view.judgement)
    if step.verdict is Verdict.HOLD:
        lane.judgement["is_held"] = True
        lane.save(update_fields=["judgement"])
        wait_for_person(rollout, f"{lane.new.name if lane.new else lane.number}: {step.cause}")
        return True
    if step.verdict is Verdict.FAIL or step.step is None:
        _turn_back(rollout, lane, step.cause)
        return True
    if not _act(rollout, lane, step.step):
        return False
    enter(lane, step.step, step.cause)
    logger.info("rollout %d lane %d: %s", rollout_id, lane.number, step.step)
    if step.step in (Step.LOAD, Step.DRAIN, Step.DONE):
        go_on()
    return True


def _act(rollout: Rollout, lane: RolloutLane, to: Step) -> bool:
    """What a step does to the fleet; False when a replica is not where it has to be."""
    if to is Step.LOAD:
        lane.new = _surge(rollout, lane)
    elif to is Step.WARM:
        return lane.new is not None and _let_go(lane.new)
    elif to is Step.DRAIN:
        Replica.objects.filter(pk=lane.old_id).update(
            is_retired=True, drain_limit_s=rollout.drain_limit_s
        )
    return True


def _surge(rollout: Rollout, lane: RolloutLane) -> Replica:
    """A row for the new replica, at a number that this rollout has not touched."""
    pool = Pool.objects.select_for_update().get(pk=rollout.pool_id)
    taken = set(
        Replica.objects.filter(pool=pool, removed_at=None).values_list("ordinal", flat=True)
    )
    for ours in rollout.lanes.select_related("old", "new"):
        taken |= {one.ordinal for one in (ours.old, ours.new) if one is not None}
    (ordinal,) = free_ordinals(taken, 1)
    cause = f"rollout {rollout.pk}: in place of {lane.old.name}"
    return add_replica(
        pool=pool, ordinal=ordinal, cause=cause, revision=lane.revision, is_held=True
    )


def _let_go(new: Replica) -> bool:
    """Ready for work from now on: its slow start begins."""
    is_ours = change_replica(
        replica_id=new.pk,
        expected=ReplicaLifecycle.WARMING.value,
        lifecycle=ReplicaLifecycle.READY.value,
        cause="passed the rollout's checks",
        handle=new.handle,
        address=(new.host, new.port),
    )
    if is_ours:
        Replica.objects.filter(pk=new.pk).update(is_held=False)
    return is_ours


def _turn_back(rollout: Rollout, lane: RolloutLane, cause: str) -> None:
    """A lane failed: back to the revision before, or, if that is what failed, stop for a person."""
    name = lane.new.name if lane.new else f"in place of {lane.old.name}"
    drop(rollout, cause)
    rollout.cause = f"{name}: {cause}"[:400]
    is_forward = rollout.state == RolloutState.RUNNING
    turn(rollout, RolloutState.ROLLING_BACK if is_forward else RolloutState.FAILED, SYSTEM)
    logger.warning("rollout %d is %s: %s", rollout.pk, rollout.state, rollout.cause)


@transaction.atomic
def _begin_lane_or_end(rollout_id: int) -> bool:
    rollout = locked(rollout_id)
    if rollout.state not in MOVING or open_lane(rollout) is not None:
        return False
    is_forward = rollout.state == RolloutState.RUNNING
    goal = rollout.to_revision if is_forward else rollout.from_revision
    members = _members(rollout.pool)
    replaced = next_to_replace(members, goal)
    done = sum(member.revision == goal for member in members)
    if (
        replaced is not None
        and is_forward
        and pause_is_due(rollout.pause_after, done, rollout.pauses_taken)
    ):
        rollout.pauses_taken = done
        rollout.save(update_fields=["pauses_taken"])
        wait_for_person(rollout, f"{done} of {len(members)} replicas are replaced, as was asked")
        return True
    if replaced is None:
        _end(rollout, goal, is_forward=is_forward)
        return True
    number = (rollout.lanes.aggregate(last=Max("number"))["last"] or 0) + 1
    lane = RolloutLane(
        rollout=rollout,
        number=number,
        revision=goal,
        old_id=replaced.replica_id,
        step=Step.SURGE.value,
        step_since=timezone.now(),
    )
    lane.save()
    enter(lane, Step.SURGE)
    return True


def _members(pool: Pool) -> list[Member]:
    rows = Replica.objects.filter(pool=pool, removed_at=None, is_retired=False)
    return [
        Member(
            row.pk,
            row.ordinal,
            row.revision or pool.revision,
            row.lifecycle == ReplicaLifecycle.READY.value,
        )
        for row in rows
    ]


def _end(rollout: Rollout, goal: int, *, is_forward: bool) -> None:
    """Every replica runs the goal: now it is what the pool is."""
    pool = Pool.objects.select_for_update().select_related("model").get(pk=rollout.pool_id)
    revision = PoolRevision.objects.get(pool=pool, number=goal)
    pool.revision = goal
    pool.spec, pool.block_size_tokens = revision.spec, revision.block_size_tokens
    pool.kv_capacity_tokens = kv_tokens_of(pool) or pool.kv_capacity_tokens
    pool.save(update_fields=["revision", "spec", "block_size_tokens", "kv_capacity_tokens"])
    turn(rollout, RolloutState.DONE if is_forward else RolloutState.ROLLED_BACK, SYSTEM)
    enqueue(PUSH_SNAPSHOT, dedupe_key=PUSH_SNAPSHOT)

"""One rollout: its lanes with their steps, what it waits for, how long it will still take."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
from django.db.models import QuerySet
from django.utils import timezone

from capacity.models import (
    PoolRevision,
    Rollout,
    RolloutLane,
    RolloutState,
    RolloutStep,
)
from capacity.rollouts.rules.judging import Judgement
from capacity.rollouts.rules.lanes import LANE_STEPS, Step, left_s, progress_ratio
from capacity.rollouts.selectors.lists import ACTIVE_STATES, RolloutRow, replaced_in, row_of
from capacity.rollouts.selectors.starting import ready_in
from console.errors import NotFound

MAX_LANES = 600  # of one rollout on a page: a full pool, there and back


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step of a lane. `took_s` counts on while it has not ended; None before it began."""

    step: str
    begun_at: datetime | None
    ended_at: datetime | None
    note: str
    took_s: float | None


@dataclass(frozen=True, slots=True)
class LaneRow:
    """One replica replaced by another, with every step that it takes, also those to come.

    `judgement` is how the new one compared when last looked at, None before and where it is not.
    """

    number: int
    revision: int
    old: str
    new: str
    new_lifecycle: str
    new_cause: str
    step: str
    result: str
    cause: str
    steps: tuple[StepRow, ...]
    judgement: Judgement | None = None


@dataclass(frozen=True, slots=True)
class RolloutDetail:
    """A rollout with its lanes, what it waits for, and what is left while it runs.

    `eta_s` is how long it will still take at the pace of its finished lanes (`is_own_pace`), else
    of the pool's last rollout; None without either, or while it does not move. `progress_ratio`
    counts the steps of the open lane too. `other_id` is another rollout that has the pool.
    """

    row: RolloutRow
    before: dict[str, object]
    after: dict[str, object]
    artifact: str
    engine_version: str
    load_limit_s: int
    warm_s: int
    drain_limit_s: int
    judge_requests: int
    judge_limit_s: int
    on_too_few: str
    on_too_few_label: str
    most_ttft_ratio: float
    most_error_excess_ratio: float
    pause_after: list[int]
    lanes: tuple[LaneRow, ...]
    ready_replicas: int
    desired_replicas: int
    progress_ratio: float
    eta_s: float | None
    is_own_pace: bool
    other_id: int | None
    is_way_back_known: bool


def rollout_detail(rollout_id: int) -> RolloutDetail:
    """One rollout with its timeline: nine queries at most. Raises `NotFound`."""
    row = Rollout.objects.select_related("pool__model").filter(pk=rollout_id).first()
    if row is None:
        raise NotFound("No such rollout.")
    revisions = {
        one.number: one
        for one in PoolRevision.objects.select_related("artifact").filter(
            pool=row.pool, number__in=(row.from_revision, row.to_revision)
        )
    }
    lanes = _lanes(row)
    shown = row_of(row, replaced_in([row]))
    to = revisions.get(row.to_revision)
    before = revisions.get(row.from_revision)
    own_pace_s = _mean_s(lanes)
    eta_s = _eta_s(row, shown, lanes, own_pace_s)
    other = Rollout.objects.filter(pool=row.pool, state__in=ACTIVE_STATES).exclude(pk=row.pk)
    return RolloutDetail(
        row=shown,
        before=before.spec if before else {},
        after=to.spec if to else {},
        artifact=to.artifact.version if to and to.artifact else "",
        engine_version=to.engine_version if to else "",
        load_limit_s=row.load_limit_s,
        warm_s=row.warm_s,
        drain_limit_s=row.drain_limit_s,
        judge_requests=row.judge_requests,
        judge_limit_s=row.judge_limit_s,
        on_too_few=row.on_too_few,
        on_too_few_label=row.get_on_too_few_display(),
        most_ttft_ratio=row.most_ttft_ratio,
        most_error_excess_ratio=row.most_error_excess_ratio,
        pause_after=row.pause_after,
        lanes=lanes,
        ready_replicas=ready_in(row.pool),
        desired_replicas=row.pool.desired_replicas,
        progress_ratio=_progress(shown, lanes),
        eta_s=eta_s,
        is_own_pace=own_pace_s is not None,
        other_id=other.values_list("pk", flat=True).first(),
        is_way_back_known=row.pool.revision == row.from_revision,
    )


def _lanes(rollout: Rollout) -> tuple[LaneRow, ...]:
    rows = rollout.lanes.select_related("old", "new").order_by("number")[:MAX_LANES]
    steps: dict[int, list[RolloutStep]] = {}
    found: QuerySet[RolloutStep] = RolloutStep.objects.filter(lane__rollout=rollout)
    for step in found.order_by("lane_id", "id")[: MAX_LANES * len(Step)]:
        steps.setdefault(step.lane_id, []).append(step)
    return tuple(_lane(row, steps.get(row.pk, ())) for row in rows)


def _lane(row: RolloutLane, taken: Sequence[RolloutStep]) -> LaneRow:
    now = timezone.now()
    shown = [
        StepRow(
            step=one.step,
            begun_at=one.begun_at,
            ended_at=one.ended_at,
            note=one.note,
            took_s=((one.ended_at or now) - one.begun_at).total_seconds(),
        )
        for one in taken
    ]
    if not row.result:
        names = {one.step for one in taken}
        shown += [
            StepRow(step.value, None, None, "", None)
            for step in LANE_STEPS
            if step.value not in names
        ]
    return LaneRow(
        number=row.number,
        revision=row.revision,
        old=row.old.name,
        new=row.new.name if row.new else "",
        new_lifecycle=row.new.lifecycle if row.new and row.new.removed_at is None else "",
        new_cause=row.new.cause if row.new else "",
        step=row.step,
        result=row.result,
        cause=row.cause,
        steps=tuple(shown),
        judgement=_judgement(row.judgement),
    )


def _judgement(noted: dict[str, object]) -> Judgement | None:
    """What the machine noted; figures of another version of this program are left out."""
    try:
        return msgspec.convert(noted, Judgement) if noted else None
    except msgspec.ValidationError:
        return None


def _progress(row: RolloutRow, lanes: Sequence[LaneRow]) -> float:
    if row.state == RolloutState.DONE:
        return 1.0
    forward = [lane for lane in lanes if not lane.result and lane.revision == row.to_revision]
    step = Step(forward[-1].step) if forward else None
    return progress_ratio(row.replicas, row.replaced, step)


def _eta_s(
    rollout: Rollout, row: RolloutRow, lanes: Sequence[LaneRow], own_pace_s: float | None
) -> float | None:
    """Lanes left times the mean length of finished ones, less what the open one has behind it."""
    if row.state not in (RolloutState.RUNNING, RolloutState.ROLLING_BACK):
        return None
    pace_s = _last_pace_s(rollout) if own_pace_s is None else own_pace_s
    if pace_s is None:
        return None
    left = row.replicas - row.replaced if row.state == RolloutState.RUNNING else row.replaced
    begun = [lane.steps[0].begun_at for lane in lanes if not lane.result and lane.steps]
    now = timezone.now()
    return left_s(left, pace_s, sum((now - at).total_seconds() for at in begun if at))


def _mean_s(lanes: Sequence[LaneRow]) -> float | None:
    took = [
        (lane.steps[-1].begun_at - lane.steps[0].begun_at).total_seconds()
        for lane in lanes
        if lane.result == Step.DONE and lane.steps[0].begun_at and lane.steps[-1].begun_at
    ]
    return sum(took) / len(took) if took else None


def _last_pace_s(rollout: Rollout) -> float | None:
    """Mean length of a lane in the pool's last rollout that is done."""
    last = Rollout.objects.filter(pool=rollout.pool, state=RolloutState.DONE).order_by("-id")
    row = last.values("created_at", "ended_at", "replicas").first()
    if row is None or row["ended_at"] is None or not row["replicas"]:
        return None
    return float((row["ended_at"] - row["created_at"]).total_seconds() / row["replicas"])

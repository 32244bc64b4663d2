"""Rollouts as pages and REST need them: frozen values, a fixed number of queries."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
from django.db.models import Count, Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from capacity.models import (
    ACTIVE,
    Artifact,
    Driver,
    Pool,
    PoolRevision,
    Replica,
    Rollout,
    RolloutLane,
    RolloutState,
    RolloutStep,
)
from capacity.rollouts.rules.judging import Judgement
from capacity.rollouts.rules.lanes import LANE_STEPS, Step, left_s, progress_ratio
from console.audit.selectors import begun_by_people
from console.errors import NotFound
from console.web.keyset import DEFAULT_LIMIT, Page, take
from routing.contracts.enums import ReplicaLifecycle

MAX_LANES = 600  # of one rollout on a page: a full pool, there and back
MAX_ARTIFACTS = 200
_ACTIVE = tuple(state.value for state in ACTIVE)
_OFF_COURSE = (
    RolloutState.PAUSED.value,
    RolloutState.ROLLING_BACK.value,
    RolloutState.FAILED.value,
)
_GIVEN_UP = (RolloutState.ROLLED_BACK.value, RolloutState.CANCELLED.value)
GIVEN_UP_SHOWN = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """A rollout as lists show it. `replaced` of `replicas` run the revision it goes to."""

    id: int
    pool: str
    model: str
    driver: str
    state: str
    from_revision: int
    to_revision: int
    reason: str
    cause: str
    author: str
    replicas: int
    replaced: int
    created_at: datetime
    ended_at: datetime | None

    @property
    def is_active(self) -> bool:
        """Whether it has the pool."""
        return self.state in _ACTIVE

    @property
    def progress_ratio(self) -> float:
        """Share of the pool's replicas that run the new revision; 1 for an empty pool when done."""
        if not self.replicas:
            return 1.0 if self.state == RolloutState.DONE else 0.0
        return min(1.0, self.replaced / self.replicas)


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


def rollouts_page(
    *, pool: str = "", state: str = "", after: str | None = None, limit: int = DEFAULT_LIMIT
) -> Page[RolloutRow]:
    """Rollouts, newest first: two queries."""
    rows = Rollout.objects.select_related("pool__model")
    if pool:
        rows = rows.filter(pool__name=pool)
    if state == "active":
        rows = rows.filter(state__in=_ACTIVE)
    elif state:
        rows = rows.filter(state=state)
    page = take(rows, order=("-id",), after=after, limit=limit)
    replaced = _replaced(page.rows)
    return page.map(lambda row: _row(row, replaced))


def rollouts_between(since: datetime, until: datetime, limit: int) -> list[RolloutRow]:
    """Rollouts that were under way in `[since, until)`, oldest first: two queries."""
    rows = Rollout.objects.select_related("pool__model").order_by("id")
    during = rows.filter(Q(ended_at=None) | Q(ended_at__gte=since), created_at__lt=until)
    found = list(during[:limit])
    replaced = _replaced(found)
    return [_row(row, replaced) for row in found]


@dataclass(frozen=True, slots=True)
class OffCourse:
    """A rollout that stands still, goes back, or did not get where it was to go."""

    id: int
    pool: str
    state: str
    state_label: str
    cause: str


def off_course(now: datetime, limit: int = DEFAULT_LIMIT) -> list[OffCourse]:
    """Newest first, two queries: each pool's last rollout, if it is not on its way or done.

    One that came all the way back, or was aborted, is named for `GIVEN_UP_SHOWN`. One that a person
    turned back is not, once it is back: they know, and nothing is left to do.
    """
    given_up = Q(state__in=_GIVEN_UP, ended_at__gt=now - GIVEN_UP_SHOWN)
    later = Rollout.objects.filter(pool=OuterRef("pool"), pk__gt=OuterRef("pk"))
    rows = Rollout.objects.filter(given_up | Q(state__in=_OFF_COURSE)).filter(~Exists(later))
    found = list(rows.select_related("pool").order_by("-id")[:limit])
    back = [str(row.pk) for row in found if row.state == RolloutState.ROLLED_BACK]
    wanted = (
        begun_by_people(act="rollout.rolling_back", object_type="rollout", object_ids=back)
        if back
        else set()
    )
    return [
        OffCourse(row.pk, row.pool.name, row.state, row.get_state_display(), row.cause)
        for row in found
        if not (row.state == RolloutState.ROLLED_BACK and str(row.pk) in wanted)
    ]


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
    shown = _row(row, _replaced([row]))
    to = revisions.get(row.to_revision)
    before = revisions.get(row.from_revision)
    own_pace_s = _mean_s(lanes)
    eta_s = _eta_s(row, shown, lanes, own_pace_s)
    other = Rollout.objects.filter(pool=row.pool, state__in=_ACTIVE).exclude(pk=row.pk)
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
        ready_replicas=_ready(row.pool),
        desired_replicas=row.pool.desired_replicas,
        progress_ratio=_progress(shown, lanes),
        eta_s=eta_s,
        is_own_pace=own_pace_s is not None,
        other_id=other.values_list("pk", flat=True).first(),
        is_way_back_known=row.pool.revision == row.from_revision,
    )


def pool_to_roll(pool: str) -> PoolToRoll:
    """The pool of a rollout that is about to start: four queries. Raises `NotFound`."""
    row = Pool.objects.select_related("model").filter(name=pool).first()
    if row is None:
        raise NotFound("No such pool.", field="pool")
    artifacts = Artifact.objects.filter(model=row.model).order_by("version")
    running = Rollout.objects.filter(pool=row, state__in=_ACTIVE)
    return PoolToRoll(
        name=row.name,
        model=row.model.name,
        driver=row.driver,
        revision=row.revision,
        spec=row.spec,
        desired_replicas=row.desired_replicas,
        ready_replicas=_ready(row),
        artifacts=tuple(artifacts.values_list("version", flat=True)[:MAX_ARTIFACTS]),
        running_id=running.values_list("pk", flat=True).first(),
        is_rolled_here=row.driver != Driver.STATIC,
    )


def _ready(pool: Pool) -> int:
    return Replica.objects.filter(
        pool=pool, removed_at=None, is_retired=False, lifecycle=ReplicaLifecycle.READY.value
    ).count()


def _replaced(rows: Iterable[Rollout]) -> dict[int, int]:
    """By rollout, replicas that went to its new revision, less those that went back."""
    rows = list(rows)
    if not rows:
        return {}
    to = {row.pk: row.to_revision for row in rows}
    done = Q(result=Step.DONE.value)
    counts = (
        RolloutLane.objects.filter(done, rollout__in=to)
        .values("rollout_id", "revision")
        .annotate(lanes=Count("id"))
    )
    found: dict[int, int] = dict.fromkeys(to, 0)
    for one in counts:
        sign = 1 if one["revision"] == to[one["rollout_id"]] else -1
        found[one["rollout_id"]] += sign * one["lanes"]
    return {key: max(0, value) for key, value in found.items()}


def _row(row: Rollout, replaced: dict[int, int]) -> RolloutRow:
    return RolloutRow(
        id=row.pk,
        pool=row.pool.name,
        model=row.pool.model.name,
        driver=row.pool.driver,
        state=row.state,
        from_revision=row.from_revision,
        to_revision=row.to_revision,
        reason=row.reason,
        cause=row.cause,
        author=row.author,
        replicas=row.replicas,
        replaced=replaced.get(row.pk, 0),
        created_at=row.created_at,
        ended_at=row.ended_at,
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

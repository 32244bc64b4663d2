"""What people may do with a rollout: start, pause, resume, abort, roll back. Each is audited.

An act that is repeated changes nothing; one that no longer fits is refused with the next step.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Max
from django.utils import timezone

from capacity.drivers.base import DriverError
from capacity.fleet.rules import ranked
from capacity.fleet.services import drivers, revised
from capacity.models import (
    ACTIVE,
    Artifact,
    Driver,
    OnTooFew,
    Pool,
    PoolRevision,
    Replica,
    Rollout,
    RolloutLane,
    RolloutState,
)
from capacity.rollouts.rules.judging import (
    DEFAULT_ERROR_EXCESS_RATIO,
    DEFAULT_LIMIT_S,
    DEFAULT_REQUESTS,
    DEFAULT_TTFT_RATIO,
    MOST_REQUESTS,
    MOST_TTFT_RATIO,
)
from capacity.rollouts.rules.lanes import (
    DEFAULT_DRAIN_LIMIT_S,
    DEFAULT_LOAD_LIMIT_S,
    DEFAULT_WARM_S,
    LEAST_LOAD_LIMIT_S,
    MOST_PAUSES,
    MOST_S,
)
from capacity.rollouts.services.steps import SURGE, drop, go_on, hold_pool, locked, turn
from console.audit.rules import Actor
from console.audit.services import record
from console.errors import Conflict, InvalidInput, NotFound

ARTIFACT_SETTING = {Driver.PROCESS.value: "model", Driver.SIMULATED.value: "artifact"}
_ACTIVE = tuple(state.value for state in ACTIVE)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a rollout is asked to do. `spec` None keeps the pool's settings: a rolling restart.

    `artifact` is a version of the pool's model; `engine_version` what engines must say of
    themselves, empty for any. Times in seconds. `judge_*`, `on_too_few` and the two thresholds are
    `Bar`'s; `pause_after` numbers of replaced replicas after which a person is waited for.
    """

    spec: Mapping[str, Any] | None = None
    artifact: str = ""
    engine_version: str = ""
    load_limit_s: int = DEFAULT_LOAD_LIMIT_S
    warm_s: int = DEFAULT_WARM_S
    drain_limit_s: int = DEFAULT_DRAIN_LIMIT_S
    judge_requests: int = DEFAULT_REQUESTS
    judge_limit_s: int = DEFAULT_LIMIT_S
    on_too_few: str = OnTooFew.GO_ON.value
    most_ttft_ratio: float = DEFAULT_TTFT_RATIO
    most_error_excess_ratio: float = DEFAULT_ERROR_EXCESS_RATIO
    pause_after: tuple[int, ...] = ()
    reason: str = ""


@transaction.atomic
def start(*, pool: str, plan: Plan, actor: Actor, idempotency_key: str = "") -> int:
    """Start a rollout of a pool; returns its id.

    Raises `NotFound` (pool, artifact), `InvalidInput` naming the field, or `Conflict` when one has
    the pool already, or the idempotency key was used for another plan.
    """
    digest = _digest(pool, plan)
    if repeated := _repeated(actor, idempotency_key, digest):
        return repeated
    row = Pool.objects.select_for_update(of=("self",)).select_related("model").filter(name=pool)
    found = row.first()
    if found is None:
        raise NotFound("No such pool.", field="pool")
    if repeated := _repeated(actor, idempotency_key, digest):
        return repeated  # the first call committed while this one waited for the pool
    _refuse_second(found)
    _check_numbers(plan)
    _check_pauses(plan.pause_after, found.desired_replicas)
    revision = _revision(found, plan, actor)
    _settle_members(found)
    rollout = Rollout(
        pool=found,
        from_revision=found.revision,
        to_revision=revision.number,
        reason=plan.reason[:400],
        replicas=found.desired_replicas,
        load_limit_s=plan.load_limit_s,
        warm_s=plan.warm_s,
        drain_limit_s=plan.drain_limit_s,
        judge_requests=plan.judge_requests,
        judge_limit_s=plan.judge_limit_s,
        on_too_few=plan.on_too_few,
        most_ttft_ratio=plan.most_ttft_ratio,
        most_error_excess_ratio=plan.most_error_excess_ratio,
        pause_after=sorted(plan.pause_after),
        author=actor.label[:150],
        idempotency_key=idempotency_key,
        request_digest=digest,
    )
    _save_active(rollout)
    hold_pool(found.pk, SURGE)
    record(
        actor=actor,
        act="rollout.start",
        object_type="rollout",
        object_id=str(rollout.pk),
        reason=plan.reason,
        before={"revision": found.revision, "spec": found.spec},
        after={
            "pool": pool,
            "revision": revision.number,
            "spec": revision.spec,
            "artifact": plan.artifact,
            "engine_version": plan.engine_version,
        },
    )
    go_on()
    return rollout.pk


@transaction.atomic
def pause(*, rollout_id: int, actor: Actor, reason: str = "") -> None:
    """Take no further step until it is resumed; what loads or drains goes on.

    Raises `NotFound`, or `Conflict` when it has ended.
    """
    rollout = locked(rollout_id)
    if rollout.state == RolloutState.PAUSED:
        return
    _refuse_ended(rollout, "pause")
    rollout.resumes_to = rollout.state
    turn(rollout, RolloutState.PAUSED, actor, reason=reason)


@transaction.atomic
def resume(*, rollout_id: int, actor: Actor, reason: str = "") -> None:
    """Go on where it was paused; one that failed on its way back tries that again.

    Raises `NotFound`, or `Conflict` when it has ended or another one has the pool.
    """
    rollout = locked(rollout_id)
    if rollout.state in (RolloutState.RUNNING, RolloutState.ROLLING_BACK):
        return
    if rollout.state == RolloutState.FAILED:
        _take_up_again(rollout, actor, reason)
        return
    _refuse_ended(rollout, "resume")
    for lane in RolloutLane.objects.filter(rollout=rollout, result=""):
        lane.step_since = timezone.now()  # the time that it stood still counts for no deadline
        lane.is_waived = lane.is_waived or bool(lane.judgement.get("is_held"))
        lane.save(update_fields=["step_since", "is_waived"])
    if rollout.resumes_to == RolloutState.RUNNING:
        rollout.cause = ""  # that of a wait for this person; on the way back it says why
    state, rollout.resumes_to = RolloutState(rollout.resumes_to), ""
    turn(rollout, state, actor, reason=reason)


@transaction.atomic
def abort(*, rollout_id: int, actor: Actor, reason: str = "") -> None:
    """Stop it: no further replica is touched, a new one that does not serve yet is removed.

    Replicas that were replaced stay as they are. Raises `NotFound`, or `Conflict` when it ended.
    """
    rollout = locked(rollout_id)
    if rollout.state == RolloutState.CANCELLED:
        return
    _refuse_ended(rollout, "abort")
    rollout.cause = (reason or "aborted")[:400]
    drop(rollout, "the rollout was aborted")
    turn(rollout, RolloutState.CANCELLED, actor, reason=reason)


@transaction.atomic
def roll_back(*, rollout_id: int, actor: Actor, reason: str = "") -> None:
    """Bring every replica back to the revision before, one by one.

    Raises `NotFound`, or `Conflict` when it is done, is back already, or another has the pool.
    """
    rollout = locked(rollout_id)
    if rollout.state == RolloutState.ROLLING_BACK:
        return
    if rollout.state in (RolloutState.CANCELLED, RolloutState.FAILED):
        _take_up_again(rollout, actor, reason)
        return
    _refuse_ended(rollout, "roll back")
    rollout.cause = (reason or "a person asked for it")[:400]
    rollout.resumes_to = ""
    drop(rollout, "the rollout turns back")
    turn(rollout, RolloutState.ROLLING_BACK, actor, reason=reason)


def _take_up_again(rollout: Rollout, actor: Actor, reason: str) -> None:
    pool = Pool.objects.select_for_update().get(pk=rollout.pool_id)
    _refuse_second(pool)
    if pool.revision != rollout.from_revision:
        raise Conflict(
            f"Pool {pool.name} has been rolled out since: this one no longer knows the way back.",
            code="rollout_superseded",
            hint="Start a rollout to the revision that you want.",
        )
    _settle_members(pool)
    rollout.resumes_to = ""
    turn(rollout, RolloutState.ROLLING_BACK, actor, reason=reason)
    hold_pool(pool.pk, SURGE)


def _refuse_second(pool: Pool) -> None:
    running = Rollout.objects.filter(pool=pool, state__in=_ACTIVE).first()
    if running is not None:
        raise Conflict(
            f"Rollout {running.pk} has pool {pool.name}.",
            field="pool",
            code="rollout_running",
            hint="Wait until it ends, or abort it.",
        )


def _refuse_ended(rollout: Rollout, act: str) -> None:
    if rollout.state not in _ACTIVE:
        raise Conflict(
            f"There is nothing to {act}: the rollout is {rollout.get_state_display().lower()}.",
            code="rollout_ended",
            hint="Start another rollout of the pool to change it again.",
        )


def _check_numbers(plan: Plan) -> None:
    for name, least, most, unit in (
        ("load_limit_s", LEAST_LOAD_LIMIT_S, MOST_S, " s"),
        ("warm_s", 0, MOST_S, " s"),
        ("drain_limit_s", 0, MOST_S, " s"),
        ("judge_requests", 0, MOST_REQUESTS, " requests"),
        ("judge_limit_s", 0, MOST_S, " s"),
        ("most_ttft_ratio", 1, MOST_TTFT_RATIO, " times"),
        ("most_error_excess_ratio", 0, 1, ""),
    ):
        value = getattr(plan, name)
        if isinstance(value, bool) or not least <= value <= most:  # NaN lies nowhere
            raise InvalidInput(f"It lies between {least} and {most:g}{unit}.", field=name)
    if plan.on_too_few not in OnTooFew.values:
        known = ", ".join(OnTooFew.values)
        raise InvalidInput(
            f"No such choice: {plan.on_too_few!r}.", field="on_too_few", hint=f"One of {known}."
        )
    if len(plan.engine_version) > 64:
        raise InvalidInput("An engine's version has at most 64 characters.", field="engine_version")


def _check_pauses(pause_after: Sequence[int], replicas: int) -> None:
    """After the last replica there is nothing left to wait with."""
    if len(pause_after) > MOST_PAUSES:
        raise InvalidInput(f"At most {MOST_PAUSES} pauses.", field="pause_after")
    if all(0 < point < replicas for point in pause_after):
        return
    if replicas < 2:
        raise InvalidInput(
            "With fewer than two replicas there is no point to pause at.",
            field="pause_after",
            hint="Leave it empty.",
        )
    raise InvalidInput(
        f"The pool wants {replicas} replicas: a pause comes after 1 to {replicas - 1} of them.",
        field="pause_after",
        hint="Write numbers in that range, such as 1.",
    )


def _revision(pool: Pool, plan: Plan, actor: Actor) -> PoolRevision:
    """The revision to roll out, checked by the pool's driver."""
    driver = drivers().get(pool.driver)
    if driver is None or pool.driver == Driver.STATIC:
        raise InvalidInput(
            f"Pool {pool.name} has the driver {pool.driver}: its engines are started elsewhere.",
            field="pool",
            hint="Roll them out where they run; the pool follows their addresses.",
        )
    spec = dict(pool.spec if plan.spec is None else plan.spec)
    artifact = _artifact(pool, plan.artifact)
    if artifact is not None:
        spec[ARTIFACT_SETTING[pool.driver]] = artifact.location
    last = pool.revisions.aggregate(last=Max("number"))["last"] or pool.revision
    row = PoolRevision(
        pool=pool,
        number=last + 1,
        spec=spec,
        block_size_tokens=pool.block_size_tokens,
        artifact=artifact,
        engine_version=plan.engine_version,
        note=plan.reason[:400],
        author=actor.label[:150],
    )
    try:
        driver.check(revised(pool, row))
    except DriverError as error:
        raise InvalidInput(
            str(error), field="spec", hint="Change the setting and start again."
        ) from error
    row.save()
    return row


def _artifact(pool: Pool, version: str) -> Artifact | None:
    if not version:
        return None
    found = Artifact.objects.filter(model=pool.model, version=version).first()
    if found is None:
        known = Artifact.objects.filter(model=pool.model).order_by("version")
        names = ", ".join(known.values_list("version", flat=True)[:20])
        raise InvalidInput(
            f"Model {pool.model.name} has no artifact {version!r}.",
            field="artifact",
            hint=f"It has: {names}." if names else "Add it to the inventory first.",
        )
    return found


def _settle_members(pool: Pool) -> None:
    """Say of each replica which revision it runs, and retire those that are too many already."""
    rows = Replica.objects.filter(pool=pool, removed_at=None, is_retired=False)
    rows.filter(revision=None).update(revision=pool.revision)
    ordinals = list(rows.values_list("ordinal", flat=True))
    rows.exclude(ordinal__in=ranked(ordinals, pool.desired_replicas)).update(is_retired=True)


def _save_active(rollout: Rollout) -> None:
    """The table decides which of two that start at once has the pool."""
    try:
        with transaction.atomic():
            rollout.save()
    except IntegrityError as error:
        raise Conflict(
            f"Another rollout has pool {rollout.pool.name}.",
            field="pool",
            code="rollout_running",
            hint="Wait until it ends, or abort it.",
        ) from error


def _digest(pool: str, plan: Plan) -> str:
    told = [
        pool,
        None if plan.spec is None else dict(plan.spec),
        plan.artifact,
        plan.engine_version,
        plan.load_limit_s,
        plan.warm_s,
        plan.drain_limit_s,
        plan.judge_requests,
        plan.judge_limit_s,
        plan.on_too_few,
        plan.most_ttft_ratio,
        plan.most_error_excess_ratio,
        sorted(plan.pause_after),
        plan.reason,
    ]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _repeated(actor: Actor, idempotency_key: str, digest: str) -> int | None:
    """The rollout that this very call has started before."""
    if not idempotency_key:
        return None
    row = Rollout.objects.filter(author=actor.label, idempotency_key=idempotency_key).first()
    if row is None:
        return None
    if row.request_digest != digest:
        raise Conflict(
            "This idempotency key was used for another rollout.",
            code="idempotency_conflict",
            hint="Use a new key for a new rollout.",
        )
    return row.pk

"""The life of a job row: enqueue, claim, checkpoint, finish, fail, cancel, requeue the stale.

The row is the truth. The broker carries nudges only; a lost one costs the wait for the poller.
A job with a `dedupe_key` is queued at most once and never runs beside its twin.
"""

import json
import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache, partial

from celery import Celery
from django.db import IntegrityError, connection, transaction
from django.db.models import Q, QuerySet
from django.utils import timezone
from kombu.exceptions import OperationalError

from console.audit.rules import Actor
from console.audit.services import record
from console.errors import Conflict, NotFound
from console.jobs.registry import JobLost
from console.jobs.rules import RUN_TASK, STALE_AFTER_S, error_text, may_retry, retry_delay_s
from console.jobs.schedule import ensure_schedule
from console.models import Job, JobState

__all__ = [
    "Claim",
    "beat",
    "cancel",
    "checkpoint",
    "claim",
    "due_job_ids",
    "enqueue",
    "ensure_schedule",
    "fail",
    "finish",
    "forget_ended",
    "nudge",
    "requeue_stale",
]

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 5  # a job that failed five times waits for a person
KEPT_S = 7 * 24 * 3600  # ended jobs stay for a week
MAX_FORGOTTEN = 500  # rows deleted by one poll: short transactions
CLOCK_SLACK_S = 5.0  # clocks of two hosts that write and claim may differ by so much
MAX_POLLED = 50  # jobs nudged by one poll: more than a worker starts in its interval


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that this worker runs. `attempt` fences: a later claim makes earlier ones void."""

    id: int
    kind: str
    args: dict[str, object]
    cursor: dict[str, object]
    dedupe_key: str
    attempt: int
    max_attempts: int


@lru_cache(maxsize=1)
def _broker() -> Celery:
    # A producer of our own: services are used by processes that never load the worker's app.
    app = Celery("headrace-nudges", set_as_current=False)
    app.config_from_object("django.conf:settings", namespace="CELERY")
    return app


def nudge(job_id: int) -> None:
    """Ask a worker to look at a job now. A broker that is away is logged, never raised."""
    try:
        _broker().send_task(RUN_TASK, args=[job_id], retry=False, expires=STALE_AFTER_S)
    except (OperationalError, OSError) as error:
        logger.warning("job %d not nudged, the poller will find it: %s", job_id, error)


def enqueue(
    kind: str,
    *,
    args: dict[str, object] | None = None,
    dedupe_key: str = "",
    run_after: datetime | None = None,
) -> int:
    """Queue a job in the caller's transaction and nudge a worker on commit; returns its id.

    With a `dedupe_key` an already queued twin is returned instead. That row stays locked until the
    caller commits, so a worker cannot start it before the caller's writes can be seen. Call this
    last, after `record`.
    """
    due = run_after or timezone.now()
    with transaction.atomic():
        if dedupe_key:
            job_id = _insert_or_join(kind, args or {}, dedupe_key, due)
        else:
            job_id = Job.objects.create(
                kind=kind, args=args or {}, max_attempts=MAX_ATTEMPTS, run_after=due
            ).pk
        if due <= timezone.now():
            transaction.on_commit(partial(nudge, job_id))
    return job_id


def _insert_or_join(kind: str, args: dict[str, object], dedupe_key: str, due: datetime) -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO console_job (kind, args, dedupe_key, state, cursor, attempts,"
            " max_attempts, error, run_after, created_at)"
            " VALUES (%s, %s, %s, 'queued', '{}', 0, %s, '', %s, %s)"
            " ON CONFLICT (kind, dedupe_key) WHERE state = 'queued' AND dedupe_key <> ''"
            " DO UPDATE SET run_after = LEAST(console_job.run_after, EXCLUDED.run_after)"
            " RETURNING id",
            [kind, json.dumps(args), dedupe_key, MAX_ATTEMPTS, due, timezone.now()],
        )
        return int(cursor.fetchone()[0])


@transaction.atomic
def claim(job_id: int) -> Claim | None:
    """Take a due, queued job for this worker, or `None` when it is taken, not due or its twin runs.

    Two workers never hold the same job, nor two jobs of one kind and dedupe key.
    """
    now = timezone.now()
    row = (
        Job.objects.select_for_update(skip_locked=True)
        .filter(_is_due(now), pk=job_id, state=JobState.QUEUED)
        .first()
    )
    if row is None or (row.dedupe_key and _has_running_twin(row, now)):
        return None
    row.state = JobState.RUNNING
    row.attempts += 1
    row.heartbeat_at = now
    row.save(update_fields=["state", "attempts", "heartbeat_at"])
    return Claim(
        id=row.pk,
        kind=row.kind,
        args=row.args,
        cursor=row.cursor,
        dedupe_key=row.dedupe_key,
        attempt=row.attempts,
        max_attempts=row.max_attempts,
    )


def _has_running_twin(row: Job, now: datetime) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))",
            [f"job:{row.kind}:{row.dedupe_key}"],
        )
    return (
        Job.objects.filter(kind=row.kind, dedupe_key=row.dedupe_key, finished_at=None)
        .filter(state__in=[JobState.RUNNING, JobState.CANCELLED])
        .filter(heartbeat_at__gt=now - timedelta(seconds=STALE_AFTER_S))
        .exists()
    )


def beat(attempts_by_job: dict[int, int]) -> frozenset[int]:
    """Renew the heartbeat of jobs that this process runs; returns those that are still ours.

    Others were cancelled or given to another worker.
    """
    if not attempts_by_job:
        return frozenset()
    mine = Q()
    for job_id, attempt in attempts_by_job.items():
        mine |= Q(pk=job_id, attempts=attempt)
    now = timezone.now()
    # A cancelled job whose handler still winds down keeps its twin out.
    Job.objects.filter(mine, state=JobState.CANCELLED, finished_at=None).update(heartbeat_at=now)
    ours = Job.objects.filter(mine, state=JobState.RUNNING)
    ours.update(heartbeat_at=now)
    return frozenset(ours.values_list("pk", flat=True))


def checkpoint(held: Claim, cursor: dict[str, object], progress_ratio: float | None) -> None:
    """Store a job's cursor. Raises `JobLost` when it is no longer this claim's."""
    changed = _mine(held).update(
        cursor=cursor, progress_ratio=progress_ratio, heartbeat_at=timezone.now()
    )
    if not changed:
        raise JobLost(f"job {held.id} was cancelled or taken over")


@transaction.atomic
def finish(held: Claim) -> None:
    """Mark a job done, or its cancelled handler as stopped; wake a twin that waited for it."""
    now = timezone.now()
    _mine(held).update(state=JobState.DONE, finished_at=now, progress_ratio=1.0, error="")
    _stopped(held, now)
    _wake_twin(held)


@transaction.atomic
def fail(held: Claim, error: BaseException) -> None:
    """Queue a failed job again with back-off, or give it up after its last attempt."""
    now = timezone.now()
    row = _mine(held).select_for_update().first()
    if row is not None:
        _retry_or_give_up(row, error_text(error), now, retry_delay_s(held.attempt))
    _stopped(held, now)
    _wake_twin(held)


@transaction.atomic
def requeue_stale() -> int:
    """Take jobs from workers that went silent; returns how many were queued again or given up."""
    now = timezone.now()
    silent_since = now - timedelta(seconds=STALE_AFTER_S)
    rows = list(
        Job.objects.select_for_update(skip_locked=True)
        .filter(state=JobState.RUNNING)
        # A heartbeat from the future was written before the clock was set back, by one who is gone.
        .filter(Q(heartbeat_at__lt=silent_since) | Q(heartbeat_at__gt=now + (now - silent_since)))
        .order_by("pk")[:MAX_POLLED]
    )
    for row in rows:
        _retry_or_give_up(row, "The worker went silent.", now, 0.0)
    Job.objects.filter(
        state=JobState.CANCELLED, finished_at=None, heartbeat_at__lt=silent_since
    ).update(finished_at=now)
    return len(rows)


def forget_ended() -> int:
    """Delete jobs that ended long ago, oldest first and a bounded number; returns how many."""
    oldest = list(Job.objects.order_by("pk").values_list("pk", flat=True)[:MAX_FORGOTTEN])
    old = Job.objects.filter(
        pk__in=oldest, finished_at__lt=timezone.now() - timedelta(seconds=KEPT_S)
    )
    return old.delete()[0]


@transaction.atomic
def cancel(*, job_id: int, actor: Actor, reason: str = "") -> None:
    """Stop a job: a queued one never starts, a running one ends at its next checkpoint.

    Raises `NotFound`, or `Conflict` when it has ended already.
    """
    row = Job.objects.select_for_update().filter(pk=job_id).first()
    if row is None:
        raise NotFound("No such job.")
    if row.state not in (JobState.QUEUED, JobState.RUNNING):
        raise Conflict(f"The job has ended: {row.state}.", code="job_ended")
    before = row.state
    row.finished_at = timezone.now() if before == JobState.QUEUED else None
    row.state = JobState.CANCELLED
    row.save(update_fields=["state", "finished_at"])
    record(
        actor=actor,
        act="job.cancel",
        object_type="job",
        object_id=str(job_id),
        reason=reason,
        before={"state": before},
        after={"state": row.state},
    )


def due_job_ids() -> list[int]:
    """Queued jobs whose time has come, oldest first, at most `MAX_POLLED`."""
    rows = Job.objects.filter(_is_due(timezone.now()), state=JobState.QUEUED)
    return list(rows.order_by("run_after", "id").values_list("pk", flat=True)[:MAX_POLLED])


def _is_due(now: datetime) -> Q:
    """Its time has come, or it was queued before the clock was set back: then waiting is over."""
    return Q(run_after__lte=now) | Q(created_at__gt=now + timedelta(seconds=CLOCK_SLACK_S))


def _mine(held: Claim) -> QuerySet[Job]:
    return Job.objects.filter(pk=held.id, state=JobState.RUNNING, attempts=held.attempt)


def _stopped(held: Claim, now: datetime) -> None:
    Job.objects.filter(
        pk=held.id, state=JobState.CANCELLED, attempts=held.attempt, finished_at=None
    ).update(finished_at=now)


def _retry_or_give_up(row: Job, why: str, now: datetime, delay_s: float) -> None:
    row.error = why
    row.heartbeat_at = None
    if may_retry(row.attempts, row.max_attempts):
        row.state = JobState.QUEUED
        row.run_after = now + timedelta(seconds=delay_s)
        try:
            with transaction.atomic():
                row.save(update_fields=["state", "run_after", "error", "heartbeat_at"])
        except IntegrityError:  # a newer twin is queued already and does the same work
            row.error = f"{why} A newer job of this kind took over."
        else:
            return
    row.state = JobState.FAILED
    row.finished_at = now
    row.save(update_fields=["state", "finished_at", "error", "heartbeat_at"])


def _wake_twin(held: Claim) -> None:
    if not held.dedupe_key:
        return
    twin = Job.objects.filter(
        kind=held.kind,
        dedupe_key=held.dedupe_key,
        state=JobState.QUEUED,
        run_after__lte=timezone.now(),
    ).values_list("pk", flat=True)
    for job_id in twin[:1]:
        transaction.on_commit(partial(nudge, job_id))

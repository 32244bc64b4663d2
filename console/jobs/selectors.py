"""Progress and history of jobs."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Q

from console.errors import NotFound
from console.models import Job, JobState

MAX_PAGE = 201  # the largest page, and one more row to know that another follows


@dataclass(frozen=True, slots=True)
class JobLine:
    """A job as pages and REST show it. `progress_ratio` is 0..1, `None` while unknown."""

    id: int
    kind: str
    state: str
    progress_ratio: float | None
    attempts: int
    max_attempts: int
    run_after: datetime
    heartbeat_at: datetime | None
    error: str
    created_at: datetime
    finished_at: datetime | None


def job(job_id: int) -> JobLine:
    """One job. Raises `NotFound`."""
    row = Job.objects.filter(pk=job_id).first()
    if row is None:
        raise NotFound("No such job.")
    return _line(row)


def jobs(
    *,
    kind: str | None = None,
    routine: Collection[str] = (),
    before_id: int | None = None,
    limit: int = 50,
) -> list[JobLine]:
    """Jobs newest first, older than `before_id`, at most `min(limit, MAX_PAGE)`.

    Of the `routine` kinds only the failed ones.
    """
    rows = Job.objects.order_by("-id")
    if routine:
        rows = rows.filter(~Q(kind__in=routine) | Q(state=JobState.FAILED))
    if kind is not None:
        rows = rows.filter(kind=kind)
    if before_id is not None:
        rows = rows.filter(id__lt=before_id)
    return [_line(row) for row in rows[: min(limit, MAX_PAGE)]]


def open_counts() -> dict[str, int]:
    """How many jobs are queued and running."""
    open_states = [JobState.QUEUED, JobState.RUNNING]
    rows = Job.objects.filter(state__in=open_states).values_list("state").annotate(Count("id"))
    counted = dict(rows)
    return {state.value: counted.get(state.value, 0) for state in open_states}


def _line(row: Job) -> JobLine:
    return JobLine(
        id=row.pk,
        kind=row.kind,
        state=row.state,
        progress_ratio=row.progress_ratio,
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        run_after=row.run_after,
        heartbeat_at=row.heartbeat_at,
        error=row.error,
        created_at=row.created_at,
        finished_at=row.finished_at,
    )

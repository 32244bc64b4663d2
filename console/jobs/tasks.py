"""The one Celery task that runs a job row, the poller for lost nudges, and the schedule's entry."""

import logging
import threading
import time

from celery import shared_task
from django.db import DatabaseError, connection

from console.jobs import services
from console.jobs.registry import JobLost, handler_of
from console.jobs.rules import (
    ENQUEUE_TASK,
    HEARTBEAT_EVERY_S,
    POLL_TASK,
    RUN_TASK,
    STALE_AFTER_S,
)

logger = logging.getLogger(__name__)
stopping = threading.Event()  # this worker was told to stop


class _RunningJob:
    """A claimed job inside its handler. Implements `console.jobs.registry.JobHandle`."""

    def __init__(self, held: services.Claim) -> None:
        self.held = held
        self.seen_ours_s = time.monotonic()
        self.is_lost = False
        self._cursor = held.cursor

    @property
    def args(self) -> dict[str, object]:
        return self.held.args

    @property
    def cursor(self) -> dict[str, object]:
        return self._cursor

    def checkpoint(self, cursor: dict[str, object], progress_ratio: float | None = None) -> None:
        if self.is_cancelled():
            raise JobLost(f"job {self.held.id} was cancelled or taken over")
        services.checkpoint(self.held, cursor, progress_ratio)
        self._cursor = cursor

    def is_cancelled(self) -> bool:
        # Silent for so long that another worker may have taken it: stop without asking. A worker
        # that is told to stop gives its jobs back: the next one goes on at their checkpoints.
        return (
            self.is_lost or stopping.is_set() or time.monotonic() - self.seen_ours_s > STALE_AFTER_S
        )


class _Heartbeats:
    """One thread per process that renews every job it runs, with one statement a round."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[int, _RunningJob] = {}
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, job: _RunningJob) -> None:
        with self._lock:
            self._running[job.held.id] = job
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="job-beats", daemon=True)
                self._thread.start()

    def remove(self, job: _RunningJob) -> None:
        with self._lock:
            if self._running.get(job.held.id) is job:
                del self._running[job.held.id]

    def _loop(self) -> None:
        while not self._wake.wait(HEARTBEAT_EVERY_S):
            with self._lock:
                running = dict(self._running)
            if running:
                self._renew(running)

    def _renew(self, running: dict[int, _RunningJob]) -> None:
        try:
            ours = services.beat({job_id: job.held.attempt for job_id, job in running.items()})
        except DatabaseError as error:
            logger.warning("job heartbeats not written: %s", error)
            return
        finally:
            connection.close()
        now_s = time.monotonic()
        for job_id, job in running.items():
            if job_id in ours:
                job.seen_ours_s = now_s
            else:
                job.is_lost = True


_heartbeats = _Heartbeats()


@shared_task(name=RUN_TASK)
def run(job_id: int) -> None:
    """Run one job row, if it is due and nobody else holds it."""
    held = services.claim(job_id)
    if held is None:
        return
    function = handler_of(held.kind)
    job = _RunningJob(held)
    _heartbeats.add(job)
    try:
        if function is None:
            raise LookupError(f"no handler for the job kind {held.kind}")  # noqa: TRY301
        function(job)
    except JobLost as lost:
        logger.info("job %d %s stopped: %s", held.id, held.kind, lost)
        services.finish(held)
    except Exception as error:  # whatever a handler raises belongs in its row
        logger.warning("job %d %s failed", held.id, held.kind, exc_info=True)
        services.fail(held, error)
    else:
        services.finish(held)
    finally:
        _heartbeats.remove(job)


@shared_task(name=POLL_TASK)
def poll() -> None:
    """Find jobs whose nudge was lost and jobs whose worker went silent."""
    services.requeue_stale()
    services.forget_ended()
    for job_id in services.due_job_ids():
        services.nudge(job_id)


@shared_task(name=ENQUEUE_TASK)
def enqueue_kind(kind: str) -> None:
    """Queue a scheduled kind, unless it is queued already."""
    services.enqueue(kind, dedupe_key=kind)

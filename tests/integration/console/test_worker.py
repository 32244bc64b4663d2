"""The real worker and beat: jobs run by nudge, by schedule, and both processes are seen alive."""

import pytest
from django.conf import settings

from console.jobs.services import enqueue, ensure_schedule
from console.models import Job
from console.project.celery import app
from routing.store import keys
from tests import factories
from tests.celerying import WORKER, alive, celery
from tests.factories import World
from tests.stack import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_worker_runs_a_job_by_its_nudge_and_says_that_it_lives(store, tmp_path):
    world = World()
    factories.make_tenant(world, "acme")
    factories.make_fleet(world, {"p-a": 1})
    Job.objects.all().delete()
    log = tmp_path / "worker.log"
    with celery(log, *WORKER) as process:
        (status,) = wait_until(lambda: alive(store, "worker"), 60, "worker alive")
        assert status.pid == process.pid
        factories.make_policy(world)  # queues the push

        def pushed() -> bool:
            return store.get(keys.SNAPSHOT) is not None

        # Below the poller's interval: no beat runs here, only the nudge can have done it.
        wait_until(pushed, 10, f"snapshot pushed: {log.read_text()}")
        wait_until(
            lambda: Job.objects.filter(kind="push_snapshot", state="done").exists(), 5, "done"
        )
        broken = enqueue("no_such_kind")
        wait_until(lambda: Job.objects.get(pk=broken).error, 10, "failure in its row")
    assert alive(store, "worker") == []


def test_beat_queues_what_the_schedule_says_and_the_worker_runs_it(store, tmp_path):
    ensure_schedule()
    with (
        celery(tmp_path / "beat.log", "beat", "--schedule", str(tmp_path / "unused")),
        celery(tmp_path / "worker.log", *WORKER),
    ):
        wait_until(lambda: alive(store, "beat") and alive(store, "worker"), 60, "both alive")
        wait_until(
            lambda: Job.objects.filter(kind="reconcile_pools", state="done").exists(),
            30,
            "a scheduled job ran",
        )
    assert settings.CELERY_BEAT_SCHEDULER.endswith(":SteadyScheduler")
    assert Job.objects.filter(state="failed").count() == 0


IMPATIENT = """
import functools, sys
from console.project import celery
celery.ConsumerWatch = functools.partial(celery.ConsumerWatch, stuck_after_s=2.0)
celery.app.worker_main(sys.argv[1:])
"""


def test_a_worker_that_lost_its_consumer_falls_silent(store, tmp_path):
    """All its threads live on, so its heartbeat must know of the queue; see docs/operate.md."""
    Job.objects.all().delete()
    with celery(tmp_path / "worker.log", *WORKER, command=("-c", IMPATIENT)) as process:
        (first,) = wait_until(lambda: alive(store, "worker"), 60, "worker alive")
        queue = app.conf.task_default_queue
        (answer,) = app.control.cancel_consumer(queue, reply=True, timeout=10)
        assert "ok" in next(iter(answer.values()))
        # Idle and silent in its queue is no fault: beats go on while nothing waits.
        later = lambda: alive(store, "worker")[0].at_ms > first.at_ms + 4000  # noqa: E731
        wait_until(later, 10, "beats with an empty queue")
        enqueue("reconcile_pools")
        log = tmp_path / "worker.log"
        wait_until(lambda: "took no job for" in log.read_text(), 20, "it says so")
        (last,) = alive(store, "worker")
        app.control.add_consumer(queue, reply=True, timeout=10)
        # Taken up again before anyone ended it, it counts as alive again.
        wait_until(lambda: alive(store, "worker")[0].at_ms > last.at_ms, 10, "beats again")
        assert process.poll() is None

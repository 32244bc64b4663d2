"""The machine's clock is set back while rows carry the later time: nothing waits for it.

Rows are dated an hour ahead, which is what they are once the clock has gone back by an hour.
"""

from datetime import timedelta

import pytest
from django.utils import timezone
from django_celery_beat.models import PeriodicTask

from capacity.fleet.services.reconcile import _redate
from capacity.models import Replica
from console.jobs import services
from console.jobs.beat import SteadyEntry, SteadyScheduler
from console.jobs.schedule import ENTRIES, ensure_schedule
from console.models import Job, JobState
from console.project.celery import app
from tests.factories import World, make_fleet

pytestmark = pytest.mark.django_db
AHEAD = timedelta(hours=1)


def test_job_queued_before_the_clock_went_back_is_due_at_once() -> None:
    job_id = services.enqueue("test")
    later = timezone.now() + AHEAD
    Job.objects.filter(pk=job_id).update(created_at=later, run_after=later)
    assert services.due_job_ids() == [job_id]
    assert services.claim(job_id) is not None


def test_delayed_job_still_waits() -> None:
    job_id = services.enqueue("test", run_after=timezone.now() + AHEAD)
    assert services.due_job_ids() == []
    assert services.claim(job_id) is None


def test_job_whose_worker_died_before_the_clock_went_back_is_taken_over() -> None:
    job_id = services.enqueue("test")
    assert services.claim(job_id) is not None
    Job.objects.filter(pk=job_id).update(heartbeat_at=timezone.now() + AHEAD)
    assert services.requeue_stale() == 1
    assert Job.objects.get(pk=job_id).state == JobState.QUEUED


def test_replicas_waits_start_over() -> None:
    make_fleet(World(), {"eu-a": 1})
    row = Replica.objects.get()
    Replica.objects.update(lifecycle_since=timezone.now() + AHEAD)
    row.refresh_from_db()
    _redate(row)
    row.refresh_from_db()
    assert abs((timezone.now() - row.lifecycle_since).total_seconds()) < 60


def test_scheduled_entries_run_again_within_their_period() -> None:
    ensure_schedule()
    PeriodicTask.objects.update(last_run_at=timezone.now() + AHEAD)
    for task in PeriodicTask.objects.filter(name__startswith="headrace"):
        entry = SteadyEntry(task, app=app)
        _, wait_s = entry.is_due()
        assert wait_s <= entry.schedule.run_every.total_seconds()


@pytest.mark.django_db(transaction=True)  # the library closes connections as it syncs
def test_scheduler_looks_at_every_entry_again_when_the_clock_went_back() -> None:
    ensure_schedule()
    scheduler = SteadyScheduler(app=app)
    scheduler.apply_entry = lambda entry, producer=None: ran.append(entry.name)
    ran: list[str] = []
    for _ in range(2 * len(ENTRIES)):
        scheduler.tick()
    assert scheduler._heap
    before = scheduler._heap
    scheduler.tick()
    assert scheduler._heap is before
    scheduler._offset_s += AHEAD.total_seconds()  # as if the clock had been so much later before
    scheduler.tick()
    assert scheduler._heap is not before

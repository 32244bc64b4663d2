"""Background jobs: one runner each, nothing lost, nothing twice."""

import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone
from django_celery_beat.models import PeriodicTask

from console.audit.rules import SYSTEM
from console.errors import Conflict, NotFound
from console.jobs import registry, services, tasks
from console.jobs.registry import JobHandle, JobLost
from console.jobs.rules import STALE_AFTER_S
from console.models import Job
from tests.stack import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

WORKERS = 8


@pytest.fixture(autouse=True)
def nudges(monkeypatch) -> list[int]:
    """Nudges go nowhere: a broker is not needed for the truth of the rows."""
    sent: list[int] = []
    monkeypatch.setattr(services, "nudge", sent.append)
    return sent


@pytest.fixture
def kind(monkeypatch) -> Iterator[dict[str, object]]:
    """A kind `test` whose handler is set by the test."""
    handlers: dict[str, registry.Handler] = {}
    monkeypatch.setattr(registry._registry, "handlers", handlers)
    return handlers


def in_threads(count: int, act) -> list[object]:
    """Run `act` at once in so many threads, each with its own connection."""
    ready, found = threading.Barrier(count), []

    def body() -> None:
        try:
            ready.wait(10)
            found.append(act())
        finally:
            connection.close()

    threads = [threading.Thread(target=body) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == count
    return found


def silence(job_id: int) -> None:
    """Its worker was last heard longer ago than is believed."""
    long_ago = timezone.now() - timedelta(seconds=STALE_AFTER_S + 1)
    Job.objects.filter(pk=job_id).update(heartbeat_at=long_ago)


def test_one_of_many_workers_gets_a_job():
    job_id = services.enqueue("test")
    claims = [found for found in in_threads(WORKERS, lambda: services.claim(job_id)) if found]
    assert len(claims) == 1
    assert Job.objects.get(pk=job_id).attempts == 1


def test_parallel_enqueues_with_one_key_make_one_job(nudges):
    ids = in_threads(WORKERS, lambda: services.enqueue("test", dedupe_key="one"))
    assert len(set(ids)) == 1
    assert Job.objects.count() == 1
    assert len(nudges) == WORKERS


def test_a_queued_job_cannot_start_before_the_writes_it_is_to_see():
    """The worker must not take the shared row while a later enqueuer has not committed."""
    job_id = services.enqueue("test", dedupe_key="one")
    joined, go_on = threading.Event(), threading.Event()

    def second() -> None:
        with transaction.atomic():
            services.enqueue("test", dedupe_key="one")
            joined.set()
            go_on.wait(10)
        connection.close()

    thread = threading.Thread(target=second)
    thread.start()
    assert joined.wait(10)
    assert services.claim(job_id) is None
    go_on.set()
    thread.join(10)
    assert services.claim(job_id) is not None


def test_a_job_of_a_rolled_back_act_does_not_exist(nudges):
    @transaction.atomic
    def act() -> None:
        services.enqueue("test")
        raise LookupError

    with pytest.raises(LookupError):
        act()
    assert Job.objects.count() == 0
    assert nudges == []


def test_twins_never_run_at_once_and_the_second_follows(nudges):
    first = services.claim(services.enqueue("test", dedupe_key="one"))
    second_id = services.enqueue("test", dedupe_key="one")
    assert second_id != first.id
    assert services.claim(second_id) is None
    nudges.clear()
    services.finish(first)
    assert nudges == [second_id]
    assert services.claim(second_id) is not None


def test_a_cancelled_job_keeps_its_twin_out_until_its_handler_stopped():
    first = services.claim(services.enqueue("test", dedupe_key="one"))
    services.cancel(job_id=first.id, actor=SYSTEM)
    second_id = services.enqueue("test", dedupe_key="one")
    assert services.claim(second_id) is None
    services.finish(first)
    assert Job.objects.get(pk=first.id).state == "cancelled"
    assert services.claim(second_id) is not None


def test_a_silent_workers_job_goes_on_elsewhere_from_its_checkpoint():
    lost = services.claim(services.enqueue("test"))
    services.checkpoint(lost, {"done": 2}, 0.5)
    silence(lost.id)
    assert services.requeue_stale() == 1
    taken = services.claim(lost.id)
    assert (taken.cursor, taken.attempt) == ({"done": 2}, 2)
    with pytest.raises(JobLost):
        services.checkpoint(lost, {"done": 3}, 0.7)
    services.finish(lost)  # the first worker wakes up: its word no longer counts
    assert Job.objects.get(pk=lost.id).state == "running"
    assert services.beat({lost.id: lost.attempt}) == frozenset()
    assert services.beat({taken.id: taken.attempt}) == {taken.id}


def test_a_heard_workers_job_stays_its_own():
    held = services.claim(services.enqueue("test"))
    services.beat({held.id: held.attempt})
    assert services.requeue_stale() == 0


def test_a_job_that_keeps_losing_its_worker_is_given_up():
    job_id = services.enqueue("test")
    for _ in range(services.MAX_ATTEMPTS):
        assert services.claim(job_id) is not None
        silence(job_id)
        services.requeue_stale()
    row = Job.objects.get(pk=job_id)
    assert (row.state, row.error) == ("failed", "The worker went silent.")
    assert row.finished_at is not None


def test_a_failed_job_waits_longer_each_time_and_then_fails(kind):
    def broken(job: JobHandle) -> None:
        raise RuntimeError("no luck")

    kind["test"] = broken
    job_id = services.enqueue("test")
    waits = []
    for _ in range(services.MAX_ATTEMPTS):
        Job.objects.filter(pk=job_id).update(run_after=timezone.now())
        tasks.run(job_id)
        row = Job.objects.get(pk=job_id)
        waits.append((row.run_after - timezone.now()).total_seconds())
        assert row.error == "RuntimeError: no luck"
    assert row.state == "failed"
    assert waits[:-1] == sorted(waits[:-1])
    assert waits[0] > 1


def test_a_retry_gives_way_to_a_newer_twin():
    held = services.claim(services.enqueue("test", dedupe_key="one"))
    newer = services.enqueue("test", dedupe_key="one")
    services.fail(held, RuntimeError("x"))
    assert Job.objects.get(pk=held.id).state == "failed"
    assert "A newer job" in Job.objects.get(pk=held.id).error
    assert Job.objects.get(pk=newer).state == "queued"


def test_a_cancelled_job_stops_at_its_next_checkpoint(kind):
    """R35 (c): nothing further is touched, and the state says so."""
    touched: list[int] = []

    def rolling(job: JobHandle) -> None:
        for step in range(4):
            job.checkpoint({"step": step})
            touched.append(step)
            if step == 1:
                services.cancel(job_id=job_id, actor=SYSTEM, reason="wrong pool")

    kind["test"] = rolling
    job_id = services.enqueue("test")
    tasks.run(job_id)
    assert touched == [0, 1]
    row = Job.objects.get(pk=job_id)
    assert row.state == "cancelled"
    assert row.finished_at is not None


def test_a_queued_job_is_cancelled_at_once_and_only_once(kind):
    kind["test"] = lambda job: pytest.fail("ran although cancelled")
    job_id = services.enqueue("test")
    services.cancel(job_id=job_id, actor=SYSTEM)
    tasks.run(job_id)
    assert Job.objects.get(pk=job_id).state == "cancelled"
    with pytest.raises(Conflict):
        services.cancel(job_id=job_id, actor=SYSTEM)
    with pytest.raises(NotFound):
        services.cancel(job_id=0, actor=SYSTEM)


def test_heartbeats_tell_a_running_handler_that_it_was_cancelled(kind, monkeypatch):
    monkeypatch.setattr(tasks, "HEARTBEAT_EVERY_S", 0.05)
    monkeypatch.setattr(tasks, "_heartbeats", tasks._Heartbeats())
    started, stopped = threading.Event(), threading.Event()

    def waiting(job: JobHandle) -> None:
        started.set()
        wait_until(job.is_cancelled, 10, "told to stop")
        stopped.set()

    kind["test"] = waiting
    job_id = services.enqueue("test")

    def body() -> None:
        tasks.run(job_id)
        connection.close()

    thread = threading.Thread(target=body)
    thread.start()
    assert started.wait(10)
    services.cancel(job_id=job_id, actor=SYSTEM)
    assert stopped.wait(10)
    thread.join(10)
    assert Job.objects.get(pk=job_id).finished_at is not None


def test_an_unknown_kind_fails_with_its_name():
    job_id = services.enqueue("no_such_kind")
    tasks.run(job_id)
    assert "no_such_kind" in Job.objects.get(pk=job_id).error


def test_the_poller_finds_due_jobs_and_leaves_later_ones(nudges):
    due = services.enqueue("test")
    services.enqueue("test", run_after=timezone.now() + timedelta(hours=1))
    nudges.clear()
    tasks.poll()
    assert nudges == [due]


def test_ended_jobs_are_forgotten_after_their_time():
    old, recent = services.enqueue("test"), services.enqueue("test")
    for job_id in (old, recent):
        services.finish(services.claim(job_id))
    long_ago = timezone.now() - timedelta(seconds=services.KEPT_S + 1)
    Job.objects.filter(pk=old).update(finished_at=long_ago)
    assert services.forget_ended() == 1
    assert list(Job.objects.values_list("pk", flat=True)) == [recent]


def test_the_schedule_is_made_once_and_keeps_what_a_person_switched_off():
    assert services.ensure_schedule()
    assert not services.ensure_schedule()
    PeriodicTask.objects.filter(name="headrace: roll up slices").update(enabled=False)
    PeriodicTask.objects.create(
        name="headrace: long gone",
        task="x",
        interval=PeriodicTask.objects.first().interval,
    )
    assert services.ensure_schedule()
    assert not PeriodicTask.objects.get(name="headrace: roll up slices").enabled
    assert not PeriodicTask.objects.filter(name="headrace: long gone").exists()
    assert all(task.expire_seconds for task in PeriodicTask.objects.all())


def test_a_broker_that_is_away_stops_no_act(monkeypatch, caplog):
    monkeypatch.undo()
    services._broker.cache_clear()
    monkeypatch.setattr("django.conf.settings.CELERY_BROKER_URL", "redis://127.0.0.1:1/0")
    job_id = services.enqueue("test")
    services._broker.cache_clear()
    assert f"job {job_id} not nudged" in caplog.text
    assert Job.objects.get(pk=job_id).state == "queued"

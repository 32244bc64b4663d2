"""R37: scheduled work runs once per due time, on clock-change days too.

Two real schedulers (beat) and one real worker. They run in real time; only what the reports' slice
takes for the present is read from a file, so that the days of a clock change come when the test
says. One more round of both schedulers after each moment shows what would be made twice.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, time
from pathlib import Path
from typing import Any

import pytest
from django_celery_beat.models import IntervalSchedule, PeriodicTask

from capacity.models import Report, ReportFile
from capacity.reports import services
from capacity.reports.render import KINDS
from capacity.reports.services import JOB_KIND, change_schedule, create_schedule
from console.jobs.schedule import ensure_schedule
from console.models import Job
from tests.celerying import WORKER, alive, celery
from tests.factories import ACTOR
from tests.stack import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(600)]

ENTRY = "headrace: issue due reports"
SENT = f"Sending due task {ENTRY}"
BERLIN = {"timezone": "Europe/Berlin", "at_time": time(2, 30)}
SHIFTED = """
import sys
from datetime import datetime
from pathlib import Path
from console.project import celery
import django
django.setup()
from capacity.reports import services
from capacity.reports.render import KINDS
services._now = lambda: datetime.fromisoformat(Path(sys.argv[1]).read_text())
celery.app.worker_main(sys.argv[2:])
"""


def utc(month: int, day: int, hour: int, minute: int) -> datetime:
    return datetime(2025, month, day, hour, minute, tzinfo=UTC)


class Clock:
    """What the slice takes for now, here and in the worker."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self) -> datetime:
        return datetime.fromisoformat(self.path.read_text())

    def set(self, at: datetime) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text(at.isoformat())
        fresh.replace(self.path)


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock(tmp_path / "now")
    monkeypatch.setattr(services, "_now", made)
    return made


@contextmanager
def two_schedulers(tmp_path: Path, name: str) -> Iterator[list[Path]]:
    """Two beats, each of which has sent the entry at least once; their logs."""
    logs = [tmp_path / f"beat-{name}-{number}.log" for number in (1, 2)]
    beat = ("beat", "--loglevel", "INFO", "--pidfile", "")
    with celery(logs[0], *beat), celery(logs[1], *beat):
        wait_until(lambda: all(sent(log) for log in logs), 120, "both schedulers at work")
        yield logs


def sent(log: Path) -> int:
    """How often a scheduler has sent the entry."""
    return log.read_text().count(SENT) if log.exists() else 0


def another_round(logs: list[Path]) -> None:
    """Both schedulers have sent the entry after now, and the worker has looked after that."""
    before = [sent(log) for log in logs]

    def have_sent() -> bool:
        return all(sent(log) > was for log, was in zip(logs, before, strict=True))

    wait_until(have_sent, 60, "both schedulers once more")
    last = Job.objects.order_by("-pk").values_list("pk", flat=True).first() or 0

    def has_looked() -> bool:
        done = Job.objects.filter(kind="issue_due_reports", state="done", pk__gt=last)
        return done.exists()

    wait_until(has_looked, 60, "a look by the worker")


def runs(name: str) -> list[tuple[datetime, str]]:
    """(due time, state) of each run record of a schedule."""
    found = Report.objects.filter(name=name).order_by("due_at")
    return list(found.values_list("due_at", "state"))


def done_once(name: str, *due: datetime) -> None:
    """There is one record for each of these due times, and each is or becomes done."""
    assert [at for at, _ in runs(name)] == list(due)
    wait_until(lambda: {state for _, state in runs(name)} == {"done"}, 60, "the reports are made")


def every_second() -> None:
    """Only this entry, sixty times as often as it is shipped."""
    ensure_schedule()
    second, _ = IntervalSchedule.objects.get_or_create(every=1, period=IntervalSchedule.SECONDS)
    PeriodicTask.objects.exclude(name=ENTRY).update(enabled=False)
    PeriodicTask.objects.filter(name=ENTRY).update(interval=second, expire_seconds=60)


def test_one_run_for_each_due_time(store: Any, clock: Clock, tmp_path: Path) -> None:
    every_second()
    clock.set(utc(3, 29, 12, 0))
    create_schedule(name="spring", actor=ACTOR, **BERLIN)
    shifted = ("-c", SHIFTED, str(clock.path))
    with celery(tmp_path / "worker.log", *WORKER, command=shifted):
        wait_until(lambda: alive(store, "worker"), 120, "the worker")
        with two_schedulers(tmp_path, "first") as logs:
            spring(clock, logs)
            autumn(clock, logs)
        made = len(runs("spring")) + len(runs("autumn"))
        # no scheduler runs for three hours, over a due time
        clock.set(utc(10, 27, 3, 30))
        with two_schedulers(tmp_path, "second") as logs:
            another_round(logs)
            another_round(logs)
            done_once("autumn", utc(10, 26, 0, 30), utc(10, 27, 1, 30))
    assert len(runs("autumn")) + len(runs("spring")) == made + 1
    assert Job.objects.filter(kind=JOB_KIND).count() == made + 1
    files = ReportFile.objects.values_list("report_id", "kind")
    assert len(set(files)) == len(files) == Report.objects.count() * len(KINDS)


def spring(clock: Clock, logs: list[Path]) -> None:
    """2025-03-30: 02:30 does not exist; it is due when the clocks jump, and an edit fires none."""
    clock.set(utc(3, 30, 0, 59))
    another_round(logs)
    assert runs("spring") == []
    clock.set(utc(3, 30, 1, 5))  # 03:05 in Berlin
    another_round(logs)
    another_round(logs)
    done_once("spring", utc(3, 30, 1, 0))
    later = {**BERLIN, "at_time": time(3, 8)}  # three minutes from now, on a day that had its run
    common = {"cadence": "daily", "weekday": 0, "recipients": [], "actor": ACTOR}
    change_schedule(name="spring", version=1, is_enabled=True, **later, **common)
    clock.set(utc(3, 30, 1, 10))
    another_round(logs)
    done_once("spring", utc(3, 30, 1, 0))
    change_schedule(name="spring", version=2, is_enabled=False, **BERLIN, **common)


def autumn(clock: Clock, logs: list[Path]) -> None:
    """2025-10-26: 02:30 happens twice; it is due the first time."""
    clock.set(utc(10, 25, 12, 0))
    create_schedule(name="autumn", actor=ACTOR, **BERLIN)
    clock.set(utc(10, 26, 0, 29))
    another_round(logs)
    assert runs("autumn") == []
    for at in (utc(10, 26, 0, 31), utc(10, 26, 1, 31)):  # 02:31 in Berlin, both times
        clock.set(at)
        another_round(logs)
        done_once("autumn", utc(10, 26, 0, 30))

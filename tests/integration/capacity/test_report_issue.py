"""Issuing: once for each due time, on where a killed worker stopped, mailed, archived, bounded."""

import email
import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, time, timedelta
from email import policy
from pathlib import Path

import pytest
from django.db import connection
from django.utils import timezone

from capacity.models import Report, ReportFile, ReportSchedule
from capacity.reports import mail, services
from capacity.reports import tasks as report_tasks
from capacity.reports.document import document_of
from capacity.reports.services import (
    JOB_KIND,
    ask_report,
    change_schedule,
    create_schedule,
    issue,
    issue_due,
    remove_schedule,
)
from console.errors import Conflict, InvalidInput
from console.jobs import services as jobs
from console.jobs import tasks
from console.jobs.registry import handler_of
from console.models import AuditEvent, Job
from tests import factories
from tests.factories import ACTOR
from tests.reporting import smtp_server
from tests.stack import ROOT

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def world(store, settings, tmp_path) -> factories.World:
    settings.STATE_DIR = tmp_path
    made = factories.World()
    factories.make_tenant(made, "acme")
    factories.make_fleet(made, {"p-a": 2})
    factories.make_usage(made, "acme", 10)
    assert handler_of(JOB_KIND) is report_tasks.issue_report
    Job.objects.all().delete()
    return made


def schedule(*, name: str = "morning", since: datetime | None = None, **changes) -> ReportSchedule:
    values = {"timezone": "Europe/Berlin", "at_time": time(2, 30), "recipients": []}
    create_schedule(name=name, actor=ACTOR, **{**values, **changes})
    row = ReportSchedule.objects.get(name=name)
    row.counts_from = since or timezone.now() - timedelta(days=1)
    row.save(update_fields=["counts_from"])
    return row


def run_jobs() -> None:
    for job_id in list(
        Job.objects.filter(kind=JOB_KIND, state="queued").values_list("pk", flat=True)
    ):
        tasks.run(job_id)


def test_two_schedulers_at_once_make_one_report_for_a_due_time(world):
    schedule()
    barrier, made = threading.Barrier(4), []

    def scheduler() -> None:
        barrier.wait()
        made.extend(issue_due() for _ in range(5))
        connection.close()

    threads = [threading.Thread(target=scheduler) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(made) == 1
    assert Report.objects.count() == 1
    assert Job.objects.filter(kind=JOB_KIND).count() == 1
    run_jobs()
    assert Report.objects.get().state == "done"
    assert ReportFile.objects.count() == 4


def test_a_change_does_not_issue_again_and_a_stale_one_is_refused(world):
    now = timezone.now()
    row = schedule(timezone="UTC", at_time=time(now.hour, now.minute))
    assert issue_due(now=now + timedelta(seconds=1)) == 1
    values = {
        "timezone": "UTC", "at_time": (now + timedelta(minutes=5)).time().replace(
            second=0, microsecond=0), "cadence": "daily", "weekday": 0,
        "recipients": [], "is_enabled": True,
    }  # fmt: skip
    change_schedule(name="morning", version=1, actor=ACTOR, **values)
    assert issue_due(now=now + timedelta(minutes=10)) == 0  # once a day, whatever was changed
    assert Report.objects.filter(schedule=row).count() == 1
    assert issue_due(now=now + timedelta(days=1, minutes=10)) == 1
    with pytest.raises(Conflict) as refused:
        change_schedule(name="morning", version=1, actor=ACTOR, **values)
    assert refused.value.field == "version"


def test_what_is_off_or_was_due_before_it_began_is_not_issued(world):
    row = schedule(since=timezone.now())
    assert issue_due() == 0
    row.counts_from = timezone.now() - timedelta(days=1)
    row.is_enabled = False
    row.save()
    assert issue_due() == 0


def test_after_an_outage_one_is_caught_up_on_and_the_rest_is_recorded(world):
    row = schedule(since=datetime(2025, 3, 28, 12, tzinfo=UTC))
    assert issue_due(now=datetime(2025, 3, 31, 4, tzinfo=UTC)) == 1
    found = list(row.reports.order_by("due_at").values_list("due_at", "due_on", "state"))
    assert [(at.isoformat()[:16], on.day, state) for at, on, state in found] == [
        ("2025-03-29T01:30", 29, "missed"),
        ("2025-03-30T01:00", 30, "missed"),  # 02:30 did not exist
        ("2025-03-31T00:30", 31, "queued"),
    ]
    assert issue_due(now=datetime(2025, 3, 31, 4, 1, tzinfo=UTC)) == 0


KILLED = """
import django, os, signal
django.setup()
from console.jobs import tasks
import capacity.reports.tasks
from capacity.reports import services
def killed(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
{patch}
tasks.run({job_id})
"""
POINTS = {
    "before its figures": "services.gather = killed",
    "before its files": "services.files_of = killed",
    "before its files are kept": "services.ReportFile.objects.bulk_create = killed",
    "after its mail": "services._tick = killed",
}


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_killed_in_the_middle_leaves_one_whole_report(world, settings, point):
    schedule(recipients=["sre@example.com"])
    assert issue_due() == 1
    job_id = Job.objects.get(kind=JOB_KIND).pk
    base, _, _ = os.environ["DATABASE_URL"].rpartition("/")
    environment = {
        **os.environ,
        "DATABASE_URL": f"{base}/{connection.settings_dict['NAME']}",
        "HEADRACE_STATE": str(settings.STATE_DIR),
        "DJANGO_SETTINGS_MODULE": "console.project.settings",
    }
    code = KILLED.replace("{job_id}", str(job_id)).replace("{patch}", POINTS[point])
    died = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment,
                          capture_output=True, text=True, timeout=120, check=False)  # fmt: skip
    assert died.returncode == -signal.SIGKILL, died.stderr
    Job.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=1))
    assert jobs.requeue_stale() == 1
    issue_due()
    tasks.run(job_id)
    report = Report.objects.get()
    assert report.state == "done"
    assert sorted(report.files.values_list("kind", flat=True)) == ["csv", "html", "json", "pdf"]
    assert [one["state"] for one in report.deliveries] == ["sent"]
    assert [path.name for path in outbox(settings)] == [f"report-{report.pk}-0.eml"]
    assert Job.objects.get(pk=job_id).state == "done"


def outbox(settings) -> list[Path]:
    return sorted((Path(settings.STATE_DIR) / mail.OUTBOX).glob("*"))


def test_mails_are_files_without_a_server_and_only_their_owner_reads_them(world, settings):
    schedule(recipients=["sre@example.com", "cto@example.com"])
    issue_due()
    run_jobs()
    report = Report.objects.get()
    first, second = outbox(settings)
    assert first.stat().st_mode & 0o777 == 0o600
    told = email.message_from_bytes(first.read_bytes(), policy=policy.default)
    assert told["To"] == "sre@example.com"
    assert told["Message-ID"] == f"<report-{report.pk}-0@headrace>"
    attached = {part.get_filename(): part.get_content() for part in told.iter_attachments()}
    assert attached[f"report-{report.pk}.pdf"] == bytes(report.files.get(kind="pdf").content)
    assert "Capacity report" in told.get_body(("html",)).get_content()
    assert email.message_from_bytes(second.read_bytes())["To"] == "cto@example.com"


def test_a_mail_server_gets_each_mail_and_a_refused_one_is_tried_again(world, settings):
    with smtp_server() as (url, mails):
        settings.MAIL_URL = url
        schedule(recipients=["sre@example.com", "refused@example.com"])
        issue_due()
        run_jobs()
        report = Report.objects.get()
        assert report.state == "done"  # archived, whatever becomes of the mail
        states = [(one["to"], one["state"]) for one in report.deliveries]
        assert states == [("sre@example.com", "sent"), ("refused@example.com", "waiting")]
        assert "no such box" in report.deliveries[1]["why"]
        assert len(mails) == 1
        job = Job.objects.get(kind=JOB_KIND)
        assert job.state == "queued"  # with back-off
        with pytest.raises(mail.MailError):
            issue(report.pk)
        assert len(mails) == 1  # who has it does not get it twice
    told = email.message_from_bytes(mails[0], policy=policy.default)
    assert told["Subject"].startswith("Headrace capacity report morning, ")


def test_a_mail_server_that_is_away_does_not_hold_the_report_back(world, settings):
    settings.MAIL_URL = "smtp://127.0.0.1:9"
    schedule(recipients=["sre@example.com"])
    issue_due()
    run_jobs()
    report = Report.objects.get()
    assert report.state == "done"
    assert report.deliveries[0]["state"] == "waiting"
    settings.MAIL_URL = ""
    issue(report.pk)
    report.refresh_from_db()
    assert report.deliveries[0]["state"] == "sent"


def test_the_archive_is_bounded_and_outlives_its_schedule(world, monkeypatch):
    monkeypatch.setattr(services, "KEPT", 3)
    row = schedule(since=datetime(2025, 11, 1, tzinfo=UTC))
    for day in range(2, 8):
        issue_due(now=datetime(2025, 11, day, 4, tzinfo=UTC))
        run_jobs()
    kept = list(row.reports.order_by("due_on").values_list("due_on", flat=True))
    assert [on.day for on in kept] == [5, 6, 7]
    assert ReportFile.objects.count() == 12
    remove_schedule(name="morning", actor=ACTOR)
    assert Report.objects.filter(name="morning").count() == 3


def test_asking_twice_with_one_key_gives_one_report(world):
    ids = {ask_report(hours=6, zone="UTC", idempotency_key="once-only", actor=ACTOR)
           for _ in range(3)}  # fmt: skip
    assert len(ids) == 1
    assert ask_report(hours=6, zone="UTC", actor=ACTOR) not in ids
    run_jobs()
    assert set(Report.objects.values_list("state", flat=True)) == {"done"}
    assert AuditEvent.objects.filter(act="report.ask").count() == 2


def test_a_report_that_was_asked_for_says_which_minutes_it_leaves_out(world):
    ask_report(hours=6, zone="UTC", actor=ACTOR)
    asked_at = Report.objects.get().until_at + timedelta(minutes=38, seconds=5)
    Report.objects.update(due_at=asked_at)
    run_jobs()
    row = Report.objects.get()
    assert row.figures["left_out_min"] == 38
    words = "the last whole hour; 38 min of traffic after it are not in it"
    assert document_of(row.figures).period.endswith(words)
    page = row.files.get(kind="html")
    assert words.encode() in bytes(page.content)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"cadence": "hourly"}, "cadence"),
        ({"weekday": 7}, "weekday"),
        ({"at_time": time(2, 30, 1)}, "at_time"),
        ({"recipients": ["a@x.example\nBcc: b@x.example"]}, "recipients"),
        ({"recipients": ["a@x.example"] * 2}, "recipients"),
        ({"recipients": [f"a{at}@x.example" for at in range(21)]}, "recipients"),
        ({"name": "not a slug"}, "name"),
    ],
)
def test_a_wrong_schedule_is_refused_at_its_field(world, changes, field):
    with pytest.raises(InvalidInput) as refused:
        schedule(**changes)
    assert refused.value.field == field
    assert not ReportSchedule.objects.exists()

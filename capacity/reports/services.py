"""Schedules of reports, what is due now, and issuing one: figures, files, mails.

A due time is a row before anything is made, unique by schedule and due time, so two schedulers, a
repeated message or a clock that jumps make one report. Issuing goes on where it stopped: figures
are gathered once, files written once, and each mail is ticked off as it is handed over.
"""

import hashlib
import logging
from collections.abc import Callable
from datetime import datetime, time

from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import transaction
from django.utils import timezone

from capacity.models import Cadence, Report, ReportFile, ReportSchedule, ReportState
from capacity.reports import mail
from capacity.reports.figures import gather
from capacity.reports.render import KINDS, files_of, html_of
from capacity.reports.rules.due import ZONES, Due, Period, Times, last_hours, period_of, to_issue
from console.audit.rules import Actor
from console.audit.services import record
from console.errors import Conflict, InvalidInput, NotFound
from console.jobs.services import enqueue
from console.validation import save_valid

logger = logging.getLogger(__name__)

JOB_KIND = "issue_report"
SCHEDULES_MAX = 50
RECIPIENTS_MAX = 20
ASKED = "asked"  # name of reports without a schedule
KEPT = 100  # reports of each schedule, and of those asked for; older ones go with their files
HOURS_MAX = 7 * 24  # of a report that is asked for
_FIELDS = ("timezone", "at_time", "cadence", "weekday", "recipients", "is_enabled")


@transaction.atomic
def create_schedule(
    *,
    name: str,
    timezone: str,
    at_time: time,
    cadence: str = Cadence.DAILY,
    weekday: int = 0,
    recipients: list[str] | None = None,
    is_enabled: bool = True,
    actor: Actor,
) -> int:
    """A new schedule; its first report is the next due time. Raises `InvalidInput`, `Conflict`."""
    if ReportSchedule.objects.count() >= SCHEDULES_MAX:
        raise InvalidInput(f"At most {SCHEDULES_MAX} schedules.", field="name")
    row = ReportSchedule(
        name=name,
        timezone=timezone,
        at_time=at_time,
        cadence=cadence,
        weekday=weekday,
        recipients=recipients or [],
        is_enabled=is_enabled,
        counts_from=_now(),
    )
    _check(row)
    save_valid(row, taken="There is a schedule of this name.", field="name")
    _audit(actor, "report_schedule.create", row.name, None, _columns(row))
    return row.pk


@transaction.atomic
def change_schedule(  # noqa: PLR0913 - the columns of a schedule, all by name
    *,
    name: str,
    version: int,
    timezone: str,
    at_time: time,
    cadence: str,
    weekday: int,
    recipients: list[str],
    is_enabled: bool,
    actor: Actor,
) -> None:
    """Change a schedule. What was due before now is never issued by the change.

    Raises `NotFound`, `InvalidInput`, and `Conflict` when somebody changed it since `version`.
    """
    row = _locked(name)
    if row.version != version:
        raise Conflict(
            "The schedule was changed meanwhile.",
            field="version",
            hint="Load it again: nothing of yours was saved.",
        )
    before = _columns(row)
    row.timezone, row.at_time, row.cadence = timezone, at_time, cadence
    row.weekday, row.recipients, row.is_enabled = weekday, recipients, is_enabled
    _check(row)
    row.version += 1
    row.counts_from = _now()
    save_valid(row, taken="There is a schedule of this name.", field="name")
    _audit(actor, "report_schedule.change", name, before, _columns(row))


@transaction.atomic
def remove_schedule(*, name: str, actor: Actor) -> None:
    """Delete a schedule; its reports stay in the archive. Raises `NotFound`."""
    row = _locked(name)
    _audit(actor, "report_schedule.remove", name, _columns(row), None)
    row.delete()


@transaction.atomic
def ask_report(*, hours: int, zone: str, idempotency_key: str = "", actor: Actor) -> int:
    """Queue a report of the last whole hours; its id. A repeated call with a key gives the same.

    Raises `InvalidInput`.
    """
    if not 1 <= hours <= HOURS_MAX:
        raise InvalidInput(f"hours lies between 1 and {HOURS_MAX}.", field="hours")
    _check_zone(zone)
    ask = f"{actor.user_id}:{idempotency_key}" if idempotency_key else ""
    known = Report.objects.filter(ask=ask).first() if ask else None
    if known is not None:
        return known.pk
    now = _now()
    row = _row(None, ASKED, Due(now, now.date()), last_hours(now, hours), zone)
    row.ask = ask
    save_valid(row, taken="This was just asked for.", field="")
    _audit(actor, "report.ask", str(row.pk), None, {"hours": hours, "timezone": zone})
    _enqueue(row.pk)
    return row.pk


def issue_due(*, now: datetime | None = None) -> int:
    """Make a row and a job of every schedule's newest due time; how many. Repeatable."""
    now = now or _now()
    names = list(ReportSchedule.objects.filter(is_enabled=True).values_list("name", flat=True))
    return sum(_issue_due(name, now) for name in names[:SCHEDULES_MAX])


@transaction.atomic
def _issue_due(name: str, now: datetime) -> int:
    # The lock makes two schedulers take turns; the constraints hold whatever they do.
    schedule = ReportSchedule.objects.select_for_update().filter(name=name, is_enabled=True).first()
    if schedule is None:
        return 0
    times = _times(schedule)
    last = schedule.reports.order_by("-due_at").values_list("due_at", flat=True).first()
    after = max(schedule.counts_from, last) if last else schedule.counts_from
    due, missed = to_issue(times, after, now)
    for one in missed:
        _insert(schedule, one, period_of(times, one), ReportState.MISSED)
    if due is None:
        return 0
    made = _insert(schedule, due, period_of(times, due), ReportState.QUEUED)
    if made is None:
        return 0
    _enqueue(made.pk)
    return 1


def _insert(
    schedule: ReportSchedule, due: Due, period: Period, state: ReportState
) -> Report | None:
    """The row of a due time, None when that time or that day has one already."""
    if schedule.reports.filter(due_on=due.on).exists():
        return None
    row = _row(schedule, schedule.name, due, period, schedule.timezone)
    row.state = state
    if state == ReportState.QUEUED:
        row.deliveries = [{"to": to, "state": "waiting", "why": ""} for to in schedule.recipients]
    row.save()
    return row


def issue(report_id: int, go_on: Callable[[float], None] = lambda _: None) -> None:
    """Make a report's figures and files, then mail it; goes on where an earlier try stopped.

    `go_on` is told how far it is and raises to stop. Raises `capacity.reports.mail.MailError` when
    a mail could not be handed over: the files are kept, and the next try sends the rest.
    """
    row = Report.objects.filter(pk=report_id).first()
    if row is None or row.state == ReportState.MISSED:
        return
    if row.figures is None:
        asked_at = row.due_at if row.name == ASKED and row.schedule_id is None else None
        figures = gather(Period(row.since_at, row.until_at), row.timezone, asked_at=asked_at)
        Report.objects.filter(pk=row.pk, figures__isnull=True).update(figures=figures)
        row.refresh_from_db()
    go_on(0.4)
    if row.state != ReportState.DONE:
        _keep_files(row)
    go_on(0.8)
    _deliver(row)
    _drop_old(row)


def _keep_files(row: Report) -> None:
    files = files_of(row.figures or {})
    with transaction.atomic():
        held = Report.objects.select_for_update().get(pk=row.pk)
        if held.state == ReportState.DONE:
            return
        ReportFile.objects.bulk_create(
            ReportFile(
                report=held,
                kind=kind,
                content=content,
                sha256=hashlib.sha256(content).hexdigest(),
                size_bytes=len(content),
            )
            for kind, content in files.items()
        )
        held.state = ReportState.DONE
        held.finished_at = _now()
        held.save(update_fields=["state", "finished_at"])
    row.refresh_from_db()


def _deliver(row: Report) -> None:
    waiting = [at for at, one in enumerate(row.deliveries) if one["state"] == "waiting"]
    if not waiting:
        return
    stem = f"report-{row.pk}"
    stored = {file.kind: bytes(file.content) for file in row.files.filter(kind__in=("pdf", "csv"))}
    attached = {f"{stem}.{kind}": (KINDS[kind], content) for kind, content in stored.items()}
    html = html_of(row.figures or {})
    failed = ""
    for at in waiting:
        name = f"{stem}-{at}"
        message = mail.mail_of(
            to=row.deliveries[at]["to"],
            name=name,
            subject=f"Headrace capacity report {row.name}, {row.due_on.isoformat()}",
            text="The capacity report is attached as PDF and CSV.",
            html=html,
            files=attached,
        )
        try:
            mail.send(message, name=name)
        except mail.MailError as error:
            failed = str(error)
            _tick(row.pk, at, "waiting", failed)
        else:
            _tick(row.pk, at, "sent", "")
    if failed:
        raise mail.MailError(failed)


@transaction.atomic
def _tick(report_id: int, at: int, state: str, why: str) -> None:
    row = Report.objects.select_for_update().get(pk=report_id)
    row.deliveries[at] |= {"state": state, "why": why, "at": _now().isoformat()}
    row.save(update_fields=["deliveries"])


def _drop_old(row: Report) -> None:
    alike = Report.objects.filter(schedule_id=row.schedule_id, name=row.name).order_by("-id")
    oldest = alike.values_list("pk", flat=True)[KEPT : KEPT + 50]
    Report.objects.filter(pk__in=list(oldest)).delete()


def _row(schedule: ReportSchedule | None, name: str, due: Due, period: Period, zone: str) -> Report:
    return Report(
        schedule=schedule,
        name=name,
        due_at=due.at,
        due_on=due.on,
        timezone=zone,
        since_at=period.since,
        until_at=period.until,
    )


def _enqueue(report_id: int) -> None:
    enqueue(JOB_KIND, args={"report_id": report_id}, dedupe_key=f"report:{report_id}")


def _times(row: ReportSchedule) -> Times:
    return Times(row.timezone, row.at_time, row.cadence, row.weekday)


def _locked(name: str) -> ReportSchedule:
    row = ReportSchedule.objects.select_for_update().filter(name=name).first()
    if row is None:
        raise NotFound("No such schedule.")
    return row


def _check(row: ReportSchedule) -> None:
    _check_zone(row.timezone)
    if row.cadence not in Cadence.values:
        raise InvalidInput("cadence is daily or weekly.", field="cadence")
    if not 0 <= row.weekday <= 6:
        raise InvalidInput("weekday is 0 (Monday) to 6.", field="weekday")
    if row.at_time.second or row.at_time.microsecond or row.at_time.tzinfo:
        raise InvalidInput("at_time is hours and minutes of the zone.", field="at_time")
    if len(row.recipients) > RECIPIENTS_MAX:
        raise InvalidInput(f"At most {RECIPIENTS_MAX} recipients.", field="recipients")
    for address in row.recipients:
        try:
            validate_email(address)
        except ValidationError as error:
            raise InvalidInput(
                f"{str(address)[:80]!r} is no mail address.", field="recipients"
            ) from error
    if len(set(row.recipients)) != len(row.recipients):
        raise InvalidInput("A recipient is named twice.", field="recipients")


def _check_zone(zone: str) -> None:
    if zone not in ZONES:
        raise InvalidInput(
            f"There is no time zone {zone[:60]!r}.", field="timezone", hint="Such as Europe/Berlin."
        )


def _columns(row: ReportSchedule) -> dict[str, object]:
    return {name: getattr(row, name) for name in _FIELDS}


def _audit(actor: Actor, act: str, name: str, before: object, after: object) -> None:
    record(actor=actor, act=act, object_type="report", object_id=name, before=before, after=after)


def _now() -> datetime:
    return timezone.now()


__all__ = [
    "HOURS_MAX",
    "JOB_KIND",
    "ask_report",
    "change_schedule",
    "create_schedule",
    "issue",
    "issue_due",
    "remove_schedule",
]

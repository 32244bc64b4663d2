"""Reads of schedules, the archive, and a report's files."""

from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone

from capacity.models import Report, ReportFile, ReportSchedule
from capacity.reports.rules.due import Times, next_due
from console.errors import NotFound
from console.web.keyset import MAX_LIMIT, Page, take

SCHEDULES_SHOWN = 50
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """A schedule with its next due time (None while it is off)."""

    name: str
    timezone: str
    at_time: time
    cadence: str
    weekday: int
    recipients: tuple[str, ...]
    is_enabled: bool
    version: int
    next_at: datetime | None

    @property
    def words(self) -> str:
        """When, in words."""
        day = "daily" if self.cadence == "daily" else WEEKDAYS[self.weekday]
        return f"{day} {self.at_time:%H:%M} {self.timezone}"


@dataclass(frozen=True, slots=True)
class FileView:
    """A file without its content."""

    kind: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class DeliveryView:
    """A mail: `waiting` (with why, if it was tried), or `sent`."""

    to: str
    state: str
    why: str


@dataclass(frozen=True, slots=True)
class ReportView:
    """A report of the archive."""

    id: int
    name: str
    due_at: datetime
    due_on: date
    timezone: str
    since_at: datetime
    until_at: datetime
    state: str
    finished_at: datetime | None
    files: tuple[FileView, ...]
    deliveries: tuple[DeliveryView, ...]

    @property
    def sent_words(self) -> str:
        """How many mails were handed over, in words."""
        if not self.deliveries:
            return ""
        return f"{sum(one.state == 'sent' for one in self.deliveries)} of {len(self.deliveries)}"


def schedules() -> list[ScheduleView]:
    """All schedules by name."""
    now = timezone.now()
    rows = ReportSchedule.objects.order_by("name")[:SCHEDULES_SHOWN]
    return [_schedule(row, now) for row in rows]


def schedule(name: str) -> ScheduleView:
    """One schedule. Raises `NotFound`."""
    row = ReportSchedule.objects.filter(name=name).first()
    if row is None:
        raise NotFound("No such schedule.")
    return _schedule(row, timezone.now())


def report_page(*, name: str = "", after: str | None, limit: int) -> Page[ReportView]:
    """Reports newest first, missed due times among them; two queries at any length."""
    rows = _listed()
    if name:
        rows = rows.filter(name=name)
    page = take(rows, order=("-id",), after=after, limit=min(limit, MAX_LIMIT))
    files = _files([row.pk for row in page.rows])
    return page.map(lambda row: _report(row, files.get(row.pk, ())))


def report(report_id: int) -> ReportView:
    """One report. Raises `NotFound`."""
    row = _listed().filter(pk=report_id).first()
    if row is None:
        raise NotFound("No such report.")
    return _report(row, _files([row.pk]).get(row.pk, ()))


def figures_of(report_id: int) -> dict[str, Any] | None:
    """A report's figures, None while they are not gathered. Raises `NotFound`."""
    found = Report.objects.filter(pk=report_id).values_list("figures", flat=True)
    if not found:
        raise NotFound("No such report.")
    return found[0]


def file_content(report_id: int, kind: str) -> bytes:
    """A file's bytes. Raises `NotFound`."""
    row = ReportFile.objects.filter(report_id=report_id, kind=kind).first()
    if row is None:
        raise NotFound("No such file.")
    return bytes(row.content)


def _listed() -> QuerySet[Report]:
    return Report.objects.defer("figures")


def _files(report_ids: list[int]) -> dict[int, tuple[FileView, ...]]:
    rows = ReportFile.objects.filter(report_id__in=report_ids).order_by("report_id", "kind")
    found: dict[int, tuple[FileView, ...]] = {}
    for report_id, kind, size, digest in rows.values_list(
        "report_id", "kind", "size_bytes", "sha256"
    ):
        found[report_id] = (*found.get(report_id, ()), FileView(kind, size, digest))
    return found


def _schedule(row: ReportSchedule, now: datetime) -> ScheduleView:
    times = Times(row.timezone, row.at_time, row.cadence, row.weekday)
    return ScheduleView(
        name=row.name,
        timezone=row.timezone,
        at_time=row.at_time,
        cadence=row.cadence,
        weekday=row.weekday,
        recipients=tuple(row.recipients),
        is_enabled=row.is_enabled,
        version=row.version,
        next_at=next_due(times, now).at if row.is_enabled else None,
    )


def _report(row: Report, files: tuple[FileView, ...]) -> ReportView:
    return ReportView(
        id=row.pk,
        name=row.name,
        due_at=row.due_at,
        due_on=row.due_on,
        timezone=row.timezone,
        since_at=row.since_at,
        until_at=row.until_at,
        state=row.state,
        finished_at=row.finished_at,
        files=files,
        deliveries=tuple(
            DeliveryView(one["to"], one["state"], one["why"]) for one in row.deliveries
        ),
    )

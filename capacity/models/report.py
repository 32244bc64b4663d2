"""Capacity reports: when one is due, each that was issued, and its files."""

from django.db import models


class Cadence(models.TextChoices):
    """How often a report is due."""

    DAILY = "daily", "Every day"
    WEEKLY = "weekly", "Every week"


class ReportState(models.TextChoices):
    """Where a report is in its life."""

    QUEUED = "queued", "Queued"
    DONE = "done", "Done"
    MISSED = "missed", "Missed"


class ReportSchedule(models.Model):
    """Due at `at_time` of the zone's days, on `weekday` (0 is Monday) when weekly.

    `counts_from` is when it began, was switched on or was last changed: nothing due before that is
    issued. `version` counts changes.
    """

    name = models.SlugField(max_length=64, unique=True)
    timezone = models.CharField(max_length=64)
    at_time = models.TimeField()
    cadence = models.CharField(max_length=8, choices=Cadence.choices, default=Cadence.DAILY)
    weekday = models.PositiveSmallIntegerField(default=0)
    recipients = models.JSONField(default=list, blank=True)
    is_enabled = models.BooleanField(default=True)
    version = models.PositiveIntegerField(default=1)
    counts_from = models.DateTimeField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(cadence__in=Cadence.values), name="report_cadence_known"
            ),
            models.CheckConstraint(condition=models.Q(weekday__lte=6), name="report_weekday_known"),
        ]

    def __str__(self) -> str:
        return self.name


class Report(models.Model):
    """One due time of a schedule, or one that a person asked for (no schedule).

    One row for each due time and at most one for each of the zone's days, whatever runs twice.
    `figures` is what every file was made from; `deliveries` says what became of each mail.
    """

    schedule = models.ForeignKey(
        ReportSchedule, null=True, blank=True, on_delete=models.SET_NULL, related_name="reports"
    )
    name = models.CharField(max_length=64)
    due_at = models.DateTimeField()
    due_on = models.DateField()
    ask = models.CharField(max_length=200, blank=True)
    timezone = models.CharField(max_length=64)
    since_at = models.DateTimeField()
    until_at = models.DateTimeField()
    state = models.CharField(max_length=8, choices=ReportState.choices, default=ReportState.QUEUED)
    figures = models.JSONField(null=True, blank=True)
    deliveries = models.JSONField(default=list, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["schedule", "due_at"], name="report_once_per_due_time"),
            models.UniqueConstraint(fields=["schedule", "due_on"], name="report_once_per_day"),
            models.UniqueConstraint(
                fields=["ask"], condition=~models.Q(ask=""), name="report_asked_once"
            ),
            models.CheckConstraint(
                condition=models.Q(state__in=ReportState.values), name="report_state_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.due_at}"


class ReportFile(models.Model):
    """A report in one format."""

    report = models.ForeignKey(Report, on_delete=models.CASCADE, related_name="files")
    kind = models.CharField(max_length=8)
    content = models.BinaryField()
    sha256 = models.CharField(max_length=64)
    size_bytes = models.PositiveIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["report", "kind"], name="report_file_once")]

    def __str__(self) -> str:
        return f"{self.report_id}.{self.kind}"

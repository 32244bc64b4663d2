"""One checkpointed row per background job. The row is the truth; the broker only nudges."""

from django.db import models
from django.db.models.functions import Now


class JobState(models.TextChoices):
    """Where a job is in its life."""

    QUEUED = "queued", "Queued"
    RUNNING = "running", "Running"
    DONE = "done", "Done"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"


class Job(models.Model):
    """A unit of background work.

    `cursor` is its checkpoint; `dedupe_key` allows one queued job of a kind.
    """

    kind = models.CharField(max_length=64)
    args = models.JSONField(default=dict)
    state = models.CharField(max_length=16, choices=JobState.choices, default=JobState.QUEUED)
    dedupe_key = models.CharField(max_length=120, blank=True)
    cursor = models.JSONField(default=dict)
    progress_ratio = models.FloatField(null=True, blank=True)
    attempts = models.PositiveIntegerField(default=0)
    max_attempts = models.PositiveIntegerField(default=5)
    run_after = models.DateTimeField(db_default=Now())
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    error = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(state__in=JobState.values), name="job_state_known"
            ),
            models.UniqueConstraint(
                fields=["kind", "dedupe_key"],
                condition=models.Q(state=JobState.QUEUED) & ~models.Q(dedupe_key=""),
                name="job_queued_once_per_key",
            ),
        ]
        indexes = [
            models.Index(
                fields=["run_after", "id"],
                condition=models.Q(state__in=[JobState.QUEUED, JobState.RUNNING]),
                name="job_open_by_due",
            ),
            models.Index(fields=["kind", "-id"], name="job_by_kind"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} #{self.pk} {self.state}"

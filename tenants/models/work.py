"""Tasks: what a caller wants done, over all the calls that it takes."""

from django.db import models

from routing.contracts.enums import TaskOutcome


class WorkTask(models.Model):
    """One task of a tenant, by the caller's own name for it, and how it says that it ended.

    Written by the ledger writer with the rows; the outcome by header or by a report, once.
    """

    tenant = models.ForeignKey("tenants.Tenant", on_delete=models.PROTECT, related_name="+")
    task = models.CharField(max_length=120)
    kind = models.CharField(max_length=64, blank=True)
    parent = models.CharField(max_length=120, blank=True)
    session = models.CharField(max_length=120, blank=True)
    first_at = models.DateTimeField()
    last_at = models.DateTimeField()
    outcome = models.CharField(
        max_length=16, blank=True, choices=[(item.value, item.value) for item in TaskOutcome]
    )
    score_ratio = models.FloatField(null=True, blank=True)
    outcome_at = models.DateTimeField(null=True, blank=True)
    outcome_source = models.CharField(max_length=16, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "task"], name="work_task_once"),
            models.CheckConstraint(
                condition=models.Q(outcome__in=["", *[item.value for item in TaskOutcome]]),
                name="work_task_outcome_known",
            ),
            models.CheckConstraint(
                condition=models.Q(score_ratio=None)
                | (models.Q(score_ratio__gte=0) & models.Q(score_ratio__lte=1)),
                name="work_task_score_is_ratio",
            ),
        ]
        indexes = [
            models.Index(fields=["tenant", "-id"], name="work_task_by_tenant"),
            models.Index(fields=["first_at"], name="work_task_by_start"),
            models.Index(
                fields=["outcome_at"],
                name="work_task_by_outcome",
                condition=models.Q(outcome_at__isnull=False),
            ),
            models.Index(fields=["last_at"], name="work_task_by_end"),
            models.Index(
                fields=["tenant", "parent"],
                name="work_task_by_parent",
                condition=~models.Q(parent=""),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.task}"


class WorkTaskPart(models.Model):
    """What a task took of one model (or named resource) in one pool, adjustments included."""

    task = models.ForeignKey(WorkTask, on_delete=models.CASCADE, related_name="parts")
    model = models.CharField(max_length=200)
    pool = models.CharField(max_length=120, blank=True)
    requests = models.BigIntegerField(default=0)
    failed = models.BigIntegerField(default=0)
    cancelled = models.BigIntegerField(default=0)
    input_tokens = models.BigIntegerField(default=0)
    cached_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    spend_nanousd = models.BigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["task", "model", "pool"], name="work_part_once")
        ]

    def __str__(self) -> str:
        return f"{self.task_id} {self.model} {self.pool}"

"""Slice rollups: what was seen, minute by minute, with mergeable sketches."""

from django.db import models


class SliceMinute(models.Model):
    """One slice in one minute.

    `refused_input_tokens` are the estimated prompts of what was refused.
    `*_sketch` holds sparse DDSketch bins (`telemetry.stats.sketch`), in seconds.
    """

    minute_at = models.DateTimeField()
    tenant_id = models.BigIntegerField()
    model = models.CharField(max_length=200)
    pool = models.CharField(max_length=120)
    work_class = models.CharField(max_length=16)
    requests = models.BigIntegerField(default=0)
    failed = models.BigIntegerField(default=0)
    cancelled = models.BigIntegerField(default=0)
    refused = models.JSONField(default=dict)
    refused_input_tokens = models.BigIntegerField(default=0, db_default=0)
    input_tokens = models.BigIntegerField(default=0)
    cached_tokens = models.BigIntegerField(default=0)
    output_tokens = models.BigIntegerField(default=0)
    spend_nanousd = models.BigIntegerField(default=0)
    ttft_sketch = models.BinaryField()
    itl_sketch = models.BinaryField()
    e2e_sketch = models.BinaryField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["minute_at", "tenant_id", "model", "pool", "work_class"],
                name="slice_minute_once",
            )
        ]
        indexes = [models.Index(fields=["tenant_id", "-minute_at"], name="slice_minute_by_tenant")]

    def __str__(self) -> str:
        return f"{self.minute_at} {self.tenant_id} {self.model}"

"""What pools looked like, minute by minute."""

from django.db import models


class PoolSample(models.Model):
    """One look at a pool in one minute, over the replicas that had reported freshly.

    Ratios are the engines' own KV occupancy. Null is unknown, never 0.
    """

    minute_at = models.DateTimeField()
    pool = models.CharField(max_length=120)
    replicas = models.PositiveIntegerField()
    fresh_replicas = models.PositiveIntegerField()
    kv_max_ratio = models.FloatField(null=True, blank=True)
    kv_mean_ratio = models.FloatField(null=True, blank=True)
    running = models.PositiveIntegerField(null=True, blank=True)
    waiting = models.PositiveIntegerField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["minute_at", "pool"], name="pool_sample_once")
        ]

    def __str__(self) -> str:
        return f"{self.minute_at} {self.pool}"

"""Limits of what a pool or the fleet takes, over all tenants: one row per bound."""

from django.db import models

from capacity.models.fleet import Pool
from routing.contracts.capacity import LIMITED

MAX_AMOUNT = 9_000_000_000_000_000  # the store's counters are doubles: exact below 2^53
_DIMENSIONS = [dimension.value for dimension in LIMITED]


class CapacityLimit(models.Model):
    """At most `amount` of `dimension` for the pool, or for the whole fleet without one."""

    pool = models.ForeignKey(
        Pool, null=True, blank=True, on_delete=models.PROTECT, related_name="limits"
    )
    dimension = models.CharField(max_length=8, choices=[(name, name) for name in _DIMENSIONS])
    amount = models.BigIntegerField()
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["pool", "dimension"], name="capacity_limit_once", nulls_distinct=False
            ),
            models.CheckConstraint(
                condition=models.Q(amount__gte=0) & models.Q(amount__lte=MAX_AMOUNT),
                name="capacity_limit_amount_exact",
            ),
            models.CheckConstraint(
                condition=models.Q(dimension__in=_DIMENSIONS),
                name="capacity_limit_dimension_known",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.pool_id or 'fleet'} {self.dimension} <= {self.amount}"

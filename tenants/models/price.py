"""Price book:

versioned rows, added and never edited (a trigger in the first migration refuses update).
"""

from django.db import models


class PriceRow(models.Model):
    """Integer nano-dollars per million tokens of one model, from `valid_from` on.

    0 is said, never assumed.
    """

    model = models.ForeignKey("capacity.Model", on_delete=models.PROTECT, related_name="+")
    version = models.PositiveIntegerField()
    valid_from = models.DateTimeField()
    input_nanousd = models.BigIntegerField()
    cached_nanousd = models.BigIntegerField()
    output_nanousd = models.BigIntegerField()
    cache_write_nanousd = models.BigIntegerField(null=True, blank=True)  # null: as input
    reasoning_nanousd = models.BigIntegerField(null=True, blank=True)  # null: as output
    image_nanousd = models.BigIntegerField(default=0, db_default=0)  # a picture, besides its tokens
    note = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["model", "version"], name="price_version_once"),
            models.UniqueConstraint(fields=["model", "valid_from"], name="price_moment_once"),
            models.CheckConstraint(
                condition=models.Q(
                    input_nanousd__gte=0, cached_nanousd__gte=0, output_nanousd__gte=0
                ),
                name="price_not_negative",
            ),
            models.CheckConstraint(
                condition=models.Q(image_nanousd__gte=0)
                & (models.Q(cache_write_nanousd=None) | models.Q(cache_write_nanousd__gte=0))
                & (models.Q(reasoning_nanousd=None) | models.Q(reasoning_nanousd__gte=0)),
                name="price_parts_not_negative",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.model_id} v{self.version}"


class ResourcePrice(models.Model):
    """Integer nano-dollars of one use of a named resource, from `valid_from` on.

    A resource is known by its first price; 0 is said, never assumed.
    """

    resource = models.CharField(max_length=100)
    version = models.PositiveIntegerField()
    valid_from = models.DateTimeField()
    unit_nanousd = models.BigIntegerField()
    note = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["resource", "version"], name="resource_price_version_once"
            ),
            models.UniqueConstraint(
                fields=["resource", "valid_from"], name="resource_price_moment_once"
            ),
            models.CheckConstraint(
                condition=models.Q(unit_nanousd__gte=0), name="resource_price_not_negative"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.resource} v{self.version}"


class PoolPrice(models.Model):
    """Integer nano-dollars of one second of one GPU of a pool of ours, from `valid_from` on.

    What the pool costs us, used or idle; callers are charged by their model's price.
    """

    pool = models.ForeignKey("capacity.Pool", on_delete=models.PROTECT, related_name="+")
    version = models.PositiveIntegerField()
    valid_from = models.DateTimeField()
    gpu_second_nanousd = models.BigIntegerField()
    note = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["pool", "version"], name="pool_price_version_once"),
            models.UniqueConstraint(fields=["pool", "valid_from"], name="pool_price_moment_once"),
            models.CheckConstraint(
                condition=models.Q(gpu_second_nanousd__gte=0), name="pool_price_not_negative"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.pool_id} v{self.version}"

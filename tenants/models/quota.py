"""Limits: one row per bound."""

from django.db import models

from routing.contracts.enums import Dimension, LimitScope, WindowKind, WorkClass
from tenants.models.key import ApiKey
from tenants.models.tenant import WORK_CLASSES, Tenant

MAX_AMOUNT = 9_000_000_000_000_000  # the store's counters are doubles: exact below 2^53

DAY_MIN = 1440

_GAUGES = [Dimension.CONCURRENCY.value, Dimension.KV_TOKENS.value]


class Limit(models.Model):
    """At most `amount` of `dimension` per `window`, for the subject that the scope names."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="limits")
    scope = models.CharField(max_length=16, choices=[(s.value, s.value) for s in LimitScope])
    key = models.ForeignKey(
        ApiKey, null=True, blank=True, on_delete=models.PROTECT, related_name="limits"
    )
    model = models.ForeignKey(
        "capacity.Model", null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    work_class = models.CharField(max_length=16, choices=WORK_CLASSES, blank=True)
    resource = models.CharField(max_length=100, blank=True, default="", db_default="")
    dimension = models.CharField(max_length=8, choices=[(d.value, d.value) for d in Dimension])
    window = models.CharField(max_length=4, choices=[(w.value, w.value) for w in WindowKind])
    anchor_min = models.PositiveIntegerField(default=0)  # `routing.contracts.snapshot.Limit`
    amount = models.BigIntegerField()
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=[
                    "tenant",
                    "scope",
                    "key",
                    "model",
                    "work_class",
                    "resource",
                    "dimension",
                    "window",
                ],
                name="limit_once",
                nulls_distinct=False,
            ),
            models.CheckConstraint(
                condition=models.Q(amount__gte=0) & models.Q(amount__lte=MAX_AMOUNT),
                name="limit_amount_exact",
            ),
            models.CheckConstraint(
                condition=(
                    models.Q(scope=LimitScope.TENANT.value, key=None, model=None, work_class="")
                    | models.Q(
                        scope=LimitScope.KEY.value, key__isnull=False, model=None, work_class=""
                    )
                    | models.Q(
                        scope=LimitScope.TENANT_MODEL.value,
                        key=None,
                        model__isnull=False,
                        work_class="",
                    )
                    | models.Q(
                        scope=LimitScope.TENANT_CLASS.value,
                        key=None,
                        model=None,
                        work_class__in=[item.value for item in WorkClass],
                    )
                    | models.Q(scope=LimitScope.RESOURCE.value, key=None, model=None, work_class="")
                ),
                name="limit_names_its_subject",
            ),
            models.CheckConstraint(
                condition=(
                    models.Q(scope=LimitScope.RESOURCE.value) & ~models.Q(resource="")
                    | ~models.Q(scope=LimitScope.RESOURCE.value) & models.Q(resource="")
                ),
                name="limit_of_resource_names_it",
            ),
            models.CheckConstraint(
                condition=(
                    models.Q(dimension__in=_GAUGES, window=WindowKind.NOW.value)
                    | (~models.Q(dimension__in=_GAUGES) & ~models.Q(window=WindowKind.NOW.value))
                ),
                name="limit_window_fits_dimension",
            ),
            models.CheckConstraint(
                condition=models.Q(anchor_min=0)
                | models.Q(window=WindowKind.DAY.value, anchor_min__lt=DAY_MIN)
                | models.Q(window=WindowKind.WEEK.value, anchor_min__lt=7 * DAY_MIN)
                | models.Q(window=WindowKind.MONTH.value, anchor_min__lt=31 * DAY_MIN),
                name="limit_anchor_lies_in_window",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.scope} {self.dimension}/{self.window} <= {self.amount}"

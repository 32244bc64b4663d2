"""Overrides: temporary bounds above the policy, who set them, why, and when they end."""

from django.conf import settings
from django.db import models

from routing.contracts.enums import WorkClass
from routing.contracts.override import OverrideKind

_KINDS = [(kind.value, kind.value) for kind in OverrideKind]


class Override(models.Model):
    """One override. It is in force until it is lifted or `ends_at` has passed, whichever is first.

    `tenant_slug` is what pages show; `source` says who set it, such as `playbook:noisy-tenant`, and
    `run_id` which run of it.
    """

    kind = models.CharField(max_length=20, choices=_KINDS)
    tenant_id = models.BigIntegerField(null=True, blank=True)
    tenant_slug = models.CharField(max_length=63, blank=True)
    work_class = models.CharField(
        max_length=16, blank=True, choices=[(item.value, item.value) for item in WorkClass]
    )
    model = models.CharField(max_length=200, blank=True)
    amount = models.PositiveIntegerField(default=0)
    admitted_ratio = models.FloatField(default=0.0)
    reason = models.CharField(max_length=300)
    source = models.CharField(max_length=80)
    run_id = models.BigIntegerField(null=True, blank=True)
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    created_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    lifted_at = models.DateTimeField(null=True, blank=True)
    lifted_by = models.CharField(max_length=150, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(kind__in=[name for name, _ in _KINDS]),
                name="override_kind_known",
            ),
            models.CheckConstraint(
                condition=models.Q(ends_at__gt=models.F("created_at")), name="override_has_an_end"
            ),
            models.CheckConstraint(
                condition=models.Q(admitted_ratio__gte=0) & models.Q(admitted_ratio__lte=1),
                name="override_share_is_a_ratio",
            ),
        ]
        indexes = [
            models.Index(
                fields=["ends_at"],
                condition=models.Q(lifted_at=None),
                name="override_in_force",
            ),
            models.Index(fields=["run_id"], name="override_by_run"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} until {self.ends_at}"

"""API keys. The secret is shown once; what stays is a keyed digest and a public prefix."""

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models

from tenants.models.tenant import WORK_CLASSES, Project, Tenant


class ApiKey(models.Model):
    """A live or ended credential of one tenant.

    `allowed_models` narrows what the tenant allows (`*` for all of it). A rotated key keeps its row
    and so its limits and usage; the earlier secret lives on in `previous_digest` until
    `previous_until`.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="keys")
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="keys")
    name = models.CharField(max_length=120)
    prefix = models.CharField(max_length=24)
    digest = models.CharField(max_length=64, unique=True)
    previous_digest = models.CharField(max_length=64, null=True, blank=True, unique=True)
    previous_until = models.DateTimeField(null=True, blank=True)
    allowed_models = ArrayField(models.CharField(max_length=200), default=list, blank=True)
    work_class = models.CharField(max_length=16, choices=WORK_CLASSES, blank=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["tenant", "-id"], name="key_by_tenant"),
            # a search by the first characters needs the operators of patterns
            models.Index(
                fields=["prefix"], opclasses=["varchar_pattern_ops"], name="key_by_prefix"
            ),
        ]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(previous_digest__isnull=True)
                | models.Q(previous_until__isnull=False),
                name="key_previous_has_an_end",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.prefix}… ({self.name})"

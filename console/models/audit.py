"""Append-only audit trail, hash-chained.

A trigger in the first migration refuses update and delete.
"""

from django.conf import settings
from django.db import models


class AuditEvent(models.Model):
    """One act. `hash` covers this row's canonical bytes and `prev_hash` (`console.audit.rules`)."""

    at = models.DateTimeField()
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT
    )
    actor_label = models.CharField(max_length=150)
    act = models.CharField(max_length=64)
    object_type = models.CharField(max_length=64)
    object_id = models.CharField(max_length=64)
    tenant = models.ForeignKey("tenants.Tenant", null=True, blank=True, on_delete=models.PROTECT)
    reason = models.TextField(blank=True)
    before = models.JSONField(null=True, blank=True)
    after = models.JSONField(null=True, blank=True)
    request_id = models.CharField(max_length=64, blank=True)
    prev_hash = models.CharField(max_length=64, blank=True)
    hash = models.CharField(max_length=64, unique=True)

    class Meta:
        indexes = [
            models.Index(fields=["tenant", "-id"], name="audit_by_tenant"),
            models.Index(fields=["object_type", "object_id", "-id"], name="audit_by_object"),
            models.Index(fields=["actor", "-id"], name="audit_by_actor"),
        ]

    def __str__(self) -> str:
        return f"{self.act} {self.object_type} {self.object_id}"

"""Requests of tenants for more, and what became of them."""

from django.conf import settings
from django.db import models

from routing.contracts.enums import Dimension, LimitScope, WindowKind
from tenants.models.quota import MAX_AMOUNT
from tenants.models.tenant import WORK_CLASSES, Tenant

# A key's limits are its tenant's own to set: only what operators grant is asked for.
ASKED_SCOPES = (
    LimitScope.TENANT.value,
    LimitScope.TENANT_MODEL.value,
    LimitScope.TENANT_CLASS.value,
    LimitScope.RESOURCE.value,
)


class QuotaRequestState(models.TextChoices):
    """From open to one of the others, once; a granted one may then end or give way to a newer."""

    OPEN = "open", "Open"
    GRANTED = "granted", "Granted"
    REFUSED = "refused", "Refused"
    WITHDRAWN = "withdrawn", "Withdrawn"
    ENDED = "ended", "Ended"
    SUPERSEDED = "superseded", "Superseded"


class QuotaRequest(models.Model):
    """A tenant asks for a higher limit; an operator grants it, perhaps less or for a time, or not.

    The limit is named by the columns that name it in `Limit`. Amounts are those of its dimension
    (money in nano-dollars): `amount_then` was set when it was asked, `amount_granted` is set by the
    decision, and a grant that ends (`ends_at`) returns the limit to `amount_back`.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="quota_requests")
    scope = models.CharField(max_length=16, choices=[(name, name) for name in ASKED_SCOPES])
    model = models.ForeignKey(
        "capacity.Model", null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    work_class = models.CharField(max_length=16, choices=WORK_CLASSES, blank=True)
    resource = models.CharField(max_length=100, blank=True)
    dimension = models.CharField(max_length=8, choices=[(d.value, d.value) for d in Dimension])
    window = models.CharField(max_length=4, choices=[(w.value, w.value) for w in WindowKind])
    amount_then = models.BigIntegerField()
    amount_asked = models.BigIntegerField()
    reason = models.CharField(max_length=400)
    until = models.DateTimeField(null=True, blank=True)
    asked_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    state = models.CharField(
        max_length=16, choices=QuotaRequestState.choices, default=QuotaRequestState.OPEN
    )
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    decided_at = models.DateTimeField(null=True, blank=True)
    decision_reason = models.CharField(max_length=400, blank=True)
    amount_granted = models.BigIntegerField(null=True, blank=True)
    amount_back = models.BigIntegerField(null=True, blank=True)
    ends_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    end_note = models.CharField(max_length=200, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["tenant", "-id"], name="quota_request_by_tenant"),
            models.Index(fields=["state", "-id"], name="quota_request_by_state"),
            models.Index(
                fields=["ends_at"],
                condition=models.Q(state=QuotaRequestState.GRANTED, ends_at__isnull=False),
                name="quota_request_to_end",
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=[
                    "tenant",
                    "scope",
                    "model",
                    "work_class",
                    "resource",
                    "dimension",
                    "window",
                ],
                condition=models.Q(state=QuotaRequestState.OPEN),
                name="quota_request_open_once",
                nulls_distinct=False,
            ),
            models.CheckConstraint(
                condition=models.Q(amount_then__gte=0)
                & models.Q(amount_asked__gt=models.F("amount_then"))
                & models.Q(amount_asked__lte=MAX_AMOUNT),
                name="quota_request_asks_for_more",
            ),
            models.CheckConstraint(
                condition=models.Q(state__in=QuotaRequestState.values),
                name="quota_request_state_known",
            ),
            models.CheckConstraint(
                condition=models.Q(state=QuotaRequestState.OPEN, decided_at=None)
                | ~models.Q(state=QuotaRequestState.OPEN) & models.Q(decided_at__isnull=False),
                name="quota_request_decided_at_a_time",
            ),
            models.CheckConstraint(
                condition=models.Q(
                    state__in=[
                        QuotaRequestState.OPEN,
                        QuotaRequestState.REFUSED,
                        QuotaRequestState.WITHDRAWN,
                    ],
                    amount_granted=None,
                    amount_back=None,
                )
                | models.Q(
                    state__in=[
                        QuotaRequestState.GRANTED,
                        QuotaRequestState.ENDED,
                        QuotaRequestState.SUPERSEDED,
                    ],
                    amount_granted__gt=models.F("amount_back"),
                    amount_granted__lte=models.F("amount_asked"),
                    amount_back__isnull=False,
                ),
                name="quota_request_grant_complete",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant_id} asks {self.dimension}/{self.window} <= {self.amount_asked}"

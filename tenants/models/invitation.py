"""An invitation: a link with which one named person joins a tenant by its own choice."""

from django.conf import settings
from django.db import models
from django.db.models.functions import Lower

from tenants.models.tenant import MemberRole, Tenant


class Invitation(models.Model):
    """What a tenant offers a person. Only a keyed digest of the link's secret is kept.

    `person` is the user name or e-mail address as it was typed: whether anybody has it is not said,
    and only who does may accept. It is open until it is accepted, withdrawn, or `expires_at`.
    """

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="invitations")
    person = models.CharField(max_length=254)
    role = models.CharField(max_length=16, choices=MemberRole.choices)
    digest = models.CharField(max_length=64, unique=True)
    invited_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    accepted_at = models.DateTimeField(null=True, blank=True)
    withdrawn_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                "tenant",
                Lower("person"),
                condition=models.Q(accepted_at=None, withdrawn_at=None),
                name="invitation_one_open_per_person",
            ),
            models.CheckConstraint(
                condition=models.Q(role__in=MemberRole.values), name="invitation_role_known"
            ),
            models.CheckConstraint(
                condition=models.Q(accepted_at=None) | models.Q(withdrawn_at=None),
                name="invitation_one_end",
            ),
        ]
        indexes = [
            models.Index(
                fields=["tenant", "-id"],
                condition=models.Q(accepted_at=None, withdrawn_at=None),
                name="invitation_open_by_tenant",
            )
        ]

    def __str__(self) -> str:
        return f"{self.person} to {self.tenant_id}"

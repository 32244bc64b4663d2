"""People and their automation tokens.

What a role may do is decided in `console.accounts.selectors`.
"""

from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Lower


class Role(models.TextChoices):
    """Role in the console. `NONE`: only what tenant memberships give."""

    NONE = "none", "No console role"
    OPERATOR = "operator", "Operator"
    ADMIN = "admin", "Admin"
    AUDITOR = "auditor", "Auditor"


class Grant(models.TextChoices):
    """Acts that an operator needs a grant for; admins hold all of them."""

    POLICY_PUBLISH = "policy.publish", "Publish policies"
    POLICY_APPROVE = "policy.approve", "Approve policies"
    ROLLOUT_RUN = "rollout.run", "Run rollouts"
    PLAYBOOK_ARM = "playbook.arm", "Arm playbooks"
    QUOTA_GRANT = "quota.grant", "Grant quota"


class User(AbstractUser):
    """A person who signs in to the console."""

    role = models.CharField(max_length=16, choices=Role.choices, default=Role.NONE)
    grants = ArrayField(
        models.CharField(max_length=32, choices=Grant.choices), default=list, blank=True
    )

    class Meta(AbstractUser.Meta):
        constraints = [
            # two names that differ in case alone would be taken for each other
            models.UniqueConstraint(Lower("username"), name="user_name_once_in_any_case"),
            models.CheckConstraint(
                condition=models.Q(role__in=Role.values), name="user_role_known"
            ),
            models.CheckConstraint(
                condition=models.Q(grants__contained_by=Grant.values), name="user_grants_known"
            ),
        ]


class ApiToken(models.Model):
    """Bearer token for automation; acts as its user. Only a keyed digest of the secret is kept."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=80)
    prefix = models.CharField(max_length=16)
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "name"], name="token_name_once_per_user")
        ]

    def __str__(self) -> str:
        return f"{self.prefix}… ({self.name})"

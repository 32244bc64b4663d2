"""Policies, their immutable versions, and the snapshots compiled from them."""

from uuid import uuid4

from django.conf import settings
from django.db import models


class Policy(models.Model):
    """A named policy. `live` is the version that gateways are to run."""

    name = models.SlugField(max_length=63, unique=True)
    live = models.ForeignKey(
        "routing.PolicyVersion", null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.name


class PolicyVersion(models.Model):
    """An immutable document (a trigger in the first migration refuses update and delete)."""

    policy = models.ForeignKey(Policy, on_delete=models.PROTECT, related_name="versions")
    number = models.PositiveIntegerField()
    document = models.JSONField()
    digest = models.CharField(max_length=64)
    note = models.CharField(max_length=400, blank=True)
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["policy", "number"], name="policy_version_once"),
            models.CheckConstraint(
                condition=models.Q(number__gte=1), name="policy_version_from_one"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.policy_id}@{self.number}"


class PolicyDraft(models.Model):
    """What operators are writing on top of `base`: text as typed, which need not be a policy yet.

    One a policy name. `edition` grows with each save: two people who edit at once are told apart.
    """

    policy = models.SlugField(max_length=63, unique=True)
    base = models.PositiveIntegerField(null=True, blank=True)
    text = models.TextField(max_length=262_144)
    note = models.CharField(max_length=400, blank=True)
    edition = models.PositiveIntegerField(default=1)
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.PROTECT, related_name="+"
    )
    saved_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.policy} draft {self.edition}"


class PolicyPlan(models.Model):
    """A checked document waiting to be applied on its base; an hour later it is gone."""

    id = models.UUIDField(primary_key=True, default=uuid4, editable=False)
    policy = models.SlugField(max_length=63)
    base = models.PositiveIntegerField(null=True)
    document = models.JSONField()
    digest = models.CharField(max_length=64)
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)

    def __str__(self) -> str:
        return f"{self.policy} plan {self.id}"


class SnapshotRow(models.Model):
    """One compiled snapshot. `number` is its sequence number; only recent bodies are kept."""

    number = models.BigAutoField(primary_key=True)
    version = models.ForeignKey(PolicyVersion, on_delete=models.PROTECT, related_name="snapshots")
    content_digest = models.CharField(max_length=64)
    body = models.BinaryField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return f"snapshot {self.number}"

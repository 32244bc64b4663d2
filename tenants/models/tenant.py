"""Tenants, their projects and members."""

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models

from routing.contracts.enums import WorkClass

WORK_CLASSES = [(item.value, item.value) for item in WorkClass]


class TenantState(models.TextChoices):
    """A suspended tenant is refused at the gateway and keeps its data."""

    ACTIVE = "active", "Active"
    SUSPENDED = "suspended", "Suspended"


class MemberRole(models.TextChoices):
    """What a member may do inside its own tenant."""

    ADMIN = "tenant_admin", "Tenant admin"
    VIEWER = "tenant_viewer", "Tenant viewer"


class Tenant(models.Model):
    """Who pays.

    `allowed_models` lists model names or `*`; empty means none. `cache_salt` isolates prefix
    caches.
    """

    slug = models.SlugField(max_length=63, unique=True)
    name = models.CharField(max_length=200)
    state = models.CharField(max_length=16, choices=TenantState.choices, default=TenantState.ACTIVE)
    timezone = models.CharField(max_length=64, default="UTC")
    default_class = models.CharField(
        max_length=16, choices=WORK_CLASSES, default=WorkClass.STANDARD.value
    )
    allowed_models = ArrayField(models.CharField(max_length=200), default=list, blank=True)
    cache_salt = models.CharField(max_length=64)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(state__in=TenantState.values), name="tenant_state_known"
            ),
            models.CheckConstraint(
                condition=models.Q(default_class__in=[item.value for item in WorkClass]),
                name="tenant_class_known",
            ),
            models.CheckConstraint(condition=~models.Q(cache_salt=""), name="tenant_has_salt"),
        ]

    def __str__(self) -> str:
        return self.slug


class Project(models.Model):
    """Where a tenant's usage is booked. Every tenant has a `default` one."""

    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="projects")
    slug = models.SlugField(max_length=63)
    name = models.CharField(max_length=200)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "slug"], name="project_slug_once_per_tenant")
        ]

    def __str__(self) -> str:
        return f"{self.tenant_id}/{self.slug}"


class Membership(models.Model):
    """A person's role inside one tenant."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="memberships"
    )
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="memberships")
    role = models.CharField(max_length=16, choices=MemberRole.choices)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "tenant"], name="member_once_per_tenant"),
            models.CheckConstraint(
                condition=models.Q(role__in=MemberRole.values), name="member_role_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.user_id}@{self.tenant_id} {self.role}"

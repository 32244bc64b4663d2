"""Who may do what. Every page, endpoint and socket asks here, each time; nothing is cached.

A role or membership that was taken away is therefore gone with the next question.
"""

from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth.models import AnonymousUser

from console.accounts.rules import Permission, permissions_everywhere, permissions_in_tenant
from console.audit.rules import Actor
from console.errors import Forbidden, NotFound
from console.models import ApiToken, User

__all__ = [
    "Permission",
    "TokenView",
    "actor_of",
    "can",
    "require",
    "tokens_of",
    "users",
    "visible_tenant_ids",
]

MAX_LISTED = 200

Caller = User | AnonymousUser | None


@dataclass(frozen=True, slots=True)
class TokenView:
    """An automation token as lists show it; the secret is not kept."""

    id: int
    name: str
    prefix: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


def can(user: Caller, permission: Permission, tenant_id: int | None = None) -> bool:
    """Whether the caller holds the permission, everywhere or in that tenant."""
    if user is None or not isinstance(user, User) or not user.is_active:
        return False
    if permission in permissions_everywhere(user.role, tuple(user.grants)):
        return True
    if tenant_id is None:
        return False
    role = user.memberships.filter(tenant_id=tenant_id).values_list("role", flat=True).first()
    return role is not None and permission in permissions_in_tenant(role)


def require(user: Caller, permission: Permission, tenant_id: int | None = None) -> None:
    """Pass when the caller holds the permission.

    Raises `NotFound` for a tenant that the caller may not see, else `Forbidden`.
    """
    if can(user, permission, tenant_id):
        return
    if tenant_id is not None and not can(user, Permission.TENANT_VIEW, tenant_id):
        raise NotFound("No such object.")
    raise Forbidden(
        f"This needs the permission {permission.value}.",
        hint="Ask an admin for the role or grant that includes it.",
    )


def visible_tenant_ids(user: Caller) -> frozenset[int] | None:
    """Tenants whose data the caller may read; `None` means all of them."""
    if user is None or not isinstance(user, User) or not user.is_active:
        return frozenset()
    if Permission.TENANT_VIEW in permissions_everywhere(user.role, tuple(user.grants)):
        return None
    return frozenset(user.memberships.values_list("tenant_id", flat=True))


def actor_of(user: User) -> Actor:
    """The caller as the audit trail names it."""
    return Actor(user_id=user.pk, label=user.username)


def tokens_of(user_id: int) -> list[TokenView]:
    """A user's tokens, newest first, at most `MAX_LISTED`."""
    rows = ApiToken.objects.filter(user_id=user_id).order_by("-id")[:MAX_LISTED]
    return [
        TokenView(
            id=row.pk,
            name=row.name,
            prefix=row.prefix,
            created_at=row.created_at,
            expires_at=row.expires_at,
            revoked_at=row.revoked_at,
            last_used_at=row.last_used_at,
        )
        for row in rows
    ]


def users() -> list[User]:
    """People in order of name, at most `MAX_LISTED`."""
    return list(User.objects.order_by("username")[:MAX_LISTED])

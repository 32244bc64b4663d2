"""Who may do what. Every page, endpoint and socket asks here, each time; nothing is cached.

A role or membership that was taken away is therefore gone with the next question.
"""

from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth.models import AnonymousUser
from django.db.models import Count, Q, QuerySet
from django.utils import timezone

from console.accounts.rules import Permission, permissions_everywhere, permissions_in_tenant
from console.audit.rules import Actor
from console.errors import Forbidden, InvalidInput, NoSuchTenant, NotFound
from console.models import ApiToken, Role, User

__all__ = [
    "Permission",
    "PersonView",
    "TokenView",
    "actor_of",
    "can",
    "has_console_role",
    "is_called",
    "may_reach_everybody",
    "people",
    "person",
    "person_named",
    "person_numbered",
    "require",
    "tenant_ids_with",
    "token_of",
    "tokens_of",
    "visible_tenant_ids",
]

MAX_LISTED = 200
MAX_PAGE = 201  # the largest page, and one more row to know that another follows

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


@dataclass(frozen=True, slots=True)
class PersonView:
    """A person without the password; `tenants` and `live_tokens` are counts."""

    id: int
    username: str
    email: str
    role: str
    role_label: str
    grants: tuple[str, ...]
    is_active: bool
    last_login_at: datetime | None
    created_at: datetime
    tenants: int
    live_tokens: int


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
        raise NoSuchTenant()
    raise Forbidden(
        f"This needs the permission {permission.value}.",
        hint="Ask an admin for the role or grant that includes it.",
    )


def visible_tenant_ids(user: Caller) -> frozenset[int] | None:
    """Tenants whose data the caller may read; `None` means all of them."""
    return tenant_ids_with(user, Permission.TENANT_VIEW)


def has_console_role(user: Caller) -> bool:
    """Whether the caller works for all tenants."""
    return isinstance(user, User) and user.role != Role.NONE


def is_called(user: Caller, text: str) -> bool:
    """Whether the text is the caller's user name or e-mail address, in any case of letters."""
    if not isinstance(user, User) or not user.is_active:
        return False
    named = text.strip().casefold()
    return bool(named) and named in (user.username.casefold(), user.email.casefold())


def tenant_ids_with(user: Caller, permission: Permission) -> frozenset[int] | None:
    """Tenants in which the caller holds the permission; `None` means in all of them."""
    if user is None or not isinstance(user, User) or not user.is_active:
        return frozenset()
    if permission in permissions_everywhere(user.role, tuple(user.grants)):
        return None
    rows = user.memberships.values_list("tenant_id", "role")
    return frozenset(
        tenant_id for tenant_id, role in rows if permission in permissions_in_tenant(role)
    )


def actor_of(user: User) -> Actor:
    """The caller as the audit trail names it."""
    return Actor(user_id=user.pk, label=user.username)


def tokens_of(user_id: int) -> list[TokenView]:
    """A user's tokens, newest first, at most `MAX_LISTED`."""
    rows = ApiToken.objects.filter(user_id=user_id).order_by("-id")[:MAX_LISTED]
    return [_token(row) for row in rows]


def token_of(user_id: int, token_id: int) -> TokenView:
    """One of a user's tokens. Raises `NotFound`."""
    row = ApiToken.objects.filter(user_id=user_id, pk=token_id).first()
    if row is None:
        raise NotFound("No such token.")
    return _token(row)


def people(
    *, from_username: str = "", after_username: str = "", limit: int = 50
) -> list[PersonView]:
    """People in order of user name, suspended ones too, at most `MAX_PAGE`: one query."""
    rows = _counted().filter(username__gte=from_username, username__gt=after_username)
    rows = rows.order_by("username")
    return [_person(row) for row in rows[: min(limit, MAX_PAGE)]]


def person(user_id: int) -> PersonView:
    """One person. Raises `NotFound`."""
    row = _counted().filter(pk=user_id).first()
    if row is None:
        raise NotFound("No such person.")
    return _person(row)


def may_reach_everybody(user: Caller) -> bool:
    """Whether the caller may add any person to a tenant, and read members' e-mail addresses.

    A tenant's own admins may not: they invite, and every address but their own is none of their
    business.
    """
    return can(user, Permission.TENANT_MANAGE_MEMBERS)


def person_numbered(user_id: int, *, field: str = "person") -> int:
    """The id, if it is an active person's; raises `InvalidInput` at `field`."""
    if not User.objects.filter(is_active=True, pk=user_id).exists():
        raise _no_person(field)
    return user_id


def person_named(text: str, *, field: str = "person") -> int:
    """Id of the one active person with this user name, else this e-mail address.

    For operators and admins: it tells who exists. Raises `InvalidInput` at `field` when there is
    none, or several share the address.
    """
    active = User.objects.filter(is_active=True)
    found = list(active.filter(username=text).values_list("pk", flat=True))
    if not found and "@" in text:
        found = list(active.filter(email__iexact=text).values_list("pk", flat=True)[:2])
    if not found:
        raise _no_person(field)
    if len(found) > 1:
        raise InvalidInput(
            "Several people have this e-mail address.", field=field, hint="Say the user name."
        )
    return found[0]


def _no_person(field: str) -> InvalidInput:
    return InvalidInput(
        "No active person has this user name or e-mail address.",
        field=field,
        hint="An admin creates people.",
    )


def _counted() -> QuerySet[User, User]:
    is_live = Q(api_tokens__revoked_at=None) & (
        Q(api_tokens__expires_at=None) | Q(api_tokens__expires_at__gt=timezone.now())
    )
    return User.objects.annotate(
        tenant_count=Count("memberships", distinct=True),
        token_count=Count("api_tokens", filter=is_live, distinct=True),
    )


def _person(row: User) -> PersonView:
    counts = vars(row)  # the two annotations are no fields of the model
    return PersonView(
        id=row.pk,
        username=row.username,
        email=row.email,
        role=row.role,
        role_label=row.get_role_display(),
        grants=tuple(row.grants),
        is_active=row.is_active,
        last_login_at=row.last_login,
        created_at=row.date_joined,
        tenants=counts["tenant_count"],
        live_tokens=counts["token_count"],
    )


def _token(row: ApiToken) -> TokenView:
    return TokenView(
        id=row.pk,
        name=row.name,
        prefix=row.prefix,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
    )

"""Invitations: a tenant's admin offers a role, the named person takes it by its own link.

Nobody is put into a tenant unasked by those who do not answer for people. Operators and admins do,
and add members directly (`services.add_member`).

Every write locks the tenant first, then its invitations, so that two acts cannot wait for each
other.
"""

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from console.accounts.selectors import Caller, has_console_role, is_called
from console.audit.rules import Actor
from console.audit.services import record
from console.errors import Conflict, InvalidInput, NoSuchTenant, NotFound
from console.validation import save_valid
from routing.contracts.digest import keyed_digest
from tenants.directory.rules import DEFAULT_INVITED_DAYS, MOST_INVITED_DAYS
from tenants.directory.services import add_member
from tenants.models import Invitation, Tenant

MOST_OPEN = 50  # of a tenant at a time
MOST_SECRET_CHARS = 64
_SECRET_BYTES = 32
_NONE = "There is no such invitation, or it is not yours."


@dataclass(frozen=True, slots=True)
class InvitationView:
    """An invitation without its secret. `tenant` is the slug."""

    id: int
    tenant: str
    tenant_name: str
    person: str
    role: str
    role_label: str
    invited_by: str
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class IssuedInvitation:
    """A new invitation and the secret of its link, which is not kept."""

    invitation: InvitationView
    secret: str


def open_invitations(tenant_id: int) -> list[InvitationView]:
    """Those that may still be accepted, newest first, at most `MOST_OPEN`: one query."""
    rows = _open(tenant_id).select_related("tenant", "invited_by").order_by("-id")
    return [_view(row) for row in rows[:MOST_OPEN]]


def invitation(tenant_id: int, invitation_id: int) -> InvitationView:
    """One open invitation of a tenant. Raises `NotFound`."""
    rows = _open(tenant_id).select_related("tenant", "invited_by")
    row = rows.filter(pk=invitation_id).first()
    if row is None:
        raise NotFound(_NONE)
    return _view(row)


def invitation_to(user: Caller, secret: str) -> InvitationView:
    """What a link offers the person who opened it.

    Raises `NotFound` for a secret that is none and for one that another person was sent, and
    `Conflict` (`invitation_over`) for one that was used, withdrawn, or is too old.
    """
    row = _by_secret(secret)
    _refuse_unless_open_to(user, row)
    return _view(row)


@transaction.atomic
def invite(
    *,
    tenant_id: int,
    person: str,
    role: str,
    days: int = DEFAULT_INVITED_DAYS,
    invited_by: int | None,
    actor: Actor,
) -> IssuedInvitation:
    """Offer a role to the person of that user name or e-mail address, for `days` days.

    Whether there is such a person is not said. An open invitation of the same person ends: its link
    stops working. Raises `InvalidInput` with the field, or `Conflict` (`too_many_invitations`).
    """
    if not 1 <= days <= MOST_INVITED_DAYS:
        raise InvalidInput(
            f"An invitation lasts 1 to {MOST_INVITED_DAYS} days.", field="days", hint="Such as 7."
        )
    _lock(tenant_id)
    now = timezone.now()
    of_tenant = Invitation.objects.filter(
        tenant_id=tenant_id, accepted_at=None, withdrawn_at=None
    ).select_for_update()
    of_tenant.filter(person__iexact=person).update(withdrawn_at=now)
    of_tenant.filter(expires_at__lte=now).update(withdrawn_at=now)
    if of_tenant.count() >= MOST_OPEN:
        raise Conflict(
            f"{MOST_OPEN} invitations are open.",
            code="too_many_invitations",
            hint="Withdraw those that nobody will use.",
        )
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    row = Invitation(
        tenant_id=tenant_id,
        person=person,
        role=role,
        digest=_digest(secret),
        invited_by_id=invited_by,
        expires_at=now + timedelta(days=days),
    )
    save_valid(row, taken="This person was invited at this moment.", field="person")
    _record("invite", row, actor, after={"person": person, "role": role, "days": days})
    return IssuedInvitation(_view(row), secret)


@transaction.atomic
def withdraw(*, tenant_id: int, invitation_id: int, actor: Actor) -> None:
    """End an open invitation: its link stops working. Raises `NotFound`."""
    _lock(tenant_id)
    row = _open(tenant_id).select_for_update().filter(pk=invitation_id).first()
    if row is None:
        raise NotFound(_NONE)
    row.withdrawn_at = timezone.now()
    row.save(update_fields=["withdrawn_at"])
    _record("withdraw", row, actor, before={"person": row.person, "role": row.role})


@transaction.atomic
def accept(*, user: Caller, user_id: int, secret: str, actor: Actor) -> InvitationView:
    """Make the invited person a member: once, and only that person.

    Raises what `invitation_to` raises, `Conflict` for a member (`taken`) and for a person with a
    console role (`console_role`), whom operators alone add.
    """
    _lock(_by_secret(secret).tenant_id)
    row = Invitation.objects.select_for_update().get(digest=_digest(secret))
    _refuse_unless_open_to(user, row)
    if has_console_role(user):
        raise Conflict(
            "You work for all tenants: an invitation gives you nothing.",
            code="console_role",
            hint="An operator can make you a member.",
        )
    add_member(tenant_id=row.tenant_id, user_id=user_id, role=row.role, actor=actor)
    row.accepted_at = timezone.now()
    row.save(update_fields=["accepted_at"])
    _record("accept", row, actor, after={"user_id": user_id, "role": row.role})
    return _view(row)


def _open(tenant_id: int) -> QuerySet[Invitation, Invitation]:
    return Invitation.objects.filter(
        tenant_id=tenant_id, accepted_at=None, withdrawn_at=None, expires_at__gt=timezone.now()
    )


def _lock(tenant_id: int) -> None:
    if not Tenant.objects.select_for_update().filter(pk=tenant_id).exists():
        raise NoSuchTenant()


def _by_secret(secret: str) -> Invitation:
    rows = Invitation.objects.select_related("tenant", "invited_by")
    row = rows.filter(digest=_digest(secret[: MOST_SECRET_CHARS + 1])).first()
    if row is None:
        raise NotFound(_NONE)
    return row


def _refuse_unless_open_to(user: Caller, row: Invitation) -> None:
    if not is_called(user, row.person):
        raise NotFound(_NONE)
    is_ended = row.accepted_at is not None or row.withdrawn_at is not None
    if is_ended or row.expires_at <= timezone.now():
        raise Conflict(
            "This invitation was used or withdrawn, or is too old.",
            code="invitation_over",
            hint=f"Ask an admin of {row.tenant.slug} for another one.",
        )


def _digest(secret: str) -> str:
    return keyed_digest(settings.KEY_PEPPER.encode(), b"invitation\n" + secret.encode())


def _record(
    act: str,
    row: Invitation,
    actor: Actor,
    *,
    before: dict[str, object] | None = None,
    after: dict[str, object] | None = None,
) -> None:
    record(
        actor=actor,
        act=f"invitation.{act}",
        object_type="invitation",
        object_id=str(row.pk),
        tenant_id=row.tenant_id,
        before=before,
        after=after,
    )


def _view(row: Invitation) -> InvitationView:
    return InvitationView(
        id=row.pk,
        tenant=row.tenant.slug,
        tenant_name=row.tenant.name,
        person=row.person,
        role=row.role,
        role_label=row.get_role_display(),
        invited_by=row.invited_by.get_username() if row.invited_by else "",
        created_at=row.created_at,
        expires_at=row.expires_at,
    )

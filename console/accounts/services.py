"""Create people, change what they may do, end their sessions, and issue their tokens."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.auth.password_validation import validate_password
from django.contrib.sessions.models import Session
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from console.audit.rules import Actor
from console.audit.services import record
from console.errors import Conflict, InvalidInput, NotFound
from console.models import ApiToken, Role, User
from console.validation import save_valid
from routing.contracts.digest import PREFIX_CHARS, compose_secret, keyed_digest

TOKEN_SCHEME = "hrt"  # noqa: S105 - the public start of every token, not a secret
_SECRET_BYTES = 32
_PREFIX_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
LONGEST_TOKEN_LIFE = timedelta(days=366)


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A new token. The secret exists only here."""

    id: int
    secret: str
    prefix: str


@transaction.atomic
def create_user(
    *,
    username: str,
    email: str,
    password: str,
    role: str,
    grants: Iterable[str] = (),
    actor: Actor,
) -> int:
    """Create a person; returns the id.

    Raises `InvalidInput` (weak password, unknown role or grant) or `Conflict` (name taken).
    """
    row = User(username=username, email=email, role=role, grants=sorted(set(grants)))
    _give_password(row, password)
    save_valid(row, taken="This user name is taken.", field="username")
    record(
        actor=actor,
        act="user.create",
        object_type="user",
        object_id=str(row.pk),
        after={"username": username, "role": role, "grants": row.grants},
    )
    return row.pk


@transaction.atomic
def change_role(
    *, user_id: int, role: str, grants: Iterable[str] = (), actor: Actor, reason: str = ""
) -> None:
    """Set a person's console role and grants. Raises `NotFound`, `InvalidInput`, or `Conflict`.

    The last active admin keeps the role: nobody could give it back.
    """
    row = _locked(user_id)
    if row.role == Role.ADMIN and role != Role.ADMIN:
        _refuse_if_last_admin(row)
    before = {"role": row.role, "grants": row.grants}
    row.role, row.grants = role, sorted(set(grants))
    save_valid(row, taken="This user name is taken.", field="username")
    record(
        actor=actor,
        act="user.change_role",
        object_type="user",
        object_id=str(user_id),
        reason=reason,
        before=before,
        after={"role": row.role, "grants": row.grants},
    )


@transaction.atomic
def suspend_user(*, user_id: int, actor: Actor, reason: str) -> None:
    """Refuse a person from now on: sessions end, tokens stop; a second time changes nothing.

    Raises `NotFound` or `Conflict`.
    """
    row = _locked(user_id)
    if not row.is_active:
        return
    _refuse_if_last_admin(row)
    row.is_active = False
    row.save(update_fields=["is_active"])
    _end_sessions(user_id)
    record(
        actor=actor,
        act="user.suspend",
        object_type="user",
        object_id=str(user_id),
        reason=reason,
    )


@transaction.atomic
def restore_user(*, user_id: int, actor: Actor, reason: str) -> None:
    """Let a suspended person in again; a second time changes nothing. Raises `NotFound`."""
    row = _locked(user_id)
    if row.is_active:
        return
    row.is_active = True
    row.save(update_fields=["is_active"])
    record(
        actor=actor,
        act="user.restore",
        object_type="user",
        object_id=str(user_id),
        reason=reason,
    )


@transaction.atomic
def end_sessions(*, user_id: int, actor: Actor, reason: str = "") -> int:
    """Sign a person out everywhere; returns how many sessions ended. Raises `NotFound`."""
    _locked(user_id)
    ended = _end_sessions(user_id)
    record(
        actor=actor,
        act="user.end_sessions",
        object_type="user",
        object_id=str(user_id),
        reason=reason,
        after={"ended": ended},
    )
    return ended


@transaction.atomic
def set_password(*, user_id: int, password: str, actor: Actor, reason: str) -> None:
    """Give a person another password and end every session. Raises `NotFound`, `InvalidInput`."""
    row = _locked(user_id)
    _give_password(row, password)
    row.save(update_fields=["password"])
    _end_sessions(user_id)
    record(
        actor=actor,
        act="user.set_password",
        object_type="user",
        object_id=str(user_id),
        reason=reason,
    )


@transaction.atomic
def change_password(*, user_id: int, current: str, password: str, actor: Actor) -> None:
    """Change one's own password; sessions that were opened with the earlier one end.

    Raises `NotFound`, or `InvalidInput` for a wrong `current` or a weak `password`.
    """
    row = _locked(user_id)
    if not row.check_password(current):
        raise InvalidInput("That is not your present password.", field="current")
    _give_password(row, password)
    row.save(update_fields=["password"])
    record(
        actor=actor,
        act="user.change_password",
        object_type="user",
        object_id=str(user_id),
    )


@transaction.atomic
def issue_token(
    *, user_id: int, name: str, actor: Actor, expires_at: datetime | None = None
) -> IssuedToken:
    """Issue a bearer token that acts as its user.

    Raises `NotFound`, `Conflict` (name used before) or `InvalidInput` (an end in the past, or more
    than `LONGEST_TOKEN_LIFE` away).
    """
    _locked(user_id)
    now = timezone.now()
    if expires_at is not None and not now < expires_at <= now + LONGEST_TOKEN_LIFE:
        raise InvalidInput(
            "A token must end in the future.",
            field="expires_at",
            hint=f"Choose a moment within {LONGEST_TOKEN_LIFE.days} days, or none.",
        )
    prefix = "".join(secrets.choice(_PREFIX_ALPHABET) for _ in range(PREFIX_CHARS))
    secret = compose_secret(TOKEN_SCHEME, prefix, secrets.token_urlsafe(_SECRET_BYTES))
    row = ApiToken(
        user_id=user_id,
        name=name,
        prefix=prefix,
        digest=keyed_digest(settings.KEY_PEPPER.encode(), secret.encode()),
        expires_at=expires_at,
    )
    save_valid(row, taken="This person has a token of that name.", field="name")
    record(
        actor=actor,
        act="token.issue",
        object_type="token",
        object_id=str(row.pk),
        after={"user_id": user_id, "name": name, "prefix": prefix, "expires_at": expires_at},
    )
    return IssuedToken(id=row.pk, secret=secret, prefix=prefix)


@transaction.atomic
def revoke_token(*, user_id: int, token_id: int, actor: Actor, reason: str = "") -> None:
    """End a token at once; a second time changes nothing. Raises `NotFound`."""
    row = ApiToken.objects.select_for_update().filter(user_id=user_id, pk=token_id).first()
    if row is None:
        raise NotFound("No such token.")
    if row.revoked_at is not None:
        return
    row.revoked_at = timezone.now()
    row.save(update_fields=["revoked_at"])
    record(
        actor=actor,
        act="token.revoke",
        object_type="token",
        object_id=str(token_id),
        reason=reason,
        before={"user_id": user_id, "prefix": row.prefix},
    )


def _give_password(row: User, password: str) -> None:
    try:
        validate_password(password, row)
    except ValidationError as error:
        raise InvalidInput(error.messages[0], field="password") from error
    row.set_password(password)


def _locked(user_id: int) -> User:
    # The admins first, in order of key: two who each held one would wait for the other for ever.
    admins = User.objects.select_for_update().filter(role=Role.ADMIN, is_active=True)
    list(admins.order_by("pk").values_list("pk", flat=True))
    row = User.objects.select_for_update().filter(pk=user_id).first()
    if row is None:
        raise NotFound("No such person.")
    return row


def _refuse_if_last_admin(row: User) -> None:
    # All active admins are locked, in order of key: two removals cannot both see the other one.
    admins = User.objects.select_for_update().filter(role=Role.ADMIN, is_active=True)
    others = [admin for admin in admins.order_by("pk") if admin.pk != row.pk]
    if row.role == Role.ADMIN and not others:
        raise Conflict(
            "This is the last admin.", code="last_admin", hint="Make another person admin first."
        )


def _end_sessions(user_id: int) -> int:
    ended = [
        session.pk
        for session in Session.objects.filter(expire_date__gt=timezone.now()).iterator()
        if str(session.get_decoded().get(SESSION_KEY)) == str(user_id)
    ]
    Session.objects.filter(pk__in=ended).delete()
    return len(ended)

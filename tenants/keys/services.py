"""Issue, rotate and revoke API keys.

A secret is returned once and never stored. Given an idempotency key, a call that is repeated (its
answer was lost) returns the same secret again and makes no second key.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from console.audit.rules import Actor
from console.audit.services import record
from console.errors import Conflict, InvalidInput, NoSuchTenant, NotFound
from console.validation import save_valid
from routing.contracts.digest import keyed_digest
from routing.contracts.snapshot import ALL_MODELS
from tenants.directory.services import DEFAULT_PROJECT, check_models, push
from tenants.keys.rules import (
    DEFAULT_GRACE_S,
    LONGEST_GRACE_S,
    LONGEST_IDEMPOTENCY_KEY,
    SEED_BYTES,
    SHORTEST_IDEMPOTENCY_KEY,
    is_grace,
    secret_from_seed,
    seed_of_call,
)
from tenants.models import ApiKey, Project, Tenant

MAX_LIVE_KEYS = 1000  # of one tenant: every gateway holds all of them in memory
_COLLISION = "Try again: this secret exists."


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A key with its new secret, which exists only here."""

    id: int
    secret: str
    prefix: str


@transaction.atomic
def issue_key(
    *,
    tenant_id: int,
    name: str,
    project_id: int | None = None,
    allowed_models: Sequence[str] = (ALL_MODELS,),
    work_class: str = "",
    expires_at: datetime | None = None,
    actor: Actor,
    idempotency_key: str = "",
) -> IssuedKey:
    """Issue a key in a project (the default one unless said).

    An empty `allowed_models` allows none. Raises `NotFound`, `InvalidInput` or `Conflict` (too
    many live keys).
    """
    check_models(allowed_models)
    if expires_at is not None and expires_at <= timezone.now():
        raise InvalidInput("A key must end in the future.", field="expires_at")
    if not Tenant.objects.select_for_update().filter(pk=tenant_id).exists():
        raise NoSuchTenant()
    prefix, secret = _new_secret("issue", tenant_id, idempotency_key)
    digest = _digest(secret)
    present = ApiKey.objects.filter(tenant_id=tenant_id, digest=digest).first()
    if present is not None:
        return IssuedKey(id=present.pk, secret=secret, prefix=prefix)
    if ApiKey.objects.filter(tenant_id=tenant_id, revoked_at=None).count() >= MAX_LIVE_KEYS:
        raise Conflict(
            f"The tenant has {MAX_LIVE_KEYS} live keys.",
            code="too_many_keys",
            hint="Revoke keys that are no longer used.",
        )
    row = ApiKey(
        tenant_id=tenant_id,
        project_id=_project_id(tenant_id, project_id),
        name=name,
        prefix=prefix,
        digest=digest,
        allowed_models=list(allowed_models),
        work_class=work_class,
        created_by_id=actor.user_id,
        expires_at=expires_at,
    )
    save_valid(row, taken=_COLLISION, field="secret")
    record(
        actor=actor,
        act="key.issue",
        object_type="key",
        object_id=str(row.pk),
        tenant_id=tenant_id,
        after=_facts(row),
    )
    push()
    return IssuedKey(id=row.pk, secret=secret, prefix=prefix)


@transaction.atomic
def rotate_key(
    *,
    tenant_id: int,
    key_id: int,
    grace_s: int = DEFAULT_GRACE_S,
    actor: Actor,
    idempotency_key: str = "",
) -> IssuedKey:
    """Give a key a new secret; the earlier one works for `grace_s` more seconds.

    The row stays, and with it limits, usage and identity. Raises `NotFound`, `InvalidInput`
    (grace), or `Conflict` when the key is revoked or an earlier rotation's grace still runs: only
    a rotation without grace, which ends both older secrets at once, is possible then.
    """
    if not is_grace(grace_s):
        raise InvalidInput(
            f"A grace time is 0 to {LONGEST_GRACE_S} seconds.",
            field="grace_s",
            hint="Common choices: 0, 3600, 86400, 604800.",
        )
    row = _locked(tenant_id, key_id)
    prefix, secret = _new_secret("rotate", key_id, idempotency_key)
    digest = _digest(secret)
    if digest in (row.digest, row.previous_digest):
        return IssuedKey(id=row.pk, secret=secret, prefix=prefix)
    now = timezone.now()
    _refuse_rotation(row, grace_s, now)
    before = _facts(row)
    row.previous_digest = row.digest if grace_s else None
    row.previous_until = now + timedelta(seconds=grace_s) if grace_s else None
    row.digest, row.prefix = digest, prefix
    save_valid(row, taken=_COLLISION, field="secret")
    record(
        actor=actor,
        act="key.rotate",
        object_type="key",
        object_id=str(key_id),
        tenant_id=tenant_id,
        before=before,
        after={**_facts(row), "grace_s": grace_s},
    )
    push()
    return IssuedKey(id=row.pk, secret=secret, prefix=prefix)


@transaction.atomic
def revoke_key(*, tenant_id: int, key_id: int, actor: Actor, reason: str = "") -> None:
    """End a key and both its secrets; a second time changes nothing. Raises `NotFound`."""
    row = _locked(tenant_id, key_id)
    if row.revoked_at is not None:
        return
    row.revoked_at = timezone.now()
    row.previous_digest = None
    row.previous_until = None
    row.save(update_fields=["revoked_at", "previous_digest", "previous_until"])
    record(
        actor=actor,
        act="key.revoke",
        object_type="key",
        object_id=str(key_id),
        tenant_id=tenant_id,
        reason=reason,
        before={"prefix": row.prefix},
    )
    push()


def _refuse_rotation(row: ApiKey, grace_s: int, now: datetime) -> None:
    if row.revoked_at is not None or (row.expires_at is not None and row.expires_at <= now):
        raise Conflict("This key has ended.", code="key_ended", hint="Issue a new one.")
    if grace_s and row.previous_until is not None and row.previous_until > now:
        raise Conflict(
            "The secret before this one still works: a key has at most two.",
            code="rotation_in_progress",
            hint="Wait for its end, or rotate with grace 0, which ends both at once.",
        )


def _new_secret(act: str, subject_id: int, idempotency_key: str) -> tuple[str, str]:
    if not idempotency_key:
        return secret_from_seed(secrets.token_bytes(SEED_BYTES))
    if not SHORTEST_IDEMPOTENCY_KEY <= len(idempotency_key) <= LONGEST_IDEMPOTENCY_KEY:
        raise InvalidInput(
            f"An idempotency key has {SHORTEST_IDEMPOTENCY_KEY} to {LONGEST_IDEMPOTENCY_KEY}"
            " characters.",
            field="idempotency_key",
        )
    pepper = settings.KEY_PEPPER.encode()
    return secret_from_seed(seed_of_call(pepper, act, subject_id, idempotency_key))


def _digest(secret: str) -> str:
    return keyed_digest(settings.KEY_PEPPER.encode(), secret.encode())


def _project_id(tenant_id: int, project_id: int | None) -> int:
    rows = Project.objects.filter(tenant_id=tenant_id)
    rows = rows.filter(slug=DEFAULT_PROJECT) if project_id is None else rows.filter(pk=project_id)
    found = rows.values_list("pk", flat=True).first()
    if found is None:
        raise InvalidInput("The tenant has no such project.", field="project_id")
    return found


def _locked(tenant_id: int, key_id: int) -> ApiKey:
    row = ApiKey.objects.select_for_update().filter(tenant_id=tenant_id, pk=key_id).first()
    if row is None:
        raise NotFound("No such key.")
    return row


def _facts(row: ApiKey) -> dict[str, object]:
    return {
        "name": row.name,
        "prefix": row.prefix,
        "project_id": row.project_id,
        "allowed_models": list(row.allowed_models),
        "work_class": row.work_class,
        "expires_at": row.expires_at,
        "previous_until": row.previous_until,
    }

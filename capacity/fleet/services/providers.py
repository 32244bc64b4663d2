"""What a pool can do, and the key that its provider wants."""

import os
from collections.abc import Collection

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from capacity.fleet.services.inventory import PUSH_SNAPSHOT
from capacity.models import Pool, ProviderKey
from console.audit.rules import Actor
from console.audit.services import record
from console.errors import InvalidInput, NotFound
from console.jobs.services import enqueue
from routing.contracts.capabilities import OFFERED
from routing.contracts.sealing import NONCE_BYTES, provider_purpose, seal

KEY_CHARS = range(8, 401)
HINT_CHARS = 4


@transaction.atomic
def set_provider_key(*, pool: str, api_key: str, actor: Actor) -> None:
    """Keep the API key that gateways call a hosted pool with; it replaces the one before.

    Raises `NotFound`, or `InvalidInput` for a pool that is not hosted or text that is no key.
    """
    row = _locked(pool)
    if "api" not in row.spec:
        raise InvalidInput(
            "This pool's engines are called without a key.",
            field="api_key",
            hint='Only pools of the static driver with "api" in their settings have a provider.',
        )
    if len(api_key) not in KEY_CHARS or not api_key.isascii() or not api_key.isprintable():
        raise InvalidInput("A key is 8 to 400 visible ASCII characters.", field="api_key")
    if " " in api_key:
        raise InvalidInput("A key has no spaces.", field="api_key")
    secret = settings.KEY_PEPPER.encode()
    sealed = seal(secret, provider_purpose(pool), api_key, os.urandom(NONCE_BYTES))
    hint = api_key[-HINT_CHARS:]
    before = ProviderKey.objects.filter(pool=row).values_list("hint", flat=True).first()
    ProviderKey.objects.update_or_create(
        pool=row, defaults={"sealed": sealed, "hint": hint, "set_at": timezone.now()}
    )
    _changed(actor, "provider_key.set", pool, {"ends_with": before}, {"ends_with": hint})


@transaction.atomic
def remove_provider_key(*, pool: str, actor: Actor) -> None:
    """Forget a pool's key: its provider refuses what comes without. None is no error."""
    row = _locked(pool)
    found = ProviderKey.objects.filter(pool=row).first()
    if found is None:
        return
    hint = found.hint
    found.delete()
    _changed(actor, "provider_key.remove", pool, {"ends_with": hint}, {"ends_with": None})


@transaction.atomic
def set_capabilities(*, pool: str, capabilities: Collection[str], actor: Actor) -> None:
    """State what a pool's engines can do; none states what its API usually can.

    Raises `NotFound`, or `InvalidInput` for a name that is none.
    """
    row = _locked(pool)
    known = [one.value for one in OFFERED]
    if strange := sorted(set(capabilities) - set(known)):
        raise InvalidInput(
            f"No such capability: {strange[0]!r}.",
            field="capabilities",
            hint=f"Of {', '.join(known)}.",
        )
    wanted = [one for one in known if one in capabilities]
    if wanted == row.capabilities:
        return
    before, row.capabilities = row.capabilities, wanted
    row.save(update_fields=["capabilities"])
    _changed(actor, "pool.capabilities", pool, {"stated": before}, {"stated": wanted})


def _locked(pool: str) -> Pool:
    row = Pool.objects.select_for_update().filter(name=pool).first()
    if row is None:
        raise NotFound("No such pool.")
    return row


def _changed(
    actor: Actor, act: str, pool: str, before: dict[str, object], after: dict[str, object]
) -> None:
    record(actor=actor, act=act, object_type="pool", object_id=pool, before=before, after=after)
    enqueue(PUSH_SNAPSHOT, dedupe_key=PUSH_SNAPSHOT)

"""Add, change and remove hooks. Gateways follow with the next snapshot, within a second."""

import os

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from capacity.fleet.services.inventory import PUSH_SNAPSHOT
from console.audit.rules import Actor
from console.audit.services import record
from console.errors import Conflict, InvalidInput, NotFound
from console.jobs.services import enqueue
from console.validation import save_valid
from routing.contracts.hooks import ENTRY_POINTS, MAX_HOOKS, HookKind
from routing.contracts.reach import is_public
from routing.contracts.sealing import NONCE_BYTES, hook_purpose, seal
from routing.hooks.rules import (
    ENTRY_POINT,
    HINT_CHARS,
    NAME,
    Fault,
    address_of,
    secret_fault,
)
from routing.hooks.selectors import HookView, drafts_naming, hook, uses
from routing.models import Hook


@transaction.atomic
def add_hook(
    *,
    name: str,
    kind: str,
    url: str = "",
    secret: str = "",
    entry_point: str = "",
    purpose: str = "",
    actor: Actor,
) -> HookView:
    """Make a hook known; it is asked once a policy names it.

    Raises `InvalidInput`, or `Conflict` for a name that is taken or more than `MAX_HOOKS`.
    """
    if NAME.fullmatch(name) is None:
        raise InvalidInput(
            "A name is 1 to 40 small letters, digits and -.", field="name", hint="Such as pii."
        )
    if kind not in set(HookKind):
        offered = ", ".join(HookKind)
        raise InvalidInput("No such kind.", field="kind", hint=f"One of {offered}.")
    if Hook.objects.count() >= MAX_HOOKS:
        raise Conflict(
            f"There are {MAX_HOOKS} hooks already.", code="too_many_hooks", hint="Remove one."
        )
    row = Hook(name=name, kind=kind, purpose=purpose.strip(), created_at=timezone.now())
    _locate(row, url.strip(), entry_point.strip())
    _seal(row, secret, is_needed=kind == HookKind.WEBHOOK)
    save_valid(row, taken="A hook has this name.", field="name")
    _changed(actor, "hook.add", name, {}, _told(row))
    return hook(name)


@transaction.atomic
def change_hook(
    *,
    name: str,
    url: str | None = None,
    secret: str | None = None,
    entry_point: str | None = None,
    purpose: str | None = None,
    actor: Actor,
) -> HookView:
    """Change what is given. An empty secret keeps the present one; its kind stays.

    Raises `NotFound` or `InvalidInput`.
    """
    row = _locked(name)
    before = _told(row)
    _locate(
        row,
        row.url if url is None else url.strip(),
        row.entry_point if entry_point is None else entry_point.strip(),
    )
    if secret:
        _seal(row, secret, is_needed=row.kind == HookKind.WEBHOOK)
    if purpose is not None:
        row.purpose = purpose.strip()
    if secret or _told(row) != before:
        save_valid(row, taken="A hook has this name.", field="name")
        _changed(actor, "hook.change", name, before, _told(row))
    return hook(name)


@transaction.atomic
def remove_hook(*, name: str, actor: Actor) -> None:
    """Forget a hook and its secret. Raises `NotFound`, or `Conflict` while a policy names it."""
    row = _locked(name)
    naming = sorted({use.policy for use in uses().get(name, ())})
    naming += [f"the draft of {policy}" for policy in drafts_naming(name)]
    if naming:
        raise Conflict(
            f"{', '.join(naming)} names {name}.",
            code="hook_in_use",
            hint="Publish a policy without it first.",
        )
    before = _told(row)
    row.delete()
    _changed(actor, "hook.remove", name, before, {})


def _locate(row: Hook, url: str, entry_point: str) -> None:
    if row.kind == HookKind.PYTHON:
        if url:
            raise InvalidInput("A Python hook has no address.", field="url", hint="Leave it empty.")
        if ENTRY_POINT.fullmatch(entry_point) is None:
            raise InvalidInput(
                "Name the entry point.",
                field="entry_point",
                hint=f"Its name in the group {ENTRY_POINTS} of an installed package.",
            )
        row.entry_point = entry_point
        return
    if entry_point:
        raise InvalidInput(
            "A webhook has no entry point.", field="entry_point", hint="Leave it empty."
        )
    address = address_of(url)
    if isinstance(address, Fault):
        raise InvalidInput(f"This {address.reason}", field=address.field, hint=address.fix)
    is_inside = address.host in settings.PRIVATE_HOOKS
    if not is_inside and not (address.has_tls and is_public(address.host)):
        raise InvalidInput(
            f"{address.host} is an address inside."
            if address.has_tls
            else "Without TLS, anybody on the way reads prompts.",
            field="url",
            hint="Use https and a public address. Who runs Headrace may allow a host inside, and"
            " http to it, in HEADRACE_PRIVATE_HOOKS.",
        )
    row.url = url


def _seal(row: Hook, secret: str, *, is_needed: bool) -> None:
    if not is_needed:
        if secret:
            raise InvalidInput(
                "A Python hook has no secret.", field="secret", hint="Leave it empty."
            )
        return
    fault = secret_fault(secret)
    if fault is not None:
        raise InvalidInput(
            fault.reason,
            field=fault.field,
            hint="It signs what gateways send; openssl rand -hex 32",
        )
    pepper = settings.KEY_PEPPER.encode()
    row.sealed_secret = seal(pepper, hook_purpose(row.name), secret, os.urandom(NONCE_BYTES))
    row.secret_hint = secret[-HINT_CHARS:]
    row.secret_set_at = timezone.now()


def _locked(name: str) -> Hook:
    row = Hook.objects.select_for_update().filter(name=name).first()
    if row is None:
        raise NotFound("No such hook.")
    return row


def _told(row: Hook) -> dict[str, object]:
    return {
        "kind": row.kind,
        "url": row.url,
        "entry_point": row.entry_point,
        "secret_ends_with": row.secret_hint,
        "purpose": row.purpose,
    }


def _changed(
    actor: Actor, act: str, name: str, before: dict[str, object], after: dict[str, object]
) -> None:
    record(actor=actor, act=act, object_type="hook", object_id=name, before=before, after=after)
    enqueue(PUSH_SNAPSHOT, dedupe_key=PUSH_SNAPSHOT)

"""Canonical bytes of an audit event and the chain of hashes over them."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime

GENESIS = ""  # the first event has no predecessor


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts: a person (or the token's owner), or a process with no user."""

    user_id: int | None
    label: str


SYSTEM = Actor(user_id=None, label="system")


@dataclass(frozen=True, slots=True)
class Event:
    """One act as it is hashed. `at` is aware; before and after are `plain` values."""

    at: datetime
    actor_id: int | None
    actor_label: str
    act: str
    object_type: str
    object_id: str
    tenant_id: int | None
    reason: str
    before: object
    after: object
    request_id: str


def plain(value: object) -> object:
    """A value that JSON columns give back unchanged.

    Floats and other numbers become text: jsonb may respell them, and the hash must survive that.
    Characters that PostgreSQL refuses are replaced.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, Mapping):
        return {clean_text(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [plain(item) for item in value]
    return clean_text(str(value))


def clean_text(text: str) -> str:
    """Text without NUL and lone surrogates, which no PostgreSQL column takes."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")


def canonical_bytes(event: Event) -> bytes:
    """The event as JSON with sorted keys, no spaces, and its instant in UTC microseconds."""
    return json.dumps(
        {
            "act": event.act,
            "actor": event.actor_label,
            "actor_id": event.actor_id,
            "after": event.after,
            "at": event.at.astimezone(UTC).isoformat(timespec="microseconds"),
            "before": event.before,
            "object_id": event.object_id,
            "object_type": event.object_type,
            "reason": event.reason,
            "request_id": event.request_id,
            "tenant_id": event.tenant_id,
        },
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
    ).encode()


def chain_hash(prev_hash: str, event: Event) -> str:
    """Hex SHA-256 over the predecessor's hash and the event's canonical bytes."""
    return hashlib.sha256(prev_hash.encode() + b"\n" + canonical_bytes(event)).hexdigest()


def is_link_intact(expected_prev: str, prev_hash: str, own_hash: str, event: Event) -> bool:
    """Whether a stored event follows its predecessor and its content is the one that was hashed."""
    return prev_hash == expected_prev and own_hash == chain_hash(prev_hash, event)

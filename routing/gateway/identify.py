"""Who calls: the digest of the presented key, looked up in the snapshot."""

from typing import NamedTuple

from routing.contracts.digest import keyed_digest
from routing.contracts.snapshot import KeyEntry, Snapshot, TenantEntry
from routing.decision.types import Reason, Refusal

MAX_REMEMBERED = 4_096  # secrets whose callers are known without a digest; about 1 MB
MAX_SECRET_BYTES = 512  # ours have 65; longer ones are not worth a digest
_BEARER = b"bearer "


class Caller(NamedTuple):
    """A tenant and the key it used."""

    tenant: TenantEntry
    key: KeyEntry


def secret_of(headers: dict[bytes, bytes]) -> bytes:
    """The presented secret: `Authorization: Bearer`, else `x-api-key`; empty when there is none."""
    authorization = headers.get(b"authorization", b"")
    if authorization[: len(_BEARER)].lower() == _BEARER:
        return authorization[len(_BEARER) :].strip()
    return headers.get(b"x-api-key", b"").strip()


def identify(
    headers: dict[bytes, bytes], snapshot: Snapshot, pepper: bytes, now_ms: int
) -> Caller | Refusal:
    """The caller, or a refusal (401) that does not say what is wrong with a wrong key."""
    return _caller_of(secret_of(headers), snapshot, pepper, now_ms)


class Callers:
    """`identify` with a memory of the secrets that were right, for as long as a snapshot lasts."""

    __slots__ = ("_known", "_pepper", "_snapshot")

    def __init__(self, pepper: bytes) -> None:
        self._pepper = pepper
        self._snapshot: Snapshot | None = None
        self._known: dict[bytes, Caller] = {}

    def identify(
        self, headers: dict[bytes, bytes], snapshot: Snapshot, now_ms: int
    ) -> Caller | Refusal:
        """As `identify`; a known secret costs a look-up instead of a digest."""
        if snapshot is not self._snapshot:
            self._snapshot = snapshot
            self._known.clear()
        secret = secret_of(headers)
        caller = self._known.get(secret)
        if caller is not None:
            expires_at_ms = caller.key.expires_at_ms
            if expires_at_ms is None or expires_at_ms > now_ms:
                return caller
        found = _caller_of(secret, snapshot, self._pepper, now_ms)
        if isinstance(found, Caller):
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            self._known[secret] = found
        return found


def _caller_of(secret: bytes, snapshot: Snapshot, pepper: bytes, now_ms: int) -> Caller | Refusal:
    if not secret:
        return Refusal(
            Reason.UNAUTHORIZED, "No API key was given: send Authorization: Bearer <key>."
        )
    key = None
    if len(secret) <= MAX_SECRET_BYTES:
        key = snapshot.keys.get(keyed_digest(pepper, secret))
    if key is None or (key.expires_at_ms is not None and key.expires_at_ms <= now_ms):
        return Refusal(Reason.UNAUTHORIZED, "The API key is not valid.")
    tenant = snapshot.tenants.get(key.tenant_id)
    if tenant is None or not tenant.is_active:
        return Refusal(Reason.UNAUTHORIZED, "The account of this API key is not active.")
    return Caller(tenant, key)

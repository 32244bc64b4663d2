"""Who calls: the digest of the presented key, looked up in the snapshot."""

from typing import NamedTuple

from routing.contracts.digest import keyed_digest
from routing.contracts.snapshot import KeyEntry, Snapshot, TenantEntry
from routing.decision.types import Reason, Refusal

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
    secret = secret_of(headers)
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

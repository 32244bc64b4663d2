"""Secrets at rest: AES-256-GCM under a key derived from the deployment's own secret."""

import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE_BYTES = 12


class SealError(Exception):
    """The bytes are damaged, or were sealed with another secret or for another purpose."""


def seal(secret: bytes, purpose: str, text: str, nonce: bytes) -> bytes:
    """Sealed bytes that only the same secret and purpose open. `nonce` must never come twice."""
    return nonce + _cipher(secret).encrypt(nonce, text.encode(), purpose.encode())


def open_sealed(secret: bytes, purpose: str, sealed: bytes) -> str:
    """Inverse of `seal`. Raises `SealError`."""
    nonce, rest = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
    try:
        return _cipher(secret).decrypt(nonce, rest, purpose.encode()).decode()
    except (InvalidTag, ValueError) as error:
        raise SealError("the secret cannot be opened") from error


def _cipher(secret: bytes) -> AESGCM:
    return AESGCM(hmac.digest(secret, b"headrace sealed secret v1", "sha256"))


def provider_purpose(pool: str) -> str:
    """What the API key of a pool's provider is sealed for: it opens for no other pool."""
    return f"provider key of pool {pool}"


def hook_purpose(name: str) -> str:
    """What the secret of a webhook is sealed for: it opens for no other hook."""
    return f"secret of hook {name}"

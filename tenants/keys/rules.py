"""The form of API keys, and how long an earlier secret outlives a rotation."""

import base64
import hashlib
import hmac

from routing.contracts.digest import PREFIX_CHARS, compose_secret, is_well_formed

SCHEME = "hr"
SEED_BYTES = 64
DEFAULT_GRACE_S = 24 * 3600
LONGEST_GRACE_S = 7 * 24 * 3600
OFFERED_GRACES_S = (0, 3600, 24 * 3600, LONGEST_GRACE_S)  # what forms offer; REST takes any between
SHORTEST_IDEMPOTENCY_KEY = 8
LONGEST_IDEMPOTENCY_KEY = 200
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
_RANDOM_BYTES = 32


def is_grace(seconds: int) -> bool:
    """Whether an earlier secret may live on for this long."""
    return 0 <= seconds <= LONGEST_GRACE_S


def secret_from_seed(seed: bytes) -> tuple[str, str]:
    """Prefix and secret from `SEED_BYTES` of chance.

    Raises `ValueError` for a seed of another length.
    """
    if len(seed) != SEED_BYTES:
        raise ValueError(f"a key needs {SEED_BYTES} bytes of chance")
    head, body = seed[:_RANDOM_BYTES], seed[_RANDOM_BYTES:]
    # Each prefix character from four bytes: the bias of the remainder is below one in 10^8.
    prefix = "".join(
        _ALPHABET[int.from_bytes(head[4 * at : 4 * at + 4]) % len(_ALPHABET)]
        for at in range(PREFIX_CHARS)
    )
    random_text = base64.urlsafe_b64encode(body).decode().rstrip("=")
    return prefix, compose_secret(SCHEME, prefix, random_text)


def seed_of_call(pepper: bytes, act: str, subject_id: int, idempotency_key: str) -> bytes:
    """The seed of a repeatable call: the same call gives the same secret, so nothing is stored.

    Only who knows both the pepper and the caller's own idempotency key can compute it.
    """
    text = f"{act}\n{subject_id}\n{idempotency_key}".encode()
    return hmac.new(pepper, text, hashlib.sha512).digest()


def looks_like_key(secret: str) -> bool:
    """Whether a text has the form and checksum of an API key."""
    return is_well_formed(SCHEME, secret)

"""Secrets that callers present: their shape, and the only form in which they are stored.

A secret is `<scheme>_<8 prefix>_<43 random><6 checksum>`. The prefix is public and names the secret
in lists and logs; the checksum lets a typing error or a leaked look-alike be told from a real one
without a look-up. Random parts come from the caller: nothing here draws chance.
"""

import hmac
import zlib

PREFIX_CHARS = 8
RANDOM_CHARS = 43  # 32 random bytes in URL-safe base 64
CHECKSUM_CHARS = 6
_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def keyed_digest(pepper: bytes, secret: bytes) -> str:
    """Hex HMAC-SHA-256 of a secret: what tables and snapshots hold in its place."""
    return hmac.digest(pepper, secret, "sha256").hex()  # one C call: it runs for every request


def compose_secret(scheme: str, prefix: str, random_text: str) -> str:
    """A secret from its scheme (such as `hr`), public prefix and random text.

    Raises `ValueError` when a part has the wrong length.
    """
    if len(prefix) != PREFIX_CHARS or len(random_text) != RANDOM_CHARS:
        raise ValueError("a secret needs 8 prefix and 43 random characters")
    body = f"{scheme}_{prefix}_{random_text}"
    return body + _checksum(body)


def is_well_formed(scheme: str, secret: str) -> bool:
    """Whether `secret` has the scheme's shape and a checksum that fits."""
    head = f"{scheme}_"
    length = len(head) + PREFIX_CHARS + 1 + RANDOM_CHARS + CHECKSUM_CHARS
    if len(secret) != length or not secret.startswith(head) or not secret.isascii():
        return False
    return secret[-CHECKSUM_CHARS:] == _checksum(secret[:-CHECKSUM_CHARS])


def _checksum(body: str) -> str:
    value = zlib.crc32(body.encode())
    digits = []
    for _ in range(CHECKSUM_CHARS):
        value, digit = divmod(value, len(_BASE62))
        digits.append(_BASE62[digit])
    return "".join(reversed(digits))

"""Chance that can be replayed: every tie, jitter and sample is a hash of ids."""

import zlib

_SPAN = 1 << 32


def draw(request_id: str, attempt: int, purpose: str) -> float:
    """A number in [0, 1) fixed by its arguments; the same on every gateway and in every replay."""
    return zlib.crc32(f"{request_id}:{attempt}:{purpose}".encode()) / _SPAN

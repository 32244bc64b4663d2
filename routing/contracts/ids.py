"""Request ids: UUIDv7, so that the id alone says which day's ledger partition holds the row."""

from datetime import UTC, date, datetime

_HEX = 16
_RANDOM = (1 << 74) - 1
_MILLIS = (1 << 48) - 1
_LOW = (1 << 62) - 1


def uuid7(now_ms: int, random_bits: int) -> str:
    """UUIDv7 (RFC 9562) from Unix milliseconds and at least 74 random bits."""
    bits = random_bits & _RANDOM
    high = (now_ms & _MILLIS) << 16 | 0x7000 | bits >> 62
    text = f"{high << 64 | 0x8000000000000000 | bits & _LOW:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def millis_of(request_id: str) -> int:
    """Unix milliseconds inside a UUIDv7."""
    return int(request_id[:8] + request_id[9:13], _HEX)


def day_of(request_id: str) -> date:
    """UTC day of a UUIDv7: the partition of its ledger row."""
    return datetime.fromtimestamp(millis_of(request_id) / 1000, UTC).date()

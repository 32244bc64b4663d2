"""Money and instants as answers and refusals spell them."""

from datetime import UTC, datetime
from typing import Final

_NANO: Final = 1_000_000_000


def exact_usd(nanousd: int) -> str:
    """Decimal dollars, exact to the nano-dollar: `0.002000000`."""
    whole, rest = divmod(nanousd, _NANO)
    return f"{whole}.{rest:09d}"


def short_usd(nanousd: int) -> str:
    """As exact, for people: a sign before the dollar's, and no idle zeros after the cents."""
    whole, rest = divmod(abs(nanousd), _NANO)
    cents = f"{rest:09d}".rstrip("0").ljust(2, "0")
    return f"{'-' if nanousd < 0 else ''}${whole}.{cents}"


def instant(at_ms: int) -> str:
    """RFC 3339 in UTC, to the millisecond."""
    text = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")

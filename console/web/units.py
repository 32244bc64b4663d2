"""One formatter for every figure on screen: seconds, tokens, bytes, nano-dollars, ages.

Unknown (None) is an em dash, never 0. Numbers carry their unit and a group separator that copies as
a comma. Floats never touch money.
"""

from datetime import datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

UNKNOWN = "—"
NANO = 1_000_000_000
MOST_DIGITS = 18  # of a whole number: fewer than the database holds
MOST_NANOUSD = 2**63 - 1  # what the database holds
MINUTE_S = 60
HOUR_S = 3600
DAY_S = 86400
CENT_FROM_NANOUSD = NANO  # from one dollar on, short money shows cents
SHORT_SIGNIFICANT = 3  # digits of an amount below one dollar
MIN_DECIMALS = 2
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def count(value: float | None) -> str:
    """Whole number with group separators: `41,200`."""
    return UNKNOWN if value is None else f"{round(value):,}"


def tokens(value: int | None) -> str:
    """Token count with its unit: `41,200 tok`."""
    return UNKNOWN if value is None else f"{value:,} tok"


def decimal(value: float | None, places: int = 1) -> str:
    """Rounded number with group separators and fixed places: `1,204.5`."""
    return UNKNOWN if value is None else f"{value:,.{places}f}"


def percent(ratio: float | None, places: int = 0) -> str:
    """Ratio (0..1) as per cent with a thin unit gap: `91 %`."""
    return UNKNOWN if ratio is None else f"{ratio * 100:.{places}f} %"


def bytes_(value: int | None) -> str:
    """Bytes in binary units: `1.5 MiB`."""
    if value is None:
        return UNKNOWN
    size = float(value)
    unit = _BYTE_UNITS[0]
    for unit in _BYTE_UNITS:
        if abs(size) < 1024 or unit == _BYTE_UNITS[-1]:
            break
        size /= 1024
    return f"{value} B" if unit == "B" else f"{size:.1f} {unit}"


def seconds(value: float | None) -> str:
    """Duration for people: `850 us`, `412 ms`, `2.4 s`, `5 min 12 s`, `3 h 10 min`, `2 d 4 h`."""
    if value is None:
        return UNKNOWN
    if value < 0:
        return f"-{seconds(-value)}"
    if value < 1:
        return f"{value * 1e6:.0f} us" if 0 < value < 0.001 else f"{value * 1000:.0f} ms"
    if value < MINUTE_S:
        text = f"{value:.1f}".removesuffix(".0")
        return f"{text} s" if text != "60" else "1 min"
    return _two_parts(round(value))


def _two_parts(whole: int) -> str:
    for size, name, below, below_name in (
        (DAY_S, "d", HOUR_S, "h"),
        (HOUR_S, "h", MINUTE_S, "min"),
        (MINUTE_S, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {name}" + (f" {rest} {below_name}" if rest else "")
    return f"{whole} s"


def age(value_s: float | None) -> str:
    """Age in one unit, rounded down: `14 s`, `5 min`, `3 h`, `2 d`. `app.js` words it the same."""
    if value_s is None:
        return UNKNOWN
    whole = max(0, int(value_s))
    for size, name in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min")):
        if whole >= size:
            return f"{whole // size} {name}"
    return f"{whole} s"


def usd(nanousd: int | None) -> str:
    """Exact dollars without the unit, at least two decimals: `62.10`, `0.000412345`."""
    if nanousd is None:
        return UNKNOWN
    sign = "-" if nanousd < 0 else ""
    whole, nanos = divmod(abs(nanousd), NANO)
    decimals = f"{nanos:09d}".rstrip("0").ljust(MIN_DECIMALS, "0")
    return f"{sign}{whole:,}.{decimals}"


def usd_parts(nanousd: int) -> tuple[str, str]:
    """Exact dollars to nine decimals, split where only zeros follow, so that columns align.

    The second part is padding: `("62.10", "0000000")`.
    """
    text = usd(nanousd)
    return text, "0" * (9 - len(text.partition(".")[2]))


def usd_short(nanousd: int | None) -> str:
    """Rounded dollars for a headline: cents from one dollar on, else three significant digits."""
    if nanousd is None:
        return UNKNOWN
    value = Decimal(nanousd) / NANO
    if nanousd == 0 or abs(nanousd) >= CENT_FROM_NANOUSD:
        return f"{value:,.2f}"
    places = max(MIN_DECIMALS, SHORT_SIGNIFICANT - 1 - value.adjusted())
    return f"{value:.{min(places, 9)}f}"


def usd_text(nanousd: int) -> str:
    """Exact dollars for machines (CSV, REST): a plain decimal string without separators."""
    return usd(nanousd).replace(",", "")


def parse_usd(text: str) -> int:
    """Nano-dollars of a decimal string; raises `ValueError` if it is not one, finer or absurd."""
    scaled = Decimal(text).scaleb(9) if _is_plain(text) else None
    if scaled is None or scaled != int(scaled) or abs(scaled) > MOST_NANOUSD:
        raise ValueError(
            "not an amount in USD with at most nine decimals,"
            f" up to {MOST_NANOUSD // NANO:,}: {text[:40]!r}"
        )
    return int(scaled)


def parse_whole(text: str) -> int:
    """A whole number as people write one: digits, and perhaps a minus, at most 18 of them.

    Raises `ValueError`. Python's own `int` also reads `1_000`, other scripts' digits, and numbers
    that no column holds.
    """
    digits = text.strip().removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= MOST_DIGITS):
        raise ValueError(f"not a whole number of at most {MOST_DIGITS} digits: {text[:40]!r}")
    return int(text)


def parse_amount(text: str, *, is_money: bool) -> int:
    """An amount of a limit as people write one, grouped by commas or not: nano-dollars of USD, or
    a whole number. Raises `ValueError`.
    """
    plain = text.replace(",", "").strip()
    return parse_usd(plain) if is_money else parse_whole(plain)


def _is_plain(text: str) -> bool:
    whole, _, rest = text.strip().removeprefix("-").partition(".")
    return len(text) <= 24 and f"{whole}{rest}".isascii() and f"{whole}{rest}".isdigit()


def moment(value: datetime | None, timezone: str = "UTC") -> str:
    """Instant in a named zone, to the second, with the zone: `2025-11-29 18:04:09 UTC`."""
    if value is None:
        return UNKNOWN
    return value.astimezone(ZoneInfo(timezone)).strftime("%Y-%m-%d %H:%M:%S ") + timezone

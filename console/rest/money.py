"""Money in JSON: decimal text in US dollars. Inside it is integer nano-dollars, never a float."""

import re

NANOUSD_PER_USD = 1_000_000_000
_DECIMALS = 9
_CENTS = 2
_TEXT = re.compile(r"([0-9]{1,10})(?:\.([0-9]{1,9}))?")


def usd_text(nanousd: int) -> str:
    """Nano-dollars as dollars: exact, at least two decimals, such as `-0.0042` or `12.50`."""
    whole, rest = divmod(abs(nanousd), NANOUSD_PER_USD)
    decimals = f"{rest:0{_DECIMALS}d}".rstrip("0").ljust(_CENTS, "0")
    return f"{'-' if nanousd < 0 else ''}{whole}.{decimals}"


def nanousd_of(text: str) -> int:
    """Inverse of `usd_text` for amounts of 0 or more. Raises `ValueError` for other text."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError("not an amount: use at most ten digits and nine decimals, such as 12.50")
    whole, decimals = found.groups(default="")
    return int(whole) * NANOUSD_PER_USD + int(decimals.ljust(_DECIMALS, "0"))

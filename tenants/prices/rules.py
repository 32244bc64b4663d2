"""Which prices look like a slip of the keyboard. Money: nano-dollars per million tokens."""

from dataclasses import dataclass

NANOUSD_PER_USD = 1_000_000_000
MAX_NANOUSD = 1_000_000 * NANOUSD_PER_USD  # a million dollars per million tokens: refused outright
DOUBTFUL_NANOUSD = 1_000 * NANOUSD_PER_USD  # a thousand dollars per million tokens: ask again
DOUBTFUL_FACTOR = 1000


@dataclass(frozen=True, slots=True)
class Rates:
    """The three rates of a price."""

    input_nanousd: int
    cached_nanousd: int
    output_nanousd: int

    def by_name(self) -> dict[str, int]:
        """Rate of each field."""
        return {
            "input_nanousd": self.input_nanousd,
            "cached_nanousd": self.cached_nanousd,
            "output_nanousd": self.output_nanousd,
        }


def impossible_field(rates: Rates) -> str | None:
    """The first rate that no price may have: negative, or above `MAX_NANOUSD`."""
    for name, value in rates.by_name().items():
        if not 0 <= value <= MAX_NANOUSD:
            return name
    return None


def doubtful_field(rates: Rates, previous: Rates | None) -> str | None:
    """The first rate that a person must confirm.

    Above `DOUBTFUL_NANOUSD`, or more than `DOUBTFUL_FACTOR` times the previous rate where that was
    not 0. Cheaper is never doubted: the repair of a slip must be one call.
    """
    for name, value in rates.by_name().items():
        before = previous.by_name()[name] if previous else 0
        if value > DOUBTFUL_NANOUSD or (before and value > before * DOUBTFUL_FACTOR):
            return name
    return None

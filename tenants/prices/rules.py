"""Which prices look like a slip of the keyboard. Money: integer nano-dollars, per million tokens,
per use of a resource, or per second of one GPU.
"""

from dataclasses import dataclass
from typing import NamedTuple

NANOUSD_PER_USD = 1_000_000_000
MAX_NANOUSD = 1_000_000 * NANOUSD_PER_USD  # a million dollars per million tokens: refused outright
DOUBTFUL_NANOUSD = 1_000 * NANOUSD_PER_USD  # a thousand dollars per million tokens: ask again
DOUBTFUL_FACTOR = 1000


class Bounds(NamedTuple):
    """Above `most` a price is refused, above `doubtful` a person must confirm it."""

    most: int
    doubtful: int


OF_UNIT = Bounds(1_000 * NANOUSD_PER_USD, 10 * NANOUSD_PER_USD)  # one use of a resource
# A GPU costs a few dollars an hour, under 0.005 a second: what was meant per hour stands out.
OF_GPU = Bounds(NANOUSD_PER_USD, NANOUSD_PER_USD // 100)

_WHOLE = {"cache_write_nanousd": "input_nanousd", "reasoning_nanousd": "output_nanousd"}


@dataclass(frozen=True, slots=True)
class Rates:
    """The rates of a price: per million tokens, `image_nanousd` per picture.

    None: tokens written to the cache cost as input, reasoning as output.
    """

    input_nanousd: int
    cached_nanousd: int
    output_nanousd: int
    cache_write_nanousd: int | None = None
    reasoning_nanousd: int | None = None
    image_nanousd: int = 0

    def by_name(self) -> dict[str, int | None]:
        """Rate of each field."""
        return {name: getattr(self, name) for name in self.__slots__}

    def stated(self) -> dict[str, int]:
        """Rates that are not left to another."""
        return {name: rate for name, rate in self.by_name().items() if rate is not None}


def impossible_field(rates: Rates) -> str | None:
    """The first rate that no price may have: negative, or above `MAX_NANOUSD`."""
    for name, value in rates.stated().items():
        if not 0 <= value <= MAX_NANOUSD:
            return name
    return None


def doubtful_field(rates: Rates, previous: Rates | None) -> str | None:
    """The first rate that a person must confirm.

    Above `DOUBTFUL_NANOUSD`, or more than `DOUBTFUL_FACTOR` times the previous rate where that was
    not 0. Cheaper is never doubted: the repair of a slip must be one call.
    """
    earlier = previous.stated() if previous else {}
    for name, value in rates.stated().items():
        # A part that had no rate of its own cost as its whole.
        before = earlier.get(name, earlier.get(_WHOLE.get(name, ""), 0))
        if is_doubtful(value, before, DOUBTFUL_NANOUSD):
            return name
    return None


def is_doubtful(value: int, before: int | None, most: int) -> bool:
    """Whether a person must confirm: above `most`, or `DOUBTFUL_FACTOR` times a price before."""
    return value > most or bool(before and value > before * DOUBTFUL_FACTOR)

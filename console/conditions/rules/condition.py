"""A part that is not as it should be, in words that a person can act on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from console.conditions.rules.facts import Facts

BAD, WARN, STALE = "bad", "warn", "stale"
TONES = (BAD, WARN, STALE)  # worst first


@dataclass(frozen=True, slots=True)
class Condition:
    """`text`: what is so, and what still works. `bound`: the limit that holds meanwhile.

    `part` names one thing (`store`, `gateway g0`, `disk state`), `word` its state in one or two
    words; together they are a bounded set of labels. `next_step` is empty when waiting is right.
    """

    part: str
    word: str
    tone: str
    text: str
    bound: str = ""
    next_step: str = ""


Rule = Callable[[Facts], Iterator[Condition]]


def seconds(value_s: float) -> str:
    """`0.4 s`, `12 s`, `5 min`, `2 h`: precise enough to decide by."""
    if value_s < 10:
        return f"{value_s:.1f} s"
    if value_s < 120:
        return f"{value_s:.0f} s"
    if value_s < 7200:
        return f"{value_s / 60:.0f} min"
    return f"{value_s / 3600:.0f} h"


def size(value_bytes: int) -> str:
    """`512 MiB`, `3.1 GiB`."""
    mebibytes = value_bytes / 2**20
    return f"{mebibytes:.0f} MiB" if mebibytes < 1024 else f"{mebibytes / 1024:.1f} GiB"

"""What one gateway may admit by itself while the shared counters cannot be asked.

Of every limit a gateway has `ratio * remaining / gateways`, remaining as last seen in that window
(the limit if never seen). All gateways together stay within `ratio` of what was left.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from routing.contracts.enums import StoreMode

CounterId = tuple[str, str]  # counter suffix (names its window) and dimension


@dataclass(frozen=True, slots=True)
class Need:
    """What a request takes of one limited counter, and what was left of it when last seen."""

    counter: CounterId
    amount: int
    left: int


class Shares:
    """One outage of one bucket: allowances, fixed at first use, and what was taken of them."""

    __slots__ = ("_allowance", "_gateways", "_ratio", "_taken")

    def __init__(self, *, ratio: float, gateways: int) -> None:
        """`ratio` 0..1; `gateways` at least 1 counts the processes that share the limits."""
        self._ratio = ratio
        self._gateways = max(gateways, 1)
        self._allowance: dict[CounterId, int] = {}
        self._taken: dict[CounterId, int] = {}

    def take(self, needs: Sequence[Need]) -> bool:
        """Take every need or none; False when one share is too small."""
        for need in needs:
            allowance = self._allowance.setdefault(
                need.counter, int(self._ratio * max(need.left, 0)) // self._gateways
            )
            if need.amount > allowance - self._taken.get(need.counter, 0):
                return False
        for need in needs:
            self._taken[need.counter] = self._taken.get(need.counter, 0) + need.amount
        return True

    def give_back(self, counter: CounterId, amount: int) -> None:
        """Return what an ended request took above its charge: all of it, for a gauge."""
        if counter in self._taken:
            self._taken[counter] = max(self._taken[counter] - amount, 0)


def outage_mode(*, policy: str, away_s: float, max_s: float) -> StoreMode:
    """How to admit after `away_s` without the store: `degraded` policies close after `max_s`."""
    if policy == "degraded" and away_s <= max_s:
        return StoreMode.DEGRADED
    return StoreMode.CLOSED

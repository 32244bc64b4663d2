"""A gateway's credits of a pool's or the fleet's limits: leased in chunks, spent without asking.

What the store has leased is already subtracted there, so the sum over gateways never passes the
limit. A rate's credits belong to one minute and end with it; a gauge's are a number that may be in
use at once, owned until the lease runs out. Instants: `minute` is the store's Unix minute, `*_s`
monotonic seconds.
"""

import math
from dataclasses import dataclass, field
from typing import Final

CHUNK_RATIO: Final = 0.05  # of the limit, at least one unit: what a gateway keeps ahead
AHEAD_MS: Final = 5_000  # the next minute's first chunk is leased this long before it begins
HOARD: Final = 2  # chunks above what is wanted before credits are given back
LEASE_MS: Final = 10_000
USABLE_S: Final = 8.0  # of a lease, from when it was asked for: others may take it afterwards
RENEW_S: Final = 2.0


def chunk_of(limit: int, classes: int = 1) -> int:
    """Credits that a gateway leases at a time; `classes` that share the limit share the chunk."""
    return max(1, math.ceil(limit * CHUNK_RATIO / classes))


@dataclass(slots=True)
class Rate:
    """Credits of one minute, and those of the next once leased.

    `demand` is what requests wait for since the store was asked: the next lease covers it.
    `classes` share the limit; one of several keeps nothing ahead that took nothing in this minute
    or the last.
    """

    limit: int
    minute: int = 0
    left: int = 0
    ahead: int = 0
    demand: int = 0
    is_dry: bool = False  # the store had nothing more of this minute
    classes: int = 1
    away: int = -1  # of the limit, what all gateways together may use without the store; -1: all
    spare: int = 0  # what was left for anybody when the store was last asked
    is_used: bool = False
    was_used: bool = False

    def turn(self, minute: int) -> bool:
        """Go to the present minute; True when it is a new one."""
        if minute <= self.minute:
            return False
        self.left = self.ahead if minute == self.minute + 1 else 0
        self.was_used = self.is_used and minute == self.minute + 1
        self.minute, self.ahead, self.is_dry, self.is_used = minute, 0, False, False
        return True

    def take(self, amount: int) -> None:
        """Spend credits."""
        self.left -= amount
        self.is_used = True

    def wanted(self, now_ms: int) -> tuple[int, int]:
        """Credits to ask for (below 0: to give back) of this minute and of the next."""
        is_kept = self.classes == 1 or self.is_used or self.was_used or self.demand
        chunk = chunk_of(self.limit, self.classes) if is_kept else 0
        target = min(self.limit, chunk + self.demand)
        self.demand = 0
        want = target - self.left
        if want < 0 and self.left <= HOARD * target:
            want = 0
        is_near = now_ms % 60_000 >= 60_000 - AHEAD_MS
        return want, max(0, target - self.ahead) if is_near else 0


@dataclass(slots=True)
class Gauge:
    """Of `owned` credits `used` are taken by running requests; no new ones after `until_s`.

    `used` is above `owned` while a lent share is wanted back. `classes`, `away` and `spare` as a
    rate's; `is_leaving`: its limit is counted otherwise now, only what runs is still owned.
    """

    limit: int
    owned: int = 0
    used: int = 0
    until_s: float = 0.0
    demand: int = 0
    renew_at_s: float = field(default=0.0)
    classes: int = 1
    away: int = -1
    spare: int = 0
    is_dry: bool = False
    is_leaving: bool = False

    def wanted(self) -> int:
        """Credits to own from now on; until the answer no more than that are used."""
        is_kept = self.classes == 1 or self.used or self.demand
        chunk = chunk_of(self.limit, self.classes) if is_kept and not self.is_leaving else 0
        want = min(max(self.limit, self.used), self.used + chunk + self.demand)
        self.demand = 0
        self.owned = min(self.owned, want)
        return want

    def granted(self, owned: int, spare: int, asked_at_s: float) -> None:
        """The store's answer to what was asked at `asked_at_s`."""
        self.owned, self.spare = owned, spare
        self.until_s = asked_at_s + USABLE_S
        self.renew_at_s = asked_at_s + RENEW_S

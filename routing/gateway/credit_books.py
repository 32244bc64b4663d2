"""What a gateway owns of one pool's limits, or of the fleet's, and what its requests took of it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from routing.contracts.capacity import CapacityLimit, CapacityScope, SharedScope
from routing.contracts.enums import Dimension, WindowKind
from routing.contracts.snapshot import ClassPolicy
from routing.decision.classes import Share, alone, most, shares_of
from routing.decision.credits import Gauge, Rate, chunk_of
from routing.decision.limits import AMOUNT_ORDER, MINUTE_MS, limit_name
from routing.decision.types import Amounts, Reason, Refusal
from routing.gateway.returns import Caller, Returns

UNKNOWN_MS: Final = 1_000  # until the store has said what is left of the minute
TAKES_FROM_ALL: Final = ""  # the one part of a limit that no class shares

_PLACE = {dimension: place for place, dimension in enumerate(AMOUNT_ORDER)}

Id = tuple[CapacityScope, str]


class Taken(NamedTuple):
    """What a request took of one pool or of the fleet, in which minute; `at_s` is monotonic."""

    book: "Book"
    minute: int
    at_s: float
    rates: tuple[tuple[Dimension, Rate, int], ...]
    gauges: tuple[tuple[Gauge, int], ...]

    @property
    def scope(self) -> CapacityScope:
        """Whose limits they are."""
        return self.book.id[0]


class Work(NamedTuple):
    """A request as limits see it; `taken` is what it took for an earlier try.

    `share` names the part of its pool's limits where that is not its class's.
    """

    caller: Caller
    work_class: str
    amounts: Amounts
    taken: tuple[Taken, ...] = ()
    share: str = ""


class Short(NamedTuple):
    """The first limit without room for a request."""

    book: "Book"
    dimension: Dimension
    of: Rate | Gauge
    asked: int


@dataclass(slots=True)
class Part:
    """The credits of one work class, or of all of them."""

    rates: dict[Dimension, Rate] = field(default_factory=dict)
    gauges: dict[Dimension, Gauge] = field(default_factory=dict)

    @property
    def is_used(self) -> bool:
        """Whether a running request still holds some of it."""
        return any(gauge.used for gauge in self.gauges.values())


@dataclass(slots=True)
class Book:
    """Credits by work class (`TAKES_FROM_ALL` without reserved shares).

    `is_away`: the store did not answer for it. `leaving` are parts of an earlier sharing whose
    requests still run: they stay owned until those have ended.
    """

    id: Id
    key: bytes
    parts: dict[str, Part] = field(default_factory=dict)
    leaving: list[tuple[str, Part]] = field(default_factory=list)
    shares: dict[Dimension, Mapping[str, Share]] = field(default_factory=dict)
    is_away: bool = False

    @property
    def times_name(self) -> str:
        """What the durations of its requests are remembered under."""
        return f"{self.id[0]}:{self.id[1]}"

    def set_limits(
        self, limits: tuple[CapacityLimit, ...], classes: Mapping[str, ClassPolicy]
    ) -> None:
        """Take over limits and shares; credits of those that stay are kept."""
        is_shared = any(one.reserve_ratio > 0 for one in classes.values())
        names = tuple(classes) if is_shared else (TAKES_FROM_ALL,)
        old, self.parts = self.parts, {}
        self.shares = {one.dimension: shares_of(one.amount, classes) for one in limits}
        for name in names:
            before, part = old.pop(name, None) or Part(), Part()
            for one in limits:
                away = alone(one.amount, self.shares[one.dimension], name)
                if one.window is WindowKind.NOW:
                    gauge = before.gauges.get(one.dimension) or Gauge(one.amount)
                    gauge.limit, gauge.classes, gauge.away = one.amount, len(names), away
                    part.gauges[one.dimension] = gauge
                else:
                    rate = before.rates.get(one.dimension) or Rate(one.amount)
                    rate.limit, rate.classes, rate.away = one.amount, len(names), away
                    part.rates[one.dimension] = rate
            self.parts[name] = part
        for name, part in old.items():
            for gauge in part.gauges.values():
                gauge.is_leaving = True
            self.leaving.append((name, part))

    def share_of(self, work: Work) -> str:
        """The part that a request takes from: its own of a pool, its class's of the fleet."""
        return work.share if work.share in self.parts else work.work_class

    def part_of(self, work_class: str) -> Part:
        """What a request of this class takes from."""
        return self.parts.get(work_class) or self.parts[TAKES_FROM_ALL]

    def all_parts(self) -> list[tuple[str, Part]]:
        """Every part to keep leased; those that are left for good go."""
        self.leaving = [one for one in self.leaving if one[1].is_used]
        return [*self.parts.items(), *self.leaving]

    def turn(self, rate: Rate, minute: int, share: float) -> bool:
        """Go to the present minute; away from the store it begins with our `share`."""
        is_new = rate.turn(minute)
        if is_new and self.is_away:
            rate.left = int(rate.away * share)
        return is_new

    def owned(self, gauge: Gauge, share: float) -> int:
        """Units that may be in use at once now."""
        if time.monotonic() < gauge.until_s:
            return gauge.owned
        return int(gauge.away * share) if self.is_away else 0

    def take(self, need: Sequence[int], work_class: str, minute: int) -> Taken:
        """Spend what was found to be there."""
        part = self.part_of(work_class)
        rates = tuple((dim, rate, need[_PLACE[dim]]) for dim, rate in part.rates.items())
        gauges = tuple((gauge, need[_PLACE[dim]]) for dim, gauge in part.gauges.items())
        for _, rate, amount in rates:
            rate.take(amount)
        for gauge, amount in gauges:
            gauge.used += amount
        return Taken(self, minute, time.monotonic(), rates, gauges)

    def is_low(self, work_class: str) -> bool:
        """Whether less than a chunk is left for this class's next requests."""
        part = self.part_of(work_class)
        return any(
            rate.left < chunk_of(rate.limit, rate.classes) for rate in part.rates.values()
        ) or any(
            gauge.owned - gauge.used < chunk_of(gauge.limit, gauge.classes)
            for gauge in part.gauges.values()
        )


def leave(taken: Taken) -> None:
    """Nothing of it is in use any more."""
    for gauge, amount in taken.gauges:
        gauge.used -= amount


def amount_of(need: Sequence[int], dimension: Dimension) -> int:
    """What a request takes of a dimension."""
    return need[_PLACE[dimension]]


def refusal_of(short: Short, work: Work, returns: Returns, now_ms: int) -> Refusal:
    """Why a request is refused, and when this caller is to come back.

    A minute's limit: the next minute, or a later one when callers told so before fill it. What is
    limited at once: a turn, by how long nine in ten of its requests take.
    """
    (scope, _), dimension, asked = short.book.id, short.dimension, short.asked
    limit = short.of.limit
    name = limit_name(dimension, CapacityLimit(dimension, limit).window)
    whose = "The fleet" if scope is CapacityScope.FLEET else "Every pool that serves this model"
    if asked > limit:
        text = f"{whose} takes at most {limit} {name}; this request alone needs {asked}."
        return Refusal(Reason.NO_CAPACITY, text, None, scope, name)
    back_ms = returns.tell(
        work.caller, f"{scope} {name}", lambda: _turn_of(short, work, returns, now_ms), now_ms
    )
    wait_s = (back_ms - now_ms) / 1000
    if asked <= short.of.spare:
        kept = SharedScope.FLEET_CLASS if scope is CapacityScope.FLEET else SharedScope.POOL_CLASS
        text = (
            f"{whose} keeps what is left of its {name} limit for other work classes; "
            f"{work.work_class} has used its own share: retry in {max(1, round(wait_s))} s."
        )
        return Refusal(Reason.NO_CAPACITY, text, wait_s, kept, name)
    text = f"{whose} is at its {name} limit over all tenants; retry in {max(1, round(wait_s))} s."
    return Refusal(Reason.NO_CAPACITY, text, wait_s, scope, name)


def _turn_of(short: Short, work: Work, returns: Returns, now_ms: int) -> int:
    book, dimension, asked = short.book, short.dimension, short.asked
    share = book.share_of(work)
    line = (*book.id, share, dimension)
    has = max(asked, most(short.of.limit, book.shares.get(dimension, {}), share))
    if not isinstance(short.of, Rate):
        return returns.promises.in_turn(line, asked, has, book.times_name, now_ms)
    if not short.of.is_dry and not book.is_away:
        return now_ms + UNKNOWN_MS
    end_ms = now_ms - now_ms % MINUTE_MS + MINUTE_MS
    return returns.promises.in_window(line, asked, has, (WindowKind.MINUTE, "UTC", 0), end_ms)

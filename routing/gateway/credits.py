"""Limits of pools and of the fleet in this gateway: checked locally, refilled in the background.

A request asks nobody: it takes from credits that were leased before it came, and only one that
finds too little waits for the next refill. `Credits.keep` leases ahead of the demand, gives back
what is not wanted, and renews. While the store is away a gateway uses its share of each limit, as
the policy's outage mode says.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from routing.contracts.capacity import CapacityLimit, CapacityScope
from routing.contracts.enums import Dimension, WindowKind
from routing.contracts.snapshot import Snapshot
from routing.decision.credits import LEASE_MS, Gauge, Rate, chunk_of
from routing.decision.limits import AMOUNT_ORDER, MINUTE_MS, amounts_in_order, limit_name
from routing.decision.select import Group
from routing.decision.types import Amounts, Reason, Refusal
from routing.store import keys
from routing.store.client import into, wire_key
from routing.store.cluster import Store
from routing.store.scripts import CREDITS

TICK_S: Final = 0.25  # between refills when nothing hurries
SHORTEST_S: Final = 0.005  # between refills when something does
GAUGE_WAIT_S: Final = 1.0
GIVE_BACK_S: Final = 1.0

_RATE, _GAUGE = 1, 2
_encode = msgspec.msgpack.Encoder().encode
_PLACE = {dimension: place for place, dimension in enumerate(AMOUNT_ORDER)}

Id = tuple[CapacityScope, str]
Asked = tuple[tuple[object, ...], Callable[[int], None]]  # an item for the script, its answer's use


class Taken(NamedTuple):
    """What a request took of one pool or of the fleet, in which minute."""

    scope: CapacityScope
    minute: int
    rates: tuple[tuple[Dimension, Rate, int], ...]
    gauges: tuple[tuple[Gauge, int], ...]


@dataclass(slots=True)
class Book:
    """The credits of one pool or of the fleet; `is_away` when the store did not answer for it."""

    id: Id
    key: bytes
    rates: dict[Dimension, Rate] = field(default_factory=dict)
    gauges: dict[Dimension, Gauge] = field(default_factory=dict)
    is_away: bool = False

    def set_limits(self, limits: tuple[CapacityLimit, ...]) -> None:
        """Take over limits; credits of those that stay are kept."""
        rates, gauges = self.rates, self.gauges
        self.rates, self.gauges = {}, {}
        for one in limits:
            if one.window is WindowKind.NOW:
                gauge = self.gauges[one.dimension] = gauges.get(one.dimension) or Gauge(one.amount)
                gauge.limit = one.amount
            else:
                rate = self.rates[one.dimension] = rates.get(one.dimension) or Rate(one.amount)
                rate.limit = one.amount


class Credits:
    """Every limited pool, and the fleet. Construct in the loop.

    `share` is what part of a limit this gateway may use while the store is away, 0 for none.
    """

    def __init__(
        self, store: Store, owner: str, now_ms: Callable[[], int], share: Callable[[], float]
    ) -> None:
        """Nothing is asked before a snapshot names limits."""
        self._store = store
        self._owner = owner
        self._now_ms = now_ms
        self._share = share
        self._books: dict[Id, Book] = {}
        self._wake = asyncio.Event()
        self._parked: list[Callable[[], None]] = []

    @property
    def is_limited(self) -> bool:
        """Whether there is anything to check."""
        return bool(self._books)

    def take_snapshot(self, snapshot: Snapshot) -> None:
        """Limits as they are now; credits of what is limited no more are left to expire."""
        wanted: dict[Id, tuple[CapacityLimit, ...]] = {
            (CapacityScope.POOL, pool.id): pool.limits
            for pool in snapshot.pools.values()
            if pool.limits
        }
        if snapshot.fleet_limits:
            wanted[CapacityScope.FLEET, ""] = snapshot.fleet_limits
        books = {}
        for name, limits in wanted.items():
            key = wire_key(keys.credits_of(*name))
            book = books[name] = self._books.get(name) or Book(name, key)
            book.set_limits(limits)
        self._books = books
        self._wake.set()

    # -- requests

    def open_groups(
        self,
        groups: Sequence[Group],
        amounts: Amounts,
        taken: Sequence[Taken],
        *,
        has_waited: bool = False,
    ) -> Sequence[Group] | Refusal:
        """The targets whose pools have room for the request, or why none has.

        `taken` is what it took for an earlier try: the fleet is asked once a request. What is found
        wanting is leased next, unless the request `has_waited` for that already.
        """
        need = amounts_in_order(amounts)
        if not any(one.scope is CapacityScope.FLEET for one in taken):
            refusal = self._check((CapacityScope.FLEET, ""), need, has_waited=has_waited)
            if refusal is not None:
                return refusal
        refusal, found = None, []
        for group in groups:
            name = (CapacityScope.POOL, group.candidates[0].pool) if group.candidates else None
            why = None if name is None else self._check(name, need, has_waited=has_waited)
            if why is None:
                found.append(group)
            refusal = refusal or why
        if not found and refusal is not None:
            return refusal
        return found

    def take(self, pool: str, amounts: Amounts, taken: Sequence[Taken]) -> tuple[Taken, ...]:
        """Spend what `open_groups` found: of the fleet once, of the pool for every try."""
        need = amounts_in_order(amounts)
        minute = self._now_ms() // MINUTE_MS
        kept = []
        for one in taken:
            if one.scope is CapacityScope.FLEET:
                kept.append(one)
            else:
                _leave(one)
        names: list[Id] = [(CapacityScope.POOL, pool)]
        if not kept:
            names.append((CapacityScope.FLEET, ""))
        for name in names:
            book = self._books.get(name)
            if book is not None:
                kept.append(_take(book, need, minute))
                if _is_low(book):
                    self._wake.set()
        return tuple(kept)

    def end(
        self, taken: Sequence[Taken], input_tokens: int, output_tokens: int, *, is_void: bool
    ) -> None:
        """The request is over: gauges are free again, and what its minute did not need."""
        used = {Dimension.INPUT_TOKENS: input_tokens, Dimension.OUTPUT_TOKENS: output_tokens}
        for one in taken:
            _leave(one)
            for dimension, rate, held in one.rates:
                if rate.minute == one.minute:
                    rate.left += held if is_void else max(0, held - used.get(dimension, held))

    def park(self, again: Callable[[], None]) -> None:
        """Run `again` when the store has been asked for what was found wanting."""
        self._parked.append(again)
        self._wake.set()

    def _check(self, name: Id, need: tuple[int, ...], *, has_waited: bool) -> Refusal | None:
        book = self._books.get(name)
        if book is None:
            return None
        now_ms = self._now_ms()
        refusal = None
        for dimension, rate in book.rates.items():
            self._turn(book, rate, now_ms // MINUTE_MS)
            asked = need[_PLACE[dimension]]
            if asked > rate.left:
                rate.demand += 0 if has_waited else asked
                wait_s = (MINUTE_MS - now_ms % MINUTE_MS) / 1000 if rate.is_dry else GAUGE_WAIT_S
                refusal = refusal or _refusal(name[0], dimension, rate.limit, asked, wait_s)
        for dimension, gauge in book.gauges.items():
            asked = need[_PLACE[dimension]]
            if gauge.used + asked > self._owned(book, gauge):
                gauge.demand += 0 if has_waited else asked
                refusal = refusal or _refusal(name[0], dimension, gauge.limit, asked, GAUGE_WAIT_S)
        return refusal

    def _owned(self, book: Book, gauge: Gauge) -> int:
        if time.monotonic() < gauge.until_s:
            return gauge.owned
        return int(gauge.limit * self._share()) if book.is_away else 0

    # -- the store, in the background

    async def keep(self) -> None:
        """Lease, renew and give back: soon when a request found too little, else every tick."""
        while True:
            self._wake.clear()
            parked, self._parked = self._parked, []
            waits = [wait for book in self._books.values() if (wait := self._ask(book))]
            if waits:
                await asyncio.wait(waits)
            for again in parked:
                asyncio.get_running_loop().call_soon(again)  # one that fails stops no other
            await asyncio.sleep(SHORTEST_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._wake.wait()

    def _ask(self, book: Book) -> "asyncio.Future[None] | None":
        asks = self._rates_to_ask(book) + _gauges_to_ask(book)
        if not asks:
            return None
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def answered(reply: object) -> None:
            book.is_away = not isinstance(reply, list)
            if isinstance(reply, list):
                for (_, tell), (granted, _) in zip(asks, reply[1:], strict=True):
                    tell(granted)
            if not done.done():
                done.set_result(None)

        argument = _encode((self._owner, LEASE_MS, [item for item, _ in asks]))
        self._store.script(CREDITS, book.key, argument, answered)
        return done

    def _rates_to_ask(self, book: Book) -> list[Asked]:
        now_ms = self._now_ms()
        minute = now_ms // MINUTE_MS
        asks: list[Asked] = []
        for dimension, rate in book.rates.items():
            self._turn(book, rate, minute)
            want, ahead = rate.wanted(now_ms)
            if want < 0:
                rate.left += want  # it may be another's as soon as it is sent
            head = (_RATE, dimension.value, rate.limit)
            if want:
                asks.append(((*head, want, minute), _leased(rate, minute, want)))
            if ahead:
                asks.append(((*head, ahead, minute + 1), _leased_ahead(rate, minute + 1)))
        return asks

    def _turn(self, book: Book, rate: Rate, minute: int) -> None:
        if rate.turn(minute):
            self._wake.set()
            if book.is_away:
                rate.left = int(rate.limit * self._share())

    async def give_back(self) -> None:
        """The gateway stops: what it owns is anybody's again. Waits for the store a second."""
        minute = self._now_ms() // MINUTE_MS
        waits = []
        for book in self._books.values():
            items: list[tuple[object, ...]] = [
                (_RATE, dimension.value, rate.limit, -amount, rate.minute + later)
                for dimension, rate in book.rates.items()
                for later, amount in ((0, rate.left), (1, rate.ahead))
                if amount > 0 and rate.minute >= minute
            ]
            items += [
                (_GAUGE, dimension.value, gauge.limit, 0, 0)
                for dimension, gauge in book.gauges.items()
            ]
            if items:
                done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
                argument = _encode((self._owner, LEASE_MS, items))
                self._store.script(CREDITS, book.key, argument, into(done))
                waits.append(done)
        self._books = {}
        if waits:
            await asyncio.wait(waits, timeout=GIVE_BACK_S)


def _take(book: Book, need: Sequence[int], minute: int) -> Taken:
    rates = tuple((dim, rate, need[_PLACE[dim]]) for dim, rate in book.rates.items())
    gauges = tuple((gauge, need[_PLACE[dim]]) for dim, gauge in book.gauges.items())
    for _, rate, amount in rates:
        rate.left -= amount
    for gauge, amount in gauges:
        gauge.used += amount
    return Taken(book.id[0], minute, rates, gauges)


def _leave(taken: Taken) -> None:
    for gauge, amount in taken.gauges:
        gauge.used -= amount


def _is_low(book: Book) -> bool:
    return any(rate.left < chunk_of(rate.limit) for rate in book.rates.values()) or any(
        gauge.owned - gauge.used < chunk_of(gauge.limit) for gauge in book.gauges.values()
    )


def _gauges_to_ask(book: Book) -> list[Asked]:
    now_s = time.monotonic()
    asks: list[Asked] = []
    for dimension, gauge in book.gauges.items():
        before, want = gauge.owned, gauge.wanted()
        if want != before or now_s >= gauge.renew_at_s:
            item = (_GAUGE, dimension.value, gauge.limit, want, gauge.used)
            asks.append((item, _owns(gauge, now_s)))
    return asks


def _leased(rate: Rate, minute: int, want: int) -> Callable[[int], None]:
    def tell(granted: int) -> None:
        if rate.minute == minute:
            rate.left += max(0, granted)
            rate.is_dry = granted < want

    return tell


def _leased_ahead(rate: Rate, minute: int) -> Callable[[int], None]:
    def tell(granted: int) -> None:
        if rate.minute == minute:
            rate.left += granted
        elif rate.minute + 1 == minute:
            rate.ahead += granted

    return tell


def _owns(gauge: Gauge, asked_at_s: float) -> Callable[[int], None]:
    def tell(granted: int) -> None:
        gauge.granted(granted, asked_at_s)

    return tell


def _refusal(
    scope: CapacityScope, dimension: Dimension, limit: int, need: int, wait_s: float
) -> Refusal:
    window = CapacityLimit(dimension, limit).window
    name = limit_name(dimension, window)
    whose = "The fleet" if scope is CapacityScope.FLEET else "Every pool that serves this model"
    if need > limit:
        text = f"{whose} takes at most {limit} {name}; this request alone needs {need}."
        return Refusal(Reason.NO_CAPACITY, text, None, scope, name)
    text = f"{whose} is at its {name} limit over all tenants; retry in {max(1, round(wait_s))} s."
    return Refusal(Reason.NO_CAPACITY, text, wait_s, scope, name)

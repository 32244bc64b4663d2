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
from typing import Final

import msgspec

from routing.contracts.capacity import CapacityLimit, CapacityScope
from routing.contracts.enums import Dimension
from routing.contracts.snapshot import Snapshot
from routing.decision.classes import LEND_AFTER_MS, headrooms, with_headroom
from routing.decision.credits import LEASE_MS, Gauge, Rate
from routing.decision.limits import MINUTE_MS, amounts_in_order
from routing.decision.select import Group
from routing.decision.types import Refusal
from routing.gateway.credit_books import Book, Id, Short, Taken, Work, amount_of, leave, refusal_of
from routing.gateway.returns import Returns
from routing.store import keys
from routing.store.client import into
from routing.store.cluster import Store
from routing.store.scripts import CREDITS
from routing.store.wire import wire_key

TICK_S: Final = 0.25  # between refills when nothing hurries
SHORTEST_S: Final = 0.005  # between refills when something does
GIVE_BACK_S: Final = 1.0
WAITS_MAX: Final = 4  # refills that others may empty before a request that waits has its turn

_RATE, _GAUGE = 1, 2
_encode = msgspec.msgpack.Encoder().encode

Answer = tuple[int, int, int]  # granted, left for anybody, may be in use
Asked = tuple[tuple[object, ...], Callable[[Answer], None]]  # an item, what its answer is for


class Credits:
    """Every limited pool, and the fleet. Construct in the loop.

    `share` is what part of a limit this gateway may use while the store is away, 0 for none.
    `returns` remember who was told to come back when.
    """

    def __init__(
        self,
        store: Store,
        owner: str,
        now_ms: Callable[[], int],
        share: Callable[[], float],
    ) -> None:
        """Nothing is asked before a snapshot names limits."""
        self._store = store
        self._owner = owner
        self._now_ms = now_ms
        self._share = share
        self.returns = Returns()
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
        books, kept = {}, headrooms(snapshot)
        for name, limits in wanted.items():
            key = wire_key(keys.credits_of(*name))
            book = books[name] = self._books.get(name) or Book(name, key)
            book.set_limits(limits, with_headroom(snapshot.policy.classes, kept.get(name[1], 0.0)))
        self._books = books
        self._wake.set()

    # -- requests

    def open_groups(
        self, groups: Sequence[Group], work: Work, waits: int = 0
    ) -> Sequence[Group] | Refusal | None:
        """The targets whose pools have room for the request, or why none has.

        The fleet is asked once a request. What is found wanting is leased next: None, `park` the
        request. It is refused when the store had no more, or after some `waits`.
        """
        need = amounts_in_order(work.amounts)
        short: list[Short] = []
        if not any(one.scope is CapacityScope.FLEET for one in work.taken):
            short = self._check((CapacityScope.FLEET, ""), need, work)
        found: list[Group] = []
        for group in () if short else groups:
            name = (CapacityScope.POOL, group.candidates[0].pool) if group.candidates else None
            why = self._check(name, need, work) if name else []
            if not why:
                found.append(group)
            short += why
        if found or not short:
            return found
        first = short[0]
        is_told = waits and (first.of.is_dry or first.book.is_away)
        if first.asked <= first.of.limit and not is_told and waits < WAITS_MAX:
            for one in short:
                one.of.demand += one.asked
            return None
        return refusal_of(first, work, self.returns, self._now_ms())

    def take(self, pool: str, work: Work) -> tuple[Taken, ...]:
        """Spend what `open_groups` found: of the fleet once, of the pool for every try."""
        need = amounts_in_order(work.amounts)
        now_ms = self._now_ms()
        if not self.returns.is_idle:
            self.returns.admitted(work.caller, now_ms)
        kept = []
        for one in work.taken:
            if one.scope is CapacityScope.FLEET:
                kept.append(one)
            else:
                leave(one)
        names: list[Id] = [(CapacityScope.POOL, pool)]
        if not kept:
            names.append((CapacityScope.FLEET, ""))
        for name in names:
            book = self._books.get(name)
            if book is not None:
                share = book.share_of(work)
                kept.append(book.take(need, share, now_ms // MINUTE_MS))
                if book.is_low(share):
                    self._wake.set()
        return tuple(kept)

    def end(
        self, taken: Sequence[Taken], input_tokens: int, output_tokens: int, *, is_void: bool
    ) -> None:
        """The request is over: gauges are free again, and what its minute did not need."""
        used = {Dimension.INPUT_TOKENS: input_tokens, Dimension.OUTPUT_TOKENS: output_tokens}
        now_s = time.monotonic()
        for one in taken:
            leave(one)
            if one.gauges and not is_void:
                self.returns.promises.ended(one.book.times_name, now_s - one.at_s)
            for dimension, rate, held in one.rates:
                if rate.minute == one.minute:
                    rate.left += held if is_void else max(0, held - used.get(dimension, held))

    def park(self, again: Callable[[], None]) -> None:
        """Run `again` when the store has been asked for what was found wanting."""
        self._parked.append(again)
        self._wake.set()

    def _check(self, name: Id, need: tuple[int, ...], work: Work) -> list[Short]:
        book = self._books.get(name)
        if book is None:
            return []
        minute, share = self._now_ms() // MINUTE_MS, self._share()
        part = book.part_of(book.share_of(work))
        short = []
        for dimension, rate in part.rates.items():
            if book.turn(rate, minute, share):
                self._wake.set()
            asked = amount_of(need, dimension)
            if asked > rate.left:
                short.append(Short(book, dimension, rate, asked))
        for dimension, gauge in part.gauges.items():
            asked = amount_of(need, dimension)
            if gauge.used + asked > book.owned(gauge, share):
                short.append(Short(book, dimension, gauge, asked))
        return short

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
                for (_, tell), answer in zip(asks, reply[1:], strict=True):
                    tell(answer)
            if not done.done():
                done.set_result(None)

        self._store.script(CREDITS, book.key, self._argument([item for item, _ in asks]), answered)
        return done

    def _argument(self, items: Sequence[tuple[object, ...]]) -> bytes:
        return _encode((self._owner, LEASE_MS, items, LEND_AFTER_MS))

    def _rates_to_ask(self, book: Book) -> list[Asked]:
        now_ms = self._now_ms()
        minute = now_ms // MINUTE_MS
        asks: list[Asked] = []
        for name, part in book.parts.items():
            for dimension, rate in part.rates.items():
                if book.turn(rate, minute, self._share()):
                    self._wake.set()
                want, ahead = rate.wanted(now_ms)
                if want < 0:
                    rate.left += want  # it may be another's as soon as it is sent
                head, tail = (_RATE, dimension.value, rate.limit), _tail(book, dimension, name)
                if want:
                    asks.append(((*head, want, minute, *tail), _leased(rate, minute, want)))
                if ahead:
                    item = (*head, ahead, minute + 1, *tail)
                    asks.append((item, _leased_ahead(rate, minute + 1)))
        return asks

    async def give_back(self) -> None:
        """The gateway stops: what it owns is anybody's again. Waits for the store a second."""
        minute = self._now_ms() // MINUTE_MS
        waits = []
        for book in self._books.values():
            items: list[tuple[object, ...]] = []
            for name, part in book.all_parts():
                items += [
                    (*(_RATE, dim.value, rate.limit, -amount, rate.minute + later),
                     *_tail(book, dim, name))
                    for dim, rate in part.rates.items()
                    for later, amount in ((0, rate.left), (1, rate.ahead))
                    if amount > 0 and rate.minute >= minute
                ]  # fmt: skip
                items += [
                    (_GAUGE, dim.value, gauge.limit, 0, 0, *_tail(book, dim, name))
                    for dim, gauge in part.gauges.items()
                ]
            if items:
                done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
                self._store.script(CREDITS, book.key, self._argument(items), into(done))
                waits.append(done)
        self._books = {}
        if waits:
            await asyncio.wait(waits, timeout=GIVE_BACK_S)


def _tail(book: Book, dimension: Dimension, name: str) -> tuple[str, list[object]]:
    """The class that asks, and what each class keeps of the limit."""
    shares = book.shares.get(dimension, {})
    return name, [value for one, share in shares.items() for value in (one, *share)]


def _gauges_to_ask(book: Book) -> list[Asked]:
    now_s = time.monotonic()
    asks: list[Asked] = []
    for name, part in book.all_parts():
        for dimension, gauge in part.gauges.items():
            before, want = gauge.owned, gauge.wanted()
            if want != before or (want and now_s >= gauge.renew_at_s):
                head = (_GAUGE, dimension.value, gauge.limit, want, gauge.used)
                asks.append(((*head, *_tail(book, dimension, name)), _owns(gauge, want, now_s)))
    return asks


def _leased(rate: Rate, minute: int, want: int) -> Callable[[Answer], None]:
    def tell(answer: Answer) -> None:
        granted, spare, _ = answer
        if rate.minute == minute:
            rate.left += max(0, granted)
            rate.spare, rate.is_dry = spare, granted < want

    return tell


def _leased_ahead(rate: Rate, minute: int) -> Callable[[Answer], None]:
    def tell(answer: Answer) -> None:
        granted = answer[0]
        if rate.minute == minute:
            rate.left += granted
        elif rate.minute + 1 == minute:
            rate.ahead += granted

    return tell


def _owns(gauge: Gauge, want: int, asked_at_s: float) -> Callable[[Answer], None]:
    def tell(answer: Answer) -> None:
        _, spare, may = answer
        gauge.granted(may, spare, asked_at_s)
        gauge.is_dry = may < want

    return tell

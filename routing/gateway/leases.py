"""Keeps holds alive, and makes them known again in a new epoch."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import hiredis

from routing.gateway.buckets import UNKNOWN_EPOCH, Book, Bucket, Item, Stage
from routing.gateway.journal import Journal
from routing.gateway.journal_file import PROGRESS
from routing.store.client import NOT_SENT, Buckets
from routing.store.clock import StoreClock
from routing.store.reservations import (
    ENDED_BEFORE,
    EPOCH,
    LEASE_POS,
    LEASE_RESULTS,
    LEASE_STATE,
    NOT_AFTER_MS,
    NOW_MS,
    RENEWED,
    VERDICT,
    Reservations,
    lease_item,
)

log = logging.getLogger(__name__)

TICK_S: Final = 0.25
BEAT_S: Final = 5.0  # a third of the lease: two may be lost
POLL_S: Final = 1.0  # how often to ask for the ledger's position while rows are unacknowledged
BEATS_PER_CALL: Final = 500  # holds renewed by one script call: about 3 ms of the store
REGISTRATIONS_PER_CALL: Final = 100
CALLS_PER_TURN: Final = 20  # and the rest of a bucket with the next turn


class LeaseKeeper:
    """The lease script's side of one gateway: heartbeats, registration, questions.

    `opened(bucket)` runs when a bucket is ready and knows every reservation of ours, `use_gone`
    when a use of a resource was ended elsewhere (another gateway, or in time by the sweeper), and
    `use_lives` with each beat of one that runs.
    """

    def __init__(
        self,
        book: Book,
        reservations: Reservations,
        journal: Journal,
        clock: StoreClock,
        *,
        opened: Callable[[Bucket], None],
        use_gone: Callable[[Item], None],
        use_lives: Callable[[Item], None],
    ) -> None:
        """Hook into the store connection; `start` begins."""
        self._book = book
        self._reservations = reservations
        self._store = reservations.store
        self._journal = journal
        self._clock = clock
        self._opened = opened
        self._use_gone = use_gone
        self._use_lives = use_lives
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._store.on_connect.append(self._reconnected)

    def start(self) -> None:
        """Begin the turns."""
        self._turn()

    def stop(self) -> None:
        """End the turns."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def poll_soon(self) -> None:
        """Ask for the ledger's position with the next turn, not only when it is due."""
        for number in self._book.active:
            self._book.buckets[number].next_poll_s = 0.0

    def register_soon(self, bucket: Bucket) -> None:
        """The bucket's epoch may have changed: make our reservations known at once."""
        if bucket.items and not bucket.leases_in_flight:
            self._visit(bucket, self._loop.time())

    def tell(self, bucket: Bucket, item: Item) -> None:
        """Its `info` has changed: whoever sweeps it must know. Lost on the way, it goes again."""
        item.is_told = False
        if self._store.serves(bucket.number) and not bucket.must_register:
            self._send(bucket, [item], 1, is_registration=False)

    def _reconnected(self, numbers: Buckets) -> None:
        """Another socket, perhaps another server: ask each bucket before settling anything."""
        active = [number for number in numbers if number in self._book.active]
        for number in active:
            self._book.closed(self._book.buckets[number])
        now_s = self._loop.time()
        for number in active:
            self._visit(self._book.buckets[number], now_s)

    def _turn(self) -> None:
        self._timer = self._loop.call_later(TICK_S, self._turn)
        if not self._store.is_ready:
            return
        now_s = self._loop.time()
        for number in tuple(self._book.active):
            bucket = self._book.buckets[number]
            if not self._store.serves(number):
                continue
            if not bucket.leases_in_flight:
                self._visit(bucket, now_s)
            if bucket.unsettled and bucket.is_open and not bucket.must_register:
                self._opened(bucket)

    def _visit(self, bucket: Bucket, now_s: float) -> None:
        if bucket.must_register:
            unknown = self._book.to_register(bucket)
            self._send(bucket, unknown, REGISTRATIONS_PER_CALL, is_registration=True)
        elif now_s >= bucket.next_beat_s:
            bucket.next_beat_s = now_s + BEAT_S
            live = [
                item
                for item in bucket.items.values()
                if item.stage is Stage.LIVE and not item.is_gone
            ]
            self._note_progress(live)
            self._send(bucket, live, BEATS_PER_CALL, is_registration=False)
        elif (bucket.told and now_s >= bucket.next_poll_s) or not bucket.is_open:
            self._send(bucket, [], BEATS_PER_CALL, is_registration=False)
        else:
            return
        bucket.next_poll_s = now_s + POLL_S

    def _send(
        self, bucket: Bucket, items: Sequence[Item], per_call: int, *, is_registration: bool
    ) -> None:
        not_after_ms = self._clock.now_ms() + NOT_AFTER_MS
        most = max(1, min(len(items), per_call * CALLS_PER_TURN))
        for start in range(0, most, per_call):
            chunk = items[start : start + per_call]
            bucket.leases_in_flight += 1
            self._reservations.lease(
                bucket=bucket.number,
                not_after_ms=not_after_ms,
                items=[_wire_item(item, is_registration=is_registration) for item in chunk],
                done=partial(self._answered, bucket, chunk, not_after_ms),
            )

    def _answered(
        self, bucket: Bucket, items: Sequence[Item], not_after_ms: int, reply: object
    ) -> None:
        bucket.leases_in_flight -= 1
        if not isinstance(reply, list):
            if isinstance(reply, hiredis.ReplyError):
                log.warning("lease call failed: %s", reply)
            if reply is not NOT_SENT:
                self._book.unsure_until(not_after_ms)
            return
        self._clock.observe(reply[NOW_MS])
        verdict = reply[VERDICT]
        if verdict == b"OK":
            self._renewed(bucket, items, reply)
        elif verdict == b"REBUILD":
            self._book.closed(bucket)

    def _renewed(self, bucket: Bucket, items: Sequence[Item], reply: list[Any]) -> None:
        epoch, pos, results = reply[EPOCH], reply[LEASE_POS], reply[LEASE_RESULTS]
        for item, result in zip(items, results, strict=True):
            if result == RENEWED:
                item.hold.epoch = epoch
            elif result == ENDED_BEFORE:
                item.is_gone = True
                if item.hold.expires_at_ms:
                    self._use_gone(item)
            else:
                item.hold.epoch = UNKNOWN_EPOCH  # the store wants its legs: register it
        self._book.observe(bucket, epoch, pos)
        bucket.is_open = reply[LEASE_STATE] == b"ready"
        if bucket.leases_in_flight:
            return
        for item in items:
            item.is_told = True  # what was sent last of it was answered last
        bucket.must_register = bool(self._book.to_register(bucket))
        if bucket.must_register:
            self._visit(bucket, self._loop.time())
        elif bucket.is_open:
            self._opened(bucket)

    def _note_progress(self, live: Sequence[Item]) -> None:
        for item in live:
            if item.hold.expires_at_ms:
                self._use_lives(item)
            if item.hold.out_so_far > item.noted_out:
                item.noted_out = item.hold.out_so_far
                self._journal.append(PROGRESS, (item.hold.request_id, item.noted_out))


def _wire_item(item: Item, *, is_registration: bool) -> tuple[object, ...]:
    hold = item.hold
    if is_registration:
        return lease_item(
            hold.request_id, hold.out_so_far, hold.epoch, item.info, hold.legs, hold.expires_at_ms
        )
    info = None if item.is_told else item.info
    return lease_item(hold.request_id, hold.out_so_far, hold.epoch, info, None, hold.expires_at_ms)

"""Ends reservations, each exactly once: journal, settle, resend until the ledger has the row."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import hiredis
import msgspec

from routing.contracts.enums import SettleKind, StoreMode
from routing.contracts.usage import (
    ShapeRow,
    UsageEvent,
    charge_of,
    decode_hold_info,
)
from routing.decision.limits import amounts_in_order
from routing.decision.lost import lost_event, void_event
from routing.decision.types import Hold
from routing.gateway.buckets import MAX_UNACKED, Book, Bucket, Item, Stage
from routing.gateway.journal import Journal
from routing.gateway.journal_file import END, OPEN, Unfinished
from routing.gateway.leases import LeaseKeeper
from routing.gateway.once import is_remembered
from routing.gateway.recovered import event_with_legs, recovered_item
from routing.gateway.shapes import ShapeOutbox
from routing.gateway.write_gate import WriteGate
from routing.store.client import StoreAwayError
from routing.store.clock import StoreClock
from routing.store.plans import decode_legs
from routing.store.reservations import (
    ENTRY,
    EPOCH,
    NOW_MS,
    SETTLE_POS,
    VERDICT,
    Reservations,
)

log = logging.getLogger(__name__)

SETTLE_DELAY_S: Final = 0.002  # settles leave with the next reserve, or after this
RESEND_PER_TURN: Final = 500  # settles of one bucket sent again in one go: about 30 ms of the store
WARN_EVERY_S: Final = 1.0
ACK_WAIT_S: Final = 2.0  # a stopping gateway's patience with the ledger; the journal keeps the rest

_encode_json: Final = msgspec.json.Encoder().encode


class Accountant:
    """Everything that happens to a reservation after its hold.

    Construct in the loop: `Accountant(reservations, journal, clock)` where `reservations` is
    `Reservations(store)`, `journal` is open or about to be, and `clock` is the store
    connection's. `start(journal.open())` settles what earlier runs left and begins the heartbeats;
    `await drain(timeout_s)`, then `stop()` and `journal.close()` end it. All methods run in the
    loop and none blocks.
    """

    def __init__(self, reservations: Reservations, journal: Journal, clock: StoreClock) -> None:
        """Hook into the store connection; send nothing yet."""
        self._reservations = reservations
        self._store = reservations.store
        self._journal = journal
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._ending: list[Item] = []
        self._timer: asyncio.TimerHandle | None = None
        self._live_count = 0
        self._use_count = 0  # uses of resources: no request runs, so a drain does not wait for them
        self._warn_from_s = 0.0
        self._idle = asyncio.Event()
        self.book = Book(journal)
        self.gate = WriteGate(journal)
        self.shapes = ShapeOutbox(self._store)
        self.leases = LeaseKeeper(
            self.book,
            reservations,
            journal,
            clock,
            opened=self._resend,
            use_gone=self._end_gone,
            use_lives=self._restate,
        )

    @property
    def pending(self) -> int:
        """Ended reservations whose rows are not known to be in the ledger."""
        return self.book.size - self._live_count - self._use_count

    @property
    def live(self) -> int:
        """Reservations of requests still running."""
        return self._live_count

    @property
    def is_full(self) -> bool:
        """True when so many ends are unacknowledged that nothing more may be admitted."""
        return self.book.size >= MAX_UNACKED

    def start(self, recovered: list[Unfinished]) -> None:
        """Take over what the journal holds of earlier runs, then keep leases and shapes going."""
        now_ms = self._clock.now_ms()
        for found in recovered:
            item = recovered_item(found, now_ms)
            if item is None:
                log.error("journal record of %s cannot be read; it stays", found.request_id)
                continue
            self.book.add(item)
            bucket = self.book.buckets[item.hold.bucket]
            bucket.must_register = True
            if item.hold.is_ended:
                self.book.not_settled(item)
            else:
                self._use_count += 1
        self.leases.start()
        self.shapes.start()

    def stop(self) -> None:
        """No more heartbeats; what is not settled waits in the journal for the next start."""
        self.flush()
        self._reservations.batches.send_all()
        self.leases.stop()
        self.shapes.stop()

    # -- the request's side

    def adopt(self, hold: Hold, info: bytes, plan: msgspec.Raw | None = None) -> int | None:
        """Begin to look after a hold; the journal's sequence of its open record, or None.

        `plan` (a `Plan`'s `raw`): the hold's legs come of it and of its amounts.
        """
        item = Item(hold, info)
        item.plan = plan
        self.book.add(item)
        self._count_live(hold, 1)
        sequence = self._journal.append(
            OPEN, (hold.request_id, hold.bucket, hold.epoch, info, hold.legs)
        )
        if sequence is not None:
            item.file_number = self._journal.claim()
        return sequence

    def end(
        self,
        hold: Hold,
        event: UsageEvent,
        *,
        answer: bytes = b"",
        done: Callable[[], None] | None = None,
    ) -> None:
        """The request has ended with this usage; leave `event.legs` empty, they are added here.

        Repeating it does nothing. The settle leaves with the next reserve or within
        `SETTLE_DELAY_S`; at once when it frees a concurrency or KV limit. With an idempotency key,
        `answer` is remembered (sealed; empty: too large) and the caller is answered when `done`
        runs: what it has seen is then never charged again, unless the store was lost meanwhile.
        """
        item = self._close(hold, SettleKind.SETTLED)
        if item is None:
            if done is not None:
                done()
            return
        item.usage = event
        if hold.once:
            is_kept = hold.expires_at_ms or is_remembered(item.kind, event.status)
            item.answer = answer if is_kept else None
            item.told, done = done, None
        self._queue(item)
        if done is not None:
            done()

    def reopen(self, item: Item) -> bool:
        """Whether a use may be ended: it runs, or its end as not settled is told, not acked."""
        if item.stage is Stage.TOLD and item.hold.expires_at_ms:
            self.book.buckets[item.hold.bucket].told.remove(item)
            item.stage = Stage.LIVE
            item.hold.is_ended = False
            self._count_live(item.hold, 1)
        return item.stage is Stage.LIVE

    def void(
        self,
        hold: Hold,
        *,
        code: str = "",
        http_status: int = 0,
        event: UsageEvent | None = None,
        done: Callable[[], None] | None = None,
    ) -> None:
        """The request was reserved, but nothing was sent: charge nothing, leave a zero row.

        Refuse the caller only when `done` runs: its record is then written (or the disk is behind).
        `event` replaces the row made from `code` and `http_status`.
        """
        item = self._close(hold, SettleKind.VOID)
        if item is None:
            if done is not None:
                done()
            return
        item.usage = event or void_event(
            decode_hold_info(item.info),
            code=code,
            http_status=http_status,
            ended_at_ms=self._clock.now_ms(),
        )
        sequence = self._record_end(item)
        self._queue(item)
        if done is not None:
            self.gate.wait(sequence, lambda _: done())

    def serves(self, hold: Hold, info: bytes) -> None:
        """Another model serves it from now on: whoever ends it for us must charge that one's price.

        `info` is its whole description, again encoded.
        """
        bucket = self.book.buckets[hold.bucket]
        item = bucket.items.get(hold.request_id)
        if item is None or item.info == info:
            return
        item.info = info
        self._rewrite(item)
        self.leases.tell(bucket, item)

    def shape(self, row: ShapeRow) -> None:
        """Leave a request's shape; rows travel in batches and never hold a request up."""
        self.shapes.add(row)

    def flush(self) -> None:
        """Send the settles that wait: before a reserve, so that what has ended is free again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ending, self._ending = self._ending, []
        for item in ending:
            self._record_end(item)
            self._settle_or_keep(item)

    async def drain(self, timeout_s: float) -> int:
        """Wait until every end is settled and, for `ACK_WAIT_S`, in the ledger.

        Returns how many reservations are left; the journal holds them.
        """
        self.flush()
        give_up_s = self._loop.time() + timeout_s
        settled_s: float | None = None
        while self.book.size and (left_s := give_up_s - self._loop.time()) > 0:
            if any(self.book.buckets[n].unsettled for n in self.book.active) or self._live_count:
                settled_s = None
            elif settled_s is None:
                settled_s = self._loop.time()
            elif self._loop.time() - settled_s > ACK_WAIT_S:
                break
            self.leases.poll_soon()
            await asyncio.sleep(min(left_s, 0.05))
        return self.book.size

    # -- settling

    def _close(self, hold: Hold, kind: SettleKind) -> Item | None:
        if hold.is_ended:
            return None
        hold.is_ended = True
        item = self.book.buckets[hold.bucket].items.get(hold.request_id)
        if item is None:
            return None
        self._count_live(hold, -1)
        item.kind = kind
        item.stage = Stage.ENDED
        return item

    def _count_live(self, hold: Hold, change: int) -> None:
        if hold.expires_at_ms:
            self._use_count += change
        else:
            self._live_count += change

    def _end_gone(self, item: Item) -> None:
        """Its row is in the stream already: this end changes nothing, but gets it acked."""
        if self._close(item.hold, SettleKind.RECOVERED) is None:
            return
        item.usage = lost_event(
            decode_hold_info(item.info), out_so_far=0, elapsed_s=0, ended_at_ms=self._clock.now_ms()
        )
        self._queue(item)

    def _restate(self, item: Item) -> None:
        """A long use must not keep old journal files from going."""
        if item.file_number is not None and self._journal.is_old(item.file_number):
            self._rewrite(item)

    def _rewrite(self, item: Item) -> None:
        """Write its open record anew: the last one counts."""
        hold, old = item.hold, item.file_number
        sequence = self._journal.append(
            OPEN, (hold.request_id, hold.bucket, hold.epoch, item.info, hold.legs)
        )
        if sequence is None:
            return
        item.file_number = self._journal.claim()
        if old is None:
            return

        def written(is_written: bool) -> None:
            if is_written:
                self._journal.release(old)
            else:
                self.gate.wait(sequence, written)

        self.gate.wait(sequence, written)

    def _queue(self, item: Item) -> None:
        self._ending.append(item)
        if item.hold.has_gauge_limit or item.hold.once:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(SETTLE_DELAY_S, self._flush_late)

    def _flush_late(self) -> None:
        self._timer = None
        self.flush()

    def _record_end(self, item: Item) -> int | None:
        """Fix charge and event, and write them down."""
        event, item.usage = item.usage, None
        if event is None:
            return None  # it is written down already
        hold = item.hold
        item.charge = charge_of(item.kind, event)
        item.event = event_with_legs(event, hold.legs)
        bucket = self.book.buckets[hold.bucket]
        if hold.mode is StoreMode.DEGRADED and bucket.shares is not None:
            for _, suffix, _, taken in decode_legs(hold.legs):
                for dimension, amount in zip(taken[::2], taken[1::2], strict=True):
                    unused = int(amount) - item.charge.get(str(dimension), 0)
                    bucket.shares.give_back((suffix, str(dimension)), unused)
        sequence = self._journal.append(
            END, (hold.request_id, item.kind, item.charge, item.event, hold.legs)
        )
        if sequence is not None and item.file_number is None:
            item.file_number = self._journal.claim()
        return sequence

    def _settle_or_keep(self, item: Item) -> None:
        bucket = self.book.buckets[item.hold.bucket]
        if self._may_settle(bucket):
            self._settle(item)
        else:
            self._tell(item)
            self.book.not_settled(item)

    def _tell(self, item: Item) -> None:
        """Its caller need not wait longer; an answer that did not get through is not sent again."""
        told, item.told = item.told, None
        if item.answer and not item.hold.expires_at_ms:
            item.answer = b""
        if told is not None:
            told()

    def _may_settle(self, bucket: Bucket) -> bool:
        return (
            bucket.is_open
            and not bucket.must_register
            and self._store.serves(bucket.number)
            and self._clock.now_ms() > self.book.quiet_until_ms
        )

    def _settle(self, item: Item) -> None:
        hold = item.hold
        item.stage = Stage.SENT
        self._reservations.settle(
            bucket=hold.bucket,
            request_id=hold.request_id,
            res_epoch=hold.epoch,
            kind=item.kind,
            charge=item.charge,
            event=item.event,
            legs=hold.legs,
            done=partial(self._settled, item),
            plan=item.plan,
            amounts=amounts_in_order(hold.amounts),
            once=hold.once,
            tenant_id=hold.tenant_id,
            answer=item.answer,
            task=(hold.task, hold.task_step) if hold.task else None,
        )

    def _settled(self, item: Item, reply: object) -> None:
        if item.hold.once:
            self._tell(item)
        book = self.book
        bucket = book.buckets[item.hold.bucket]
        if isinstance(reply, list):
            self._clock.observe(reply[NOW_MS])
            if reply[VERDICT] == b"OK":
                bucket.is_read_only = False
                book.observe(bucket, reply[EPOCH], reply[SETTLE_POS])
                book.told(bucket, item, reply[ENTRY])
                return
            book.closed(bucket)
        elif isinstance(reply, hiredis.ReplyError):
            self._warn(item, reply)
        elif not isinstance(reply, StoreAwayError):
            log.error("settle of %s got no answer that makes sense", item.hold.request_id)
        book.not_settled(item)

    def _warn(self, item: Item, error: hiredis.ReplyError) -> None:
        """One line a second at most: a store that takes no writes fails every settle, again."""
        if self._loop.time() >= self._warn_from_s:
            self._warn_from_s = self._loop.time() + WARN_EVERY_S
            log.warning("settle of %s failed: %s", item.hold.request_id, error)

    def _resend(self, bucket: Bucket) -> None:
        """The bucket is open and knows our reservations: settle what waits."""
        if not (bucket.is_full or bucket.is_read_only):
            self.book.served(bucket)
        if not self._may_settle(bucket):
            return
        waiting = list(bucket.unsettled.values())[:RESEND_PER_TURN]
        for item in waiting:
            del bucket.unsettled[item.hold.request_id]
            self._settle(item)

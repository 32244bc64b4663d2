"""What a gateway knows of each counter bucket, and of each reservation until it is acknowledged.

A reservation is acknowledged when the store answered its settle with `(epoch, entry)` and a later
reply of the same epoch shows `pos >= entry`: then its row is committed. A new epoch before that
takes the answer back, and it is registered and settled again.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import msgspec

from routing.contracts.enums import SettleKind
from routing.contracts.usage import UsageEvent
from routing.decision.shares import Shares
from routing.decision.types import Hold
from routing.gateway.journal import Journal
from routing.store.keys import BUCKETS

EntryId = tuple[int, int]
NO_ENTRY: Final = (0, 0)
UNKNOWN_EPOCH: Final = 0
MAX_UNACKED: Final = (
    200_000  # about 300 MB: the ledger is far behind, admit as if the store was away
)


class Stage(IntEnum):
    """Where a reservation stands: running, to be settled, settle sent, settle answered."""

    LIVE = 0
    ENDED = 1
    SENT = 2
    TOLD = 3


class Item:
    """One reservation of this gateway, from its hold to its acknowledgement.

    `info` is the encoded `HoldInfo`; `kind`, `charge` and `event` (JSON) exist once it has ended.
    `hold.epoch` is the epoch of its last registration. `file_number` is the journal file it claims.
    `answer` (with an idempotency key, once ended): None frees the key. `told` runs when the store
    has answered the settle, or cannot. `is_told` is False while the store has an older `info`.
    """

    __slots__ = (
        "answer",
        "charge",
        "entry",
        "event",
        "file_number",
        "hold",
        "info",
        "is_gone",
        "is_told",
        "kind",
        "noted_out",
        "plan",
        "stage",
        "told",
        "usage",
    )

    def __init__(self, hold: Hold, info: bytes) -> None:
        """A running reservation."""
        self.hold = hold
        self.info = info
        self.stage = Stage.LIVE
        self.is_gone = False  # the store has no hold any more: it was swept
        self.is_told = True
        self.noted_out = 0
        self.plan: msgspec.Raw | None = None  # what its legs come of, if its gateway knows
        self.kind = SettleKind.SETTLED
        self.charge: dict[str, int] = {}
        self.event = b""
        self.usage: UsageEvent | None = None
        self.entry = NO_ENTRY
        self.file_number: int | None = None
        self.answer: bytes | None = None
        self.told: Callable[[], None] | None = None


@dataclass(slots=True)
class Bucket:
    """One bucket as last seen. `epoch` 0: never seen. Instants are loop seconds.

    `is_open`: ready when last seen. `must_register`: nothing may be settled before its reservations
    are known in its present epoch. `shares` exists while it is served without the store.
    """

    number: int
    epoch: int = UNKNOWN_EPOCH
    is_open: bool = False
    must_register: bool = False
    pos: EntryId = NO_ENTRY
    raw_pos: bytes = b""
    items: dict[str, Item] = field(default_factory=dict)
    unsettled: dict[str, Item] = field(default_factory=dict)
    told: deque[Item] = field(default_factory=deque)
    leases_in_flight: int = 0
    next_beat_s: float = 0.0
    next_poll_s: float = 0.0
    is_full: bool = False  # its stream is: the ledger is behind
    is_read_only: bool = False  # the store refuses writes: only one that succeeds ends that
    away_since_s: float | None = None
    shares: Shares | None = None


def parse_entry(raw: bytes) -> EntryId:
    """A stream id `<ms>-<seq>` as numbers that compare. Raises `ValueError`."""
    millis, _, sequence = raw.partition(b"-")
    return int(millis), int(sequence or 0)


class Book:
    """All buckets and reservations of one gateway. Pure bookkeeping: it sends nothing.

    `quiet_until_ms` (store time): an unanswered command may still take effect until then, so
    nothing is settled before.
    """

    def __init__(self, journal: Journal) -> None:
        """Nothing known yet."""
        self._journal = journal
        self.buckets = tuple(Bucket(number) for number in range(BUCKETS))
        self.active: set[int] = set()
        self.size = 0
        self.quiet_until_ms = 0

    def add(self, item: Item) -> None:
        """Begin to track a reservation."""
        bucket = self.buckets[item.hold.bucket]
        if not bucket.items:
            self.active.add(bucket.number)
        bucket.items[item.hold.request_id] = item
        self.size += 1

    def observe(self, bucket: Bucket, epoch: int, raw_pos: bytes | None) -> None:
        """Take epoch and ledger position from a reply; acknowledges what they prove committed.

        `raw_pos` None: the reply did not say.
        """
        if epoch != bucket.epoch:
            self._turn_to(bucket, epoch)
        if raw_pos is not None and raw_pos != bucket.raw_pos:
            bucket.raw_pos = raw_pos
            bucket.pos = parse_entry(raw_pos)
        while bucket.told and bucket.told[0].entry <= bucket.pos:
            self._acknowledge(bucket, bucket.told.popleft())

    def told(self, bucket: Bucket, item: Item, entry: bytes) -> None:
        """The store has settled it as `entry` of the bucket's present epoch."""
        item.stage = Stage.TOLD
        item.entry = parse_entry(entry)
        bucket.told.append(item)

    def not_settled(self, item: Item) -> None:
        """Its settle was not sent, or not answered: it stays to be sent."""
        bucket = self.buckets[item.hold.bucket]
        if item.hold.request_id in bucket.items:
            item.stage = Stage.ENDED
            bucket.unsettled[item.hold.request_id] = item

    def closed(self, bucket: Bucket) -> None:
        """The bucket is being rebuilt: register before settling, once it can be asked again."""
        bucket.is_open = False
        bucket.must_register = True

    def served(self, bucket: Bucket) -> None:
        """The store answers for this bucket, which is ready: local shares end."""
        bucket.is_open = True
        bucket.is_full = bucket.is_read_only = False
        if not bucket.items:
            bucket.must_register = False
        if bucket.away_since_s is not None:
            bucket.away_since_s = None
            bucket.shares = None

    def unsure_until(self, not_after_ms: int) -> None:
        """A command went unanswered that may take effect until `not_after_ms` (store time)."""
        self.quiet_until_ms = max(self.quiet_until_ms, not_after_ms + 1)

    def to_register(self, bucket: Bucket) -> list[Item]:
        """Reservations that the present epoch does not know.

        Not those whose settle is under way or answered: registered behind it, they would hold again
        what has ended, until the sweeper finds them.
        """
        return [
            item
            for item in bucket.items.values()
            if item.hold.epoch != bucket.epoch and item.stage in (Stage.LIVE, Stage.ENDED)
        ]

    def _turn_to(self, bucket: Bucket, epoch: int) -> None:
        bucket.epoch = epoch
        bucket.raw_pos = b""
        bucket.pos = NO_ENTRY
        bucket.next_beat_s = 0.0
        while bucket.told:
            self.not_settled(bucket.told.popleft())
        for item in bucket.items.values():
            item.is_gone = False
        bucket.must_register = bool(self.to_register(bucket))

    def _acknowledge(self, bucket: Bucket, item: Item) -> None:
        del bucket.items[item.hold.request_id]
        self.size -= 1
        if not bucket.items:
            self.active.discard(bucket.number)
        if item.file_number is not None:
            self._journal.release(item.file_number)

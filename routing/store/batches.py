"""Reserves and settles that share one script call.

What a gateway asks in one turn of its loop leaves as one call; while `MAX_CALLS` are under way,
what comes gathers for the next (group commit). So a lone request waits for nobody, and the busier
the store, the less each request costs it.

A call lies on one server: in a cluster it is of one bucket, else of all. Settles go before
reserves, so that what has ended is free again. The scripts decide items in order, each as if it
were alone; buckets know nothing of each other, so items of one bucket stand side by side, in their
order. An error, or no reply, is every item's.
"""

from functools import partial
from operator import itemgetter
from typing import Final, TypeVar

from routing.store import keys
from routing.store.calls import ReserveItem, SettleItem, reserve_argument, settle_argument
from routing.store.client import NOT_SENT, Callback
from routing.store.cluster import Store
from routing.store.scripts import RESERVE, SETTLE, Script
from routing.store.wire import wire_key

MOST_PER_CALL: Final = 64  # about 2 ms of the store; two thirds of the gain are had at 16
MAX_CALLS: Final = 4  # of one group under way: one at work, the others on their way to and from it
MAX_WAITING: Final = 8_192  # items of one group; above it they count as not sent

_Waiting = TypeVar("_Waiting", bound=tuple[int, object, Callback])
_BUCKET: Final = itemgetter(0)
META_KEYS: Final = tuple(wire_key(keys.bucket_meta(bucket)) for bucket in range(keys.BUCKETS))


class Batches:
    """The items of one gateway that wait for their call, by the server that will decide them."""

    def __init__(self, store: Store) -> None:
        """Nothing is sent before the first item."""
        self.store = store
        self.most_per_call = MOST_PER_CALL
        self.max_calls = MAX_CALLS
        self._groups: dict[int, _Group] = {}

    def reserve(self, bucket: int, item: ReserveItem, done: Callback) -> None:
        """`done` gets this item's reply, a `hiredis.ReplyError`, `NOT_SENT` or `NO_REPLY`."""
        group = self._group(bucket)
        if group.has_room(done):
            group.reserves.append((bucket, item, done))

    def settle(self, bucket: int, item: SettleItem, done: Callback) -> None:
        """As `reserve`."""
        group = self._group(bucket)
        if group.has_room(done):
            group.settles.append((bucket, item, done))

    def send(self, bucket: int) -> None:
        """Send what waits for this bucket's server: a command that must come later follows."""
        group = self._groups.get(self.store.group_of(bucket))
        if group is not None:
            group.send_all()

    def send_all(self) -> None:
        """Send all that waits: nobody will come for it later."""
        for group in self._groups.values():
            group.send_all()

    def _group(self, bucket: int) -> "_Group":
        number = self.store.group_of(bucket)
        group = self._groups.get(number)
        if group is None:
            group = self._groups[number] = _Group(self, bucket)
        return group


class _Group:
    """What waits for one server, and how many calls it has under way."""

    __slots__ = ("_batches", "_bucket", "_calls", "_is_due", "reserves", "settles")

    def __init__(self, batches: Batches, bucket: int) -> None:
        self._batches = batches
        self._bucket = bucket  # any of the group: it names the server
        self._calls = 0
        self._is_due = False
        self.reserves: list[tuple[int, ReserveItem, Callback]] = []
        self.settles: list[tuple[int, SettleItem, Callback]] = []

    def has_room(self, done: Callback) -> bool:
        """Make a call due for one item more; False when it is turned away."""
        if len(self.reserves) + len(self.settles) >= MAX_WAITING:
            done(NOT_SENT)
            return False
        self._send_soon()
        return True

    def send_all(self) -> None:
        """Send all that waits, however many calls are under way."""
        while self.settles or self.reserves:
            self._send_most()

    def _send(self) -> None:
        self._is_due = False
        while self._calls < self._batches.max_calls and (self.settles or self.reserves):
            self._send_most()

    def _send_most(self) -> None:
        batches, most = self._batches, self._batches.most_per_call
        run_id = batches.store.run_id_of(self._bucket)
        if self.settles:
            ending, self.settles = _next(self.settles, most)
            argument = settle_argument(run_id, [item for _, item, _ in ending])
            self._call(SETTLE, argument, [done for _, _, done in ending])
        if self.reserves and not self.settles:
            asking, self.reserves = _next(self.reserves, most)
            argument = reserve_argument(run_id, [item for _, item, _ in asking])
            self._call(RESERVE, argument, [done for _, _, done in asking])

    def _call(self, script: Script, argument: bytes, dones: list[Callback]) -> None:
        self._calls += 1
        answered = partial(self._answered, dones)
        self._batches.store.script(script, META_KEYS[self._bucket], argument, answered)

    def _answered(self, dones: list[Callback], reply: object) -> None:
        self._calls -= 1
        if isinstance(reply, list):
            for done, one in zip(dones, reply, strict=True):
                done(one)
        else:
            for done in dones:
                done(reply)
        if self.settles or self.reserves:
            self._send_soon()

    def _send_soon(self) -> None:
        if not self._is_due and self._calls < self._batches.max_calls:
            self._is_due = True
            self._batches.store.soon(self._bucket, self._send)


def _next(waiting: list[_Waiting], most: int) -> tuple[list[_Waiting], list[_Waiting]]:
    """Those of the next call, side by side by bucket, and the rest."""
    if len(waiting) == 1:
        return waiting, []
    taken = waiting[:most]
    taken.sort(key=_BUCKET)  # keeps the order within a bucket
    return taken, waiting[most:]

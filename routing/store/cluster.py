"""A cluster's masters as one store for the gateway: each bucket and key at its own master.

A bucket whose master changes is a lost store: its counters may be older than what was answered. So
a script that is redirected is never sent on (its `run_id` is the old master's): it counts as not
run, the bucket is served from local shares, and it comes back under a new epoch. A master that
fails takes its own buckets with it and no others. Plain commands follow redirections, `REDIRECTS`
times at most.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final

import hiredis

from routing.store.address import (
    BUCKET_SLOTS,
    SLOTS,
    ClusterAddress,
    Node,
    cluster_of,
    masters_in,
    slot_of,
)
from routing.store.client import (
    NOT_SENT,
    Buckets,
    Callback,
    Hook,
    StoreAwayError,
    StoreConnection,
    into,
)
from routing.store.clock import StoreClock
from routing.store.keys import BUCKETS
from routing.store.listener import NudgeListener
from routing.store.scripts import Script

log = logging.getLogger(__name__)

REDIRECTS: Final = 3
TRY_AGAIN_S: Final = 0.05  # a slot on its way takes a few of these
REFRESH_S: Final = 5.0  # slots that moved without a word to us
REFRESH_SOON_S: Final = 0.1  # after a redirection or a loss; bounds what a storm of them asks
SKEW_WARN_MS: Final = 500  # masters share one estimate of the time, so their clocks must agree
# Nothing has run when the server answers with one of these.
_NOT_RUN: Final = ("MOVED ", "ASK ", "TRYAGAIN", "CLUSTERDOWN")

Send = Callable[[StoreConnection, Callback], None]


class ClusterStore:
    """`StoreConnection`'s surface over the masters of a cluster.

    `on_connect` and `on_lost` run with the buckets that came or went. Masters are learned from
    those that `address` names, and again when one of them says that a slot has moved.
    """

    def __init__(self, address: ClusterAddress, *, name: str, clock: StoreClock) -> None:
        """Connect nothing yet; see `start`."""
        self._address = address
        self._name = name
        self.clock = clock
        self._loop = asyncio.get_running_loop()
        self._nodes: dict[Node, StoreConnection] = {}
        self._owners: list[Node | None] = [None] * SLOTS
        self._buckets: list[StoreConnection | None] = [None] * BUCKETS
        self._slots: dict[bytes, int] = {}  # of the buckets' keys, as scripts name them
        self._served: set[int] = set()
        self._keeper: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._ready = asyncio.Event()
        self.on_connect: list[Hook] = []
        self.on_lost: list[Hook] = []

    @property
    def is_ready(self) -> bool:
        """True while commands for some bucket are accepted."""
        return bool(self._served)

    @property
    def is_split(self) -> bool:
        """Part of the store is away."""
        return 0 < len(self._served) < BUCKETS

    @property
    def pending(self) -> int:
        """Commands sent whose reply has not come."""
        return sum(node.pending for node in self._nodes.values())

    def serves(self, bucket: int) -> bool:
        """True while commands for this bucket are accepted."""
        return bucket in self._served

    def run_id_of(self, bucket: int) -> str:
        """The id of the server process that holds this bucket; empty while none is known."""
        node = self._buckets[bucket]
        return "" if node is None else node.run_id

    def group_of(self, bucket: int) -> int:
        """Each bucket is its own group: a script's keys lie in one slot."""
        return bucket

    def soon(self, bucket: int, prepare: Callable[[], None]) -> None:
        """As `StoreConnection.soon`, with the next write to the bucket's master."""
        node = self._buckets[bucket]
        if node is None:
            self._loop.call_soon(prepare)
        else:
            node.soon(bucket, prepare)

    def start(self) -> None:
        """Begin connecting in the background."""
        if self._keeper is None:
            for seed in self._address.seeds:
                self._node(seed)
            self._keeper = self._loop.create_task(self._keep_known())

    async def wait_ready(self, timeout_s: float) -> bool:
        """Wait until every bucket is served; False when `timeout_s` passes first."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Drop every socket (waiting callbacks get `NO_REPLY`) and stop reconnecting."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        for node in list(self._nodes.values()):
            await node.close()

    # -- commands

    def command(self, *args: bytes | str | int | float, callback: Callback | None = None) -> None:
        """As `StoreConnection.command`; the first argument of the command must be its key."""
        key = args[1]
        slot = slot_of(key if isinstance(key, bytes) else str(key).encode())
        self._send(slot, lambda node, cb: node.command(*args, callback=cb), callback or _drop, 0)

    def script(self, script: Script, key: bytes, argument: bytes, callback: Callback) -> None:
        """As `StoreConnection.script`; a redirected one counts as not run."""
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = slot_of(key)
        owner = self._owners[slot]
        node = None if owner is None else self._nodes.get(owner)
        if node is None:
            callback(NOT_SENT)
            return

        def check(reply: object) -> None:
            if isinstance(reply, hiredis.ReplyError) and str(reply).startswith(_NOT_RUN):
                self._wake.set()
                callback(NOT_SENT)
            else:
                callback(reply)

        node.script(script, key, argument, check)

    async def call(self, *args: bytes | str | int | float) -> object:
        """One command, awaited. Raises `StoreAwayError` or `hiredis.ReplyError`."""
        future: asyncio.Future[object] = self._loop.create_future()
        self.command(*args, callback=into(future))
        return await future

    def _send(self, slot: int, send: Send, callback: Callback, tries: int) -> None:
        owner = self._owners[slot]
        node = None if owner is None else self._nodes.get(owner)
        if node is None:
            callback(NOT_SENT)
        else:
            send(node, partial(self._answered, slot, send, callback, tries + 1))

    def _answered(
        self, slot: int, send: Send, callback: Callback, tries: int, reply: object
    ) -> None:
        text = str(reply) if isinstance(reply, hiredis.ReplyError) else ""
        if not text.startswith(_NOT_RUN):
            callback(reply)
            return
        self._wake.set()
        if tries > REDIRECTS or text.startswith("CLUSTERDOWN"):
            callback(NOT_SENT)
        elif text.startswith("TRYAGAIN"):
            self._loop.call_later(TRY_AGAIN_S, self._send, slot, send, callback, tries)
        else:
            kind, _, place = text.split(" ", 2)
            host, _, port = place.rpartition(":")
            node = self._node((host or self._address.seeds[0][0], int(port)))
            if kind == "ASK":
                node.command("ASKING")  # holds for the next command on this connection only
            send(node, partial(self._answered, slot, send, callback, tries))

    # -- who owns what

    def _node(self, place: Node) -> StoreConnection:
        node = self._nodes.get(place)
        if node is None:
            name, port = self._name, place[1]
            # A clock of its own: connecting to one master must not reset what others taught.
            clock = StoreClock(self._loop.time, self.clock.now_ms())
            node = StoreConnection(self._address.url_of(place), name=f"{name}-{port}", clock=clock)
            node.on_connect.append(lambda _: self._came(place))
            node.on_lost.append(lambda _: self._went(place))
            self._nodes[place] = node
            node.start()
        return node

    def _came(self, place: Node) -> None:
        node = self._nodes[place]
        skew_ms = node.clock.now_ms() - self.clock.now_ms()
        if not self._served:
            self.clock.reset(node.clock.now_ms())
        elif abs(skew_ms) > SKEW_WARN_MS:
            log.warning("the clock of master %s:%d is off by %d ms", *place, skew_ms)
        self._wake.set()
        self._compare()

    def _went(self, place: Node) -> None:
        self._wake.set()
        self._compare()

    def _compare(self) -> None:
        """Take over who serves which bucket now, and tell the hooks what that changes."""
        lost: list[int] = []
        came: list[int] = []
        for bucket, slot in enumerate(BUCKET_SLOTS):
            owner = self._owners[slot]
            node = None if owner is None else self._nodes.get(owner)
            is_served = node is not None and node.is_ready
            was_served = bucket in self._served
            if was_served and not (is_served and node is self._buckets[bucket]):
                lost.append(bucket)
                self._served.discard(bucket)
            self._buckets[bucket] = node
            if is_served and bucket not in self._served:
                came.append(bucket)
                self._served.add(bucket)
        if len(self._served) == BUCKETS:
            self._ready.set()
        else:
            self._ready.clear()
        self._tell(self.on_lost, lost)
        self._tell(self.on_connect, came)

    @staticmethod
    def _tell(hooks: list[Hook], buckets: Buckets) -> None:
        if buckets:
            for hook in hooks:
                hook(buckets)

    async def _keep_known(self) -> None:
        while True:
            self._wake.clear()
            await self._learn()
            await asyncio.sleep(REFRESH_SOON_S)
            try:
                async with asyncio.timeout(REFRESH_S):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _learn(self) -> None:
        """Ask masters in turn until one says who owns the slots."""
        for place, node in list(self._nodes.items()):
            if not node.is_ready:
                continue
            try:
                masters = masters_in(await node.call("CLUSTER", "SLOTS"), place)
            except (StoreAwayError, hiredis.ReplyError, ValueError, TypeError, IndexError) as error:
                log.warning("%s:%d does not say who owns the slots: %s", *place, error)
                continue
            if masters:
                self._take(masters)
                return

    def _take(self, masters: list[tuple[int, int, Node]]) -> None:
        owners: list[Node | None] = [None] * SLOTS
        for first, last, place in masters:
            owners[first : last + 1] = [place] * (last + 1 - first)
            self._node(place)
        self._owners = owners
        known = {place for _, _, place in masters} | set(self._address.seeds)
        for place in self._nodes.keys() - known:
            node = self._nodes.pop(place)
            self._loop.create_task(node.close())
        self._compare()


Store = StoreConnection | ClusterStore


def open_store(url: str, *, name: str, clock: StoreClock) -> Store:
    """The gateway's connection to the store that a URL names. Raises `AddressError`."""
    cluster = cluster_of(url)
    if cluster is None:
        return StoreConnection(url, name=name, clock=clock)
    return ClusterStore(cluster, name=name, clock=clock)


def open_nudges(
    url: str, *, name: str, clock: StoreClock, channel: str, heard: Callable[[bytes, bytes], None]
) -> list[NudgeListener]:
    """Who hears published messages: in a cluster every seed, for one of them may be away."""
    cluster = cluster_of(url)
    urls = [url] if cluster is None else [cluster.url_of(seed) for seed in cluster.seeds]
    return [
        NudgeListener(one, name=name, clock=clock, channel=channel, heard=heard) for one in urls
    ]


def _drop(reply: object) -> None:
    """Nobody waits for this one."""

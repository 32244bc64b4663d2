"""One reader of live state per console process, shared by all its sockets.

The collector publishes whole states and nudges; the hub reads a field when somebody watches it, at
most once a second, and wakes the sockets. So the store is asked per field, not per viewer, nothing
is queued for anybody, and a viewer that stands still costs one state. No channel layer is used: a
layer would carry one message per group and socket and drop them when full, while here the newest
state is all that a socket ever needs.

Without the store the last state stays, grows old in the viewers' eyes, and reading is tried again.
"""

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from routing.contracts.live import POOL, decode_live_pool, decode_live_slices
from routing.store import keys
from routing.store.pooled import async_client, subscriber
from telemetry.live.rules import Access, Query, State, View, source_of, view_of

log = logging.getLogger(__name__)

PERIOD_S = 1.0  # least time between two reads
UNNUDGED_S = 2.0  # a lost nudge costs this much
BACKOFF_S = (0.5, 1.0, 2.0, 5.0)
STOP_AGAIN_S = 0.5
STORE_TIMEOUT_S = 2.0
STATES_KEPT = 5  # the newest, and those that a viewer may resume from after a short break
VIEWS_MAX = 512  # views shared between sockets at one state; beyond, each is built for itself
_NUDGE = b"live"


@dataclass(slots=True)
class Hub:
    """The newest states, who watches which, and whom to wake."""

    redis_url: str
    states: dict[str, deque[State]] = field(default_factory=dict)
    wanted: Counter[str] = field(default_factory=Counter)
    sockets: Counter[int] = field(default_factory=Counter)  # by user
    _wakes: set[asyncio.Event] = field(default_factory=set)
    _views: dict[tuple[object, ...], View] = field(default_factory=dict)
    _read_at_s: dict[str, float] = field(default_factory=dict)
    _nudged: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self) -> None:
        """Begin reading, in the running loop. Harmless when it runs already."""
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._read_forever(), name="live-reader"),
                asyncio.create_task(self._listen_forever(), name="live-nudges"),
            ]

    async def stop(self) -> None:
        """Stop reading. Asks again: a client that is just connecting may swallow the first time."""
        pending, self._tasks = set(self._tasks), []
        while pending:
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=STOP_AGAIN_S)

    @contextlib.contextmanager
    def woken(self, wake: asyncio.Event) -> Iterator[None]:
        """Set `wake` whenever a watched state changed."""
        self._wakes.add(wake)
        try:
            yield
        finally:
            self._wakes.discard(wake)

    def watch(self, source: str) -> Callable[[], None]:
        """Have a field read; the returned function lets go of it."""
        self.wanted[source] += 1
        self._nudged.set()

        def release() -> None:
            self.wanted[source] -= 1
            if self.wanted[source] <= 0:
                del self.wanted[source]
                self.states.pop(source, None)

        return release

    def view(
        self, query: Query, access: Access, at: tuple[object, object] | None = None
    ) -> View | None:
        """The query's rows now, or at a kept `(epoch, seq)`; viewers alike share one.

        None: no state was read yet, or that one is not kept.
        """
        source = source_of(query, access)
        states = self.states.get(source, ())
        wanted = [s for s in states if at is None or (s.epoch, s.seq) == at]
        if not wanted:
            return None
        state = wanted[-1]
        tenants = None if access.tenants is None else tuple(sorted(access.tenants.items()))
        name = (source, query, access.sees_pools, tenants, state.epoch, state.seq)
        found = self._views.get(name)
        if found is None:
            found = view_of(state, query, access)
            if len(self._views) < VIEWS_MAX:
                self._views[name] = found
        return found

    async def _listen_forever(self) -> None:
        await self._forever(
            lambda turn: subscriber(self.redis_url, timeout_s=STORE_TIMEOUT_S, turn=turn),
            self._listen,
        )

    async def _read_forever(self) -> None:
        await self._forever(
            lambda _: async_client(self.redis_url, timeout_s=STORE_TIMEOUT_S), self._read_rounds
        )

    async def _forever(
        self, connect: Callable[[int], Redis], work: "Callable[[Redis], object]"
    ) -> None:
        failures = 0
        while True:
            store = connect(failures)
            began_s = asyncio.get_running_loop().time()
            try:
                await work(store)  # type: ignore[misc]
            except (RedisError, OSError) as error:
                lasted_s = asyncio.get_running_loop().time() - began_s
                failures = 0 if lasted_s > BACKOFF_S[-1] else failures + 1
                log.warning("live state: the store is away: %s", error)
                await asyncio.sleep(BACKOFF_S[min(failures, len(BACKOFF_S) - 1)])
            finally:
                with contextlib.suppress(RedisError, OSError):
                    await store.aclose()

    async def _listen(self, store: Redis) -> None:
        async with store.pubsub(ignore_subscribe_messages=True) as nudges:
            await nudges.subscribe(keys.NUDGES)
            while True:
                # Waits in slices below the socket's time limit: silence is not a failure.
                message = await nudges.get_message(timeout=PERIOD_S)
                if message is not None and message["data"] == _NUDGE:
                    self._nudged.set()

    async def _read_rounds(self, store: Redis) -> None:
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(UNNUDGED_S):
                    await self._nudged.wait()
            self._nudged.clear()
            now_s = loop.time()
            rests_s = {
                source: self._read_at_s.get(source, -PERIOD_S) + PERIOD_S - now_s
                for source in self.wanted
            }
            due = sorted(source for source, rest_s in rests_s.items() if rest_s <= 0)
            if due:
                self._read_at_s |= dict.fromkeys(due, now_s)
                await self._read(store, due)
            if len(due) < len(rests_s):  # these were read less than a period ago: once more then
                rest_s = min(rest_s for rest_s in rests_s.values() if rest_s > 0)
                loop.call_later(rest_s, self._nudged.set)

    async def _read(self, store: Redis, sources: list[str]) -> None:
        found = await store.hmget(keys.LIVE, sources)
        is_changed = False
        for source, raw in zip(sources, found, strict=True):
            state = _decoded(source, raw)
            if state is None or source not in self.wanted:
                continue
            kept = self.states.setdefault(source, deque(maxlen=STATES_KEPT))
            if not kept or (kept[-1].epoch, kept[-1].seq) != (state.epoch, state.seq):
                kept.append(state)
                is_changed = True
        if is_changed:
            self._views.clear()
            for wake in self._wakes:
                wake.set()


def _decoded(source: str, raw: bytes | str | None) -> State | None:
    if raw is None:
        return None
    data = raw.encode() if isinstance(raw, str) else raw
    try:
        return decode_live_pool(data) if source == POOL else decode_live_slices(data)
    except msgspec.MsgspecError:
        log.warning("live state %s cannot be read", source)
        return None

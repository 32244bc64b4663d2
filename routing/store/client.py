"""Connections to the store.

`StoreConnection` is the gateway's: one socket, one reader, replies to plain callbacks in the order
of the commands. Commands of one loop turn leave in one write. A connection whose oldest reply is
late is dropped with everything that waits on it; it is never used again, so no caller can receive
another's reply. Processes that may wait use `pooled.sync_client`.
"""

import asyncio
import hashlib
import logging
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import hiredis
import redis
from redis.connection import parse_url

from routing.store.clock import StoreClock
from routing.store.keys import BUCKETS, run_name
from routing.store.scripts import ALL, UNKNOWN_SCRIPT, Script, loading
from routing.store.wire import info_field, packed, script_call

log = logging.getLogger(__name__)

Callback = Callable[[object], None]
Buckets = Sequence[int]
Hook = Callable[[Buckets], None]

REPLY_TIMEOUT_S: Final = 0.8  # below the 1 s within which a refusal must be out
CONNECT_TIMEOUT_S: Final = 2.0
MAX_PENDING: Final = 8_192  # commands awaiting a reply: 0.8 s of a busy gateway
WRITE_LIMIT_BYTES: Final = 4 * 1024 * 1024  # unsent bytes above which new commands are refused
BACKOFF_FIRST_S: Final = 0.05
BACKOFF_LAST_S: Final = 1.0


class StoreAwayError(Exception):
    """No reply. `was_sent` tells "unsure" (it may have run) from "did not run"."""

    def __init__(self, *, was_sent: bool) -> None:
        super().__init__("no reply from the store" if was_sent else "not connected to the store")
        self.was_sent = was_sent


ALL_BUCKETS: Final = range(BUCKETS)

NOT_SENT: Final = StoreAwayError(was_sent=False)  # the command did not run
NO_REPLY: Final = StoreAwayError(was_sent=True)  # the command may or may not have run


class _Wire(asyncio.Protocol):
    """One socket of a `StoreConnection`, from connect to loss; never reused."""

    def __init__(self, owner: "StoreConnection") -> None:
        self.owner = owner
        self.reader = hiredis.Reader()
        self.waiting: deque[tuple[Callback | None, float]] = deque()
        self.transport: asyncio.Transport | None = None
        self.is_paused = False
        self.is_dropped = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=WRITE_LIMIT_BYTES)

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False

    def data_received(self, data: bytes) -> None:
        if self.is_dropped:
            return  # whatever it still says is nobody's
        reader, waiting = self.reader, self.waiting
        try:
            reader.feed(data)
            reply = reader.gets()
            while reply is not False:
                if waiting:
                    callback = waiting.popleft()[0]
                    if callback is not None:
                        callback(reply)
                elif not self.owner.hear(reply):
                    log.warning("store sent an unasked reply; dropping the connection")
                    self.drop()
                    return
                reply = reader.gets()
        except hiredis.ProtocolError:
            log.warning("store sent bytes that are no reply; dropping the connection")
            self.drop()

    def drop(self) -> None:
        self.is_dropped = True
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.owner.lost(self)


class StoreConnection:
    """The gateway's batching connection: reconnects until closed.

    Construct inside a running loop, then `start()`. `url` is `redis://`, `rediss://` or `unix://`
    with user, password and database number. `name` seeds the reconnect jitter and names the client
    at the server. After each connect `run_id` (the server process's id) is set, scripts are loaded,
    `clock` is set from the server and the hooks of `on_connect` run; after each loss those of
    `on_lost`, with the buckets that this server holds: all of them, unless `ClusterStore` has made
    it for one of its masters. Callbacks run in the loop and must not raise.
    """

    is_split = False  # part of the store away, part of it here: only a cluster can be

    def __init__(
        self,
        url: str,
        *,
        name: str,
        clock: StoreClock,
        reply_timeout_s: float = REPLY_TIMEOUT_S,
        max_pending: int = MAX_PENDING,
    ) -> None:
        """Connect nothing yet; see `start`."""
        self._address: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
        self._name = name
        self.clock = clock
        self._reply_timeout_s = reply_timeout_s
        self._max_pending = max_pending
        self._loop = asyncio.get_running_loop()
        self._out: list[bytes] = []
        self._preparing: list[Callable[[], None]] = []
        self._is_due = False  # the next turn of the loop writes
        self._wire: _Wire | None = None  # the socket that commands go to
        self._timer: asyncio.TimerHandle | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._ready = asyncio.Event()
        self._failures = 0
        self.run_id = ""
        self.connects = 0
        self.on_connect: list[Hook] = []
        self.on_lost: list[Hook] = []

    @property
    def is_ready(self) -> bool:
        """True while commands are accepted."""
        return self._wire is not None

    def serves(self, bucket: int) -> bool:
        """True while commands for this bucket are accepted."""
        return self._wire is not None

    def run_id_of(self, bucket: int) -> str:
        """The id of the server process that holds this bucket."""
        return self.run_id

    def group_of(self, bucket: int) -> int:
        """Buckets of the same group may share a script call: here all."""
        return 0

    @property
    def pending(self) -> int:
        """Commands sent whose reply has not come."""
        return 0 if self._wire is None else len(self._wire.waiting)

    def start(self) -> None:
        """Begin connecting in the background."""
        if self._keeper is None:
            self._keeper = self._loop.create_task(self._keep_connected())

    async def wait_ready(self, timeout_s: float) -> bool:
        """Wait until commands are accepted; False when `timeout_s` passes first."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Drop the socket (waiting callbacks get `NO_REPLY`) and stop reconnecting."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        if self._wire is not None:
            self._flush()
            wire = self._wire
            wire.drop()
            self.lost(wire)

    def command(self, *args: bytes | str | int | float, callback: Callback | None = None) -> None:
        """Queue one command.

        `callback` gets the reply, a `hiredis.ReplyError`, `NOT_SENT` (at once, did not run) or
        `NO_REPLY` (unsure). Without one the reply is dropped.
        """
        self._send(packed(args), callback)

    def script(self, script: Script, key: bytes, argument: bytes, callback: Callback) -> None:
        """Run a script with one key (`$<length>\\r\\n<key>\\r\\n` ready for the wire, `wire_key`).

        Forgotten scripts are sent again with their source: NOSCRIPT means that nothing ran.
        """

        def check(reply: object) -> None:
            if isinstance(reply, hiredis.ReplyError) and str(reply).startswith(UNKNOWN_SCRIPT):
                self._send(script_call(script.eval_head, key, argument), callback)
            else:
                callback(reply)

        self._send(script_call(script.evalsha_head, key, argument), check)

    async def call(self, *args: bytes | str | int | float) -> object:
        """One command, awaited. Raises `StoreAwayError` or `hiredis.ReplyError`."""
        future: asyncio.Future[object] = self._loop.create_future()
        self.command(*args, callback=into(future))
        return await future

    def soon(self, bucket: int, prepare: Callable[[], None]) -> None:
        """Run `prepare` once, with the next write: what it sends is written with it."""
        self._preparing.append(prepare)
        self._write_soon()

    def hear(self, reply: object) -> bool:
        """Take a reply that nobody waits for; False: the stream is out of step."""
        return False

    # -- sending

    def _send(self, raw: bytes, callback: Callback | None) -> None:
        wire = self._wire
        if wire is None or wire.is_paused or len(wire.waiting) >= self._max_pending:
            if callback is not None:
                callback(NOT_SENT)
            return
        self._write_soon()
        self._out.append(raw)
        wire.waiting.append((callback, self._loop.time() + self._reply_timeout_s))
        if self._timer is None:
            self._timer = self._loop.call_later(self._reply_timeout_s, self._check_deadline)

    def _write_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        preparing, self._preparing = self._preparing, []
        for prepare in preparing:
            prepare()
        self._is_due = bool(self._preparing)  # asked for meanwhile, by who was turned away
        if self._is_due:
            self._loop.call_soon(self._flush)
        out, self._out = self._out, []
        if out and self._wire is not None and self._wire.transport is not None:
            self._wire.transport.write(b"".join(out))

    def _check_deadline(self) -> None:
        """Drop the socket when its oldest command is late: replies come in order."""
        self._timer = None
        wire = self._wire
        if wire is None or not wire.waiting:
            return
        late_s = self._loop.time() - wire.waiting[0][1]
        if late_s >= 0:
            log.warning("store reply is late; dropping the connection")
            wire.drop()
            self.lost(wire)
        else:
            self._timer = self._loop.call_later(-late_s, self._check_deadline)

    # -- connecting

    def lost(self, wire: _Wire) -> None:
        """The socket is gone: whoever waits on it learns that it is unsure."""
        was_current = wire is self._wire
        if was_current:
            self._wire = None
            self._out = []
            self._ready.clear()
            self._wake.set()
        waiting, wire.waiting = wire.waiting, deque()
        for callback, _ in waiting:
            if callback is not None:
                callback(NO_REPLY)
        if was_current:
            for hook in self.on_lost:
                hook(ALL_BUCKETS)

    async def _keep_connected(self) -> None:
        while True:
            self._wake.clear()
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await self._connect()
            except (OSError, TimeoutError, StoreAwayError, hiredis.ReplyError) as error:
                if self._failures == 0:
                    log.warning("cannot reach the store: %s", error)
                await asyncio.sleep(self._backoff_s())
                continue
            self._failures = 0
            await self._wake.wait()

    def _backoff_s(self) -> float:
        """Doubling delay, 50% to 100% of it drawn from a hash so that gateways spread."""
        self._failures += 1
        full_s = min(BACKOFF_LAST_S, BACKOFF_FIRST_S * (1 << min(self._failures - 1, 10)))
        seed = hashlib.sha256(f"{self._name}:{self._failures}".encode()).digest()[0]
        return full_s * (0.5 + seed / 510)

    async def _connect(self) -> None:
        address = self._address
        wire = _Wire(self)
        if "path" in address:
            await self._loop.create_unix_connection(lambda: wire, address["path"])
        else:
            is_tls = address.get("connection_class") is redis.SSLConnection
            await self._loop.create_connection(
                lambda: wire,
                address.get("host", "localhost"),
                address.get("port", 6379),
                ssl=ssl.create_default_context() if is_tls else None,
            )
        try:
            await self._greet(wire)
        except BaseException:
            wire.drop()
            raise
        if wire.transport is None or wire.transport.is_closing():
            raise StoreAwayError(was_sent=True)
        self._wire = wire
        self.connects += 1
        self._ready.set()
        for hook in self.on_connect:
            hook(ALL_BUCKETS)

    async def _greet(self, wire: _Wire) -> None:
        """Sign in, choose the database, learn the server, load the scripts: one write."""
        address = self._address
        opening: list[tuple[bytes | str | int, ...]] = []
        if address.get("password"):
            user = (address["username"],) if address.get("username") else ()
            opening.append(("AUTH", *user, address["password"]))
        if address.get("db"):
            opening.append(("SELECT", address["db"]))
        opening.append(("CLIENT", "SETNAME", f"headrace-{self._name}"))
        opening.append(("INFO", "server"))
        opening += loading(*ALL)
        done: asyncio.Future[None] = self._loop.create_future()
        replies: list[object] = []

        def collect(reply: object) -> None:
            replies.append(reply)
            if done.done():
                return
            if isinstance(reply, StoreAwayError):
                done.set_exception(StoreAwayError(was_sent=True))
            elif isinstance(reply, hiredis.ReplyError):
                done.set_exception(reply)
            elif len(replies) == len(opening):
                done.set_result(None)

        for _ in opening:
            wire.waiting.append((collect, 0.0))
        if wire.transport is None:
            raise StoreAwayError(was_sent=True)
        wire.transport.write(b"".join(packed(one) for one in opening))
        await done
        info = next(reply for reply in replies if isinstance(reply, bytes) and b"run_id:" in reply)
        self.run_id = run_name(info_field(info, b"run_id:").decode())
        self.clock.reset(int(info_field(info, b"server_time_usec:")) // 1000)


def into(future: "asyncio.Future[object]") -> Callback:
    """A callback that ends a future with its reply, or with the error that it is."""

    def settle(reply: object) -> None:
        if future.done():
            return  # the caller was cancelled; its reply is dropped here, in step
        if isinstance(reply, StoreAwayError):
            future.set_exception(StoreAwayError(was_sent=reply.was_sent))
        elif isinstance(reply, hiredis.ReplyError):
            future.set_exception(reply)
        else:
            future.set_result(reply)

    return settle

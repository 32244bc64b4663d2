"""The live socket: subscriptions in, snaps and ticks out.

A socket holds one state per subscription and no queue: when it wakes it brings the viewer's copy to
the newest state, however many were published meanwhile. Access is read again every few seconds and
frames stop when it could not be.

A viewer that does not take a frame in `DRAIN_S` is closed. Kernels and browsers hold megabytes
before a send waits, so a viewer that answers beats (our page does) is also closed when it leaves
one unanswered that long.

Messages are those of the live contract (console design, section 5). Beyond it: `snap` has `order`
(a viewer resumes with `since: [epoch, seq, order]`), `more` (rows left out) and, for slices,
`window_s`, `spend_since`, `reported_at`.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import msgspec
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.db import DatabaseError
from django.http import parse_cookie

from telemetry.live.hub import Hub
from telemetry.live.rules import (
    FRAME_S,
    QUERY_CHARS_MAX,
    Access,
    Held,
    Query,
    advance,
    first_held,
    is_allowed,
    parse_query,
    source_of,
)
from telemetry.live.selectors import access_of_session
from telemetry.live.services import record_denied

log = logging.getLogger(__name__)

VERSION = "1"
SUBSCRIPTIONS_MAX = 8
SOCKETS_PER_USER = 6  # in one console process
MESSAGE_CHARS_MAX = 4096
FAULTS_MAX = 8  # refused or unreadable messages before the socket is closed
BEAT_S = 5.0
DRAIN_S = 10.0  # a frame that is not taken in this time ends the socket
CLOSE_WAIT_S = 20.0  # how long a stalled viewer may take to read why
ACCESS_READ_S = 3.0  # how often access is read
ACCESS_KNOWN_S = 5.0  # older knowledge sends no frame
ACCESS_LOST_S = 30.0  # nothing known for this long ends the socket

BAD_REQUEST, SIGNED_OUT, ACCESS_LOST, TOO_SLOW, TOO_MANY = 4400, 4401, 4403, 4408, 4429
TRY_LATER = 1013


class Sub(msgspec.Struct, tag="sub", tag_field="t"):
    """Begin a subscription; `since` is `[epoch, seq, order]` of the viewer's copy."""

    id: int
    ch: str
    q: str = ""
    since: list[str | int] = []


class Unsub(msgspec.Struct, tag="unsub", tag_field="t"):
    """End one."""

    id: int


class Pause(msgspec.Struct, tag="pause", tag_field="t"):
    """Send no frames until `resume`: the tab is hidden."""


class Resume(msgspec.Struct, tag="resume", tag_field="t"):
    """Send again, beginning with the newest state."""


class Beat(msgspec.Struct, tag="beat", tag_field="t"):
    """The viewer's answer to a beat: it reads what it is sent."""


_decode = msgspec.json.Decoder(Sub | Unsub | Pause | Resume | Beat).decode
_encode = msgspec.json.Encoder().encode


class Ended(Exception):  # noqa: N818 - an outcome of its own
    """The socket is to be closed with this code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(slots=True)
class Subscription:
    """One subscription of a socket."""

    number: int
    query: Query
    release: Callable[[], None]
    since: list[str | int]
    held: Held | None = None
    due_s: float = 0.0  # no frame before this instant


@dataclass(slots=True)
class AccessBook:
    """Reads access for sockets; those of one session within `SHARED_S` share a reading."""

    known: dict[str, tuple[float, Access | None]] = field(default_factory=dict)

    SHARED_S = 1.0

    async def read(self, session_key: str) -> Access | None:
        """What the session may see. Raises `DatabaseError`."""
        now_s = time.monotonic()
        found = self.known.get(session_key)
        if found is None or now_s - found[0] > self.SHARED_S:
            access = await database_sync_to_async(access_of_session)(session_key)
            found = (now_s, access)
            self.known = {
                key: item for key, item in self.known.items() if now_s - item[0] <= self.SHARED_S
            } | {session_key: found}
        return found[1]


class LiveConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """One viewer's socket."""

    def __init__(self, hub: Hub, book: AccessBook) -> None:
        super().__init__()
        self.hub = hub
        self.book = book
        self.wake = asyncio.Event()
        self.subscriptions: dict[int, Subscription] = {}
        self.access: Access | None = None
        self.access_at_s = 0.0
        self.session_key = ""
        self.faults = 0
        self.is_paused = False
        self.answers_beats = False
        self.unanswered_since_s: float | None = None
        self.is_ending = False
        self.was_abandoned = False
        self.releases = contextlib.ExitStack()
        self.tasks: list[asyncio.Task[None]] = []
        self.main: asyncio.Task[Any] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve the socket; whatever ends it, nothing of it stays behind."""
        self.main = asyncio.current_task()
        try:
            await super().__call__(scope, receive, send)
        except asyncio.CancelledError:
            if not self.was_abandoned or self.main is None:
                raise
            self.main.uncancel()
        finally:
            for task in self.tasks:
                task.cancel()
            for subscription in self.subscriptions.values():
                subscription.release()
            self.subscriptions.clear()
            self.releases.close()

    async def connect(self) -> None:
        """Accept, then say no by code: a refused handshake tells the page nothing."""
        await self.accept()
        try:
            await self._enter()
        except Ended as ended:
            await self._end(ended.code)
            return
        self.releases.enter_context(self.hub.woken(self.wake))
        self.tasks = [
            asyncio.create_task(self._guarded(self._pump())),
            asyncio.create_task(self._guarded(self._watch_access())),
        ]

    async def _enter(self) -> None:
        query = parse_qs(self.scope["query_string"].decode("latin-1"))
        if query.get("v") != [VERSION]:
            raise Ended(BAD_REQUEST)
        self.session_key = _session_key(self.scope["headers"])
        if not self.session_key:
            raise Ended(SIGNED_OUT)
        try:
            self.access = await self.book.read(self.session_key)
        except DatabaseError as error:
            raise Ended(TRY_LATER) from error
        if self.access is None:
            raise Ended(SIGNED_OUT)
        if self.access.sees_nothing:
            raise Ended(ACCESS_LOST)
        self.access_at_s = time.monotonic()
        user_id = self.access.user_id
        if self.hub.sockets[user_id] >= SOCKETS_PER_USER:
            raise Ended(TOO_MANY)
        self.hub.sockets[user_id] += 1
        self.releases.callback(self._leave, user_id)

    def _leave(self, user_id: int) -> None:
        self.hub.sockets[user_id] -= 1
        if self.hub.sockets[user_id] <= 0:
            del self.hub.sockets[user_id]

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """One message of the viewer."""
        if self.is_ending or self.access is None:
            return
        if text_data is None or len(text_data) > MESSAGE_CHARS_MAX:
            await self._end(BAD_REQUEST)
            return
        try:
            await self._obey(text_data, self.access)
        except Ended as ended:
            await self._end(ended.code)

    async def _obey(self, text: str, access: Access) -> None:
        try:
            message = _decode(text)
        except msgspec.MsgspecError:
            await self._refuse(None, "bad_message", BAD_REQUEST)
            return
        match message:
            case Sub():
                await self._subscribe(message, access)
            case Unsub(id=number):
                subscription = self.subscriptions.pop(number, None)
                if subscription:
                    subscription.release()
            case Pause():
                self.is_paused = True
            case Resume():
                self.is_paused = False
                self.wake.set()
            case Beat():
                self.answers_beats = True
                self.unanswered_since_s = None

    async def _subscribe(self, message: Sub, access: Access) -> None:
        query = parse_query(message.ch, message.q)
        if query is None:
            await self._refuse(message.id, "bad_query", BAD_REQUEST)
        elif not is_allowed(query, access):
            await self._deny(message, access)
        elif message.id not in self.subscriptions and len(self.subscriptions) >= SUBSCRIPTIONS_MAX:
            await self._refuse(message.id, "too_many", TOO_MANY)
        else:
            release = self.hub.watch(source_of(query, access))
            before = self.subscriptions.pop(message.id, None)
            if before:
                before.release()
            self.subscriptions[message.id] = Subscription(message.id, query, release, message.since)
            self.wake.set()

    async def _deny(self, message: Sub, access: Access) -> None:
        try:
            await database_sync_to_async(record_denied)(
                access=access, channel=message.ch, query=message.q[:QUERY_CHARS_MAX]
            )
        except DatabaseError:
            log.exception("a denied subscription could not be recorded: ending the socket")
            raise Ended(TRY_LATER) from None
        await self._refuse(message.id, "forbidden", ACCESS_LOST)

    async def _refuse(self, number: int | None, code: str, close_code: int) -> None:
        self.faults += 1
        await self._send({"t": "error", "id": number, "code": code})
        if self.faults >= FAULTS_MAX:
            raise Ended(close_code)

    async def _pump(self) -> None:
        """Bring the viewer's copies up to date whenever woken, and beat."""
        beat_at_s = time.monotonic()
        while True:
            now_s = time.monotonic()
            waits_s = now_s - (self.unanswered_since_s or now_s)
            if self.answers_beats and waits_s > DRAIN_S:
                raise Ended(TOO_SLOW)
            if now_s >= beat_at_s:
                self.unanswered_since_s = self.unanswered_since_s or now_s
                await self._send({"t": "beat", "ts": round(time.time(), 3)})
                beat_at_s = now_s + BEAT_S
            next_s = beat_at_s
            if not self.is_paused and now_s - self.access_at_s <= ACCESS_KNOWN_S:
                next_s = min(next_s, await self._update())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, next_s - time.monotonic())):
                    await self.wake.wait()
            self.wake.clear()

    async def _update(self) -> float:
        """Send what is due; when the next frame that waits is due."""
        next_s = time.monotonic() + BEAT_S
        for subscription in list(self.subscriptions.values()):
            if self.access is None:
                break
            view = self.hub.view(subscription.query, self.access)
            if view is None:
                continue
            now_s = time.monotonic()
            held = subscription.held
            if held is not None and (held.epoch, held.seq) == (view.epoch, view.seq):
                continue
            if now_s < subscription.due_s:
                next_s = min(next_s, subscription.due_s)
                continue
            if held is None and subscription.since:
                held, subscription.since = self._resumed(subscription, now_s), []
            frame, subscription.held = advance(subscription.number, held, view, now_s)
            if frame is not None:
                subscription.due_s = now_s + FRAME_S
                await self._send(frame)
        return next_s

    def _resumed(self, subscription: Subscription, now_s: float) -> Held | None:
        """The viewer's copy, when it is of a state that the hub still keeps."""
        if self.access is None or len(subscription.since) != 3:
            return None
        epoch, seq, order = subscription.since
        view = self.hub.view(subscription.query, self.access, at=(epoch, seq))
        return first_held(view, order, now_s) if view else None

    async def _watch_access(self) -> None:
        while True:
            await asyncio.sleep(ACCESS_READ_S)
            began_s = time.monotonic()
            try:
                access = await self.book.read(self.session_key)
            except DatabaseError as error:
                log.warning("access could not be read: %s", error)
                if time.monotonic() - self.access_at_s > ACCESS_LOST_S:
                    raise Ended(TRY_LATER) from error
                continue
            if access is None:
                raise Ended(SIGNED_OUT)
            if self.access is None or access.sees_nothing or not access.covers(self.access):
                raise Ended(ACCESS_LOST)
            self.access = access
            self.access_at_s = began_s
            self.wake.set()

    async def _send(self, frame: dict[str, Any]) -> None:
        if self.is_ending:
            return
        try:
            async with asyncio.timeout(DRAIN_S):
                await self.send(text_data=_encode(frame).decode())
        except TimeoutError:
            raise Ended(TOO_SLOW) from None

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task of the socket; its end is the socket's."""
        try:
            await work
        except Ended as ended:
            await self._end(ended.code)
        except OSError:
            return  # the viewer is gone; the server ends the socket
        except Exception:
            log.exception("live socket failed")
            await self._end(1011)

    async def _end(self, code: int) -> None:
        """Close, once. Frames stop at once, even if the viewer reads the reason late or never."""
        if self.is_ending:
            return
        self.is_ending = True
        for subscription in self.subscriptions.values():
            subscription.release()
        self.subscriptions.clear()
        try:
            async with asyncio.timeout(CLOSE_WAIT_S):
                await self.close(code)
        except (TimeoutError, OSError):
            self.was_abandoned = True
            if self.main is not None:
                self.main.cancel()


def _session_key(headers: list[tuple[bytes, bytes]]) -> str:
    for name, value in headers:
        if name == b"cookie":
            cookies = parse_cookie(value.decode("latin-1"))
            return cookies.get(settings.SESSION_COOKIE_NAME, "")
    return ""

"""The callers' side: sockets, and bounds on connections, heads, bodies, pipelines and time."""

import asyncio
import socket
import time
from typing import Protocol, cast
from urllib.parse import unquote

import msgspec

from routing.decision.types import Reason, Refusal
from routing.gateway.dialects.catalog import BY_PATH
from routing.gateway.dialects.operation import Style
from routing.gateway.encoding import plain_body
from routing.gateway.exchange import Exchange, new_request_id
from routing.gateway.http1 import (
    CONTINUE,
    Broken,
    BrokenRequestError,
    Request,
    RequestReader,
    whole,
)
from routing.gateway.identify import identify
from routing.gateway.reply import JSON, refusal_answer, request_id_lines
from routing.gateway.resolve import accepted_names, find_model
from routing.gateway.resources import RESOURCES, Resources
from routing.gateway.upstream import no_delay
from routing.gateway.walk import Walk

MAX_CONNECTIONS = 10_000  # a process; about 10 kB each when idle
MAX_BUFFERED_BYTES = 256 << 20  # unfinished bodies of all connections together
MAX_READ_AHEAD_BYTES = 64 << 10  # kept of what a caller sends while it is being served
WRITE_HIGH_BYTES = 64 << 10  # unsent bytes above which the upstream is held back
# The kernel would take 4 MB and more for each caller that does not read.
SEND_BUFFER_BYTES = 256 << 10
REQUEST_TIME_S = 20.0  # from the first byte of a request to its last
IDLE_S = 75.0  # between requests; above the 60 s that balancers keep connections for
MODELS = b"/v1/models"
_CREATED = 0  # the API has no date for a model; SDKs want the field

_BROKEN = {
    Broken.MALFORMED: (400, Refusal(Reason.INVALID_REQUEST, "This is not a valid HTTP request.")),
    Broken.HEAD_TOO_LARGE: (
        431, Refusal(Reason.REQUEST_TOO_LARGE, "The request's headers are too large."),
    ),
    Broken.BODY_TOO_LARGE: (
        413, Refusal(Reason.REQUEST_TOO_LARGE, "The request's body is too large."),
    ),
    Broken.TOO_MANY: (400, Refusal(Reason.INVALID_REQUEST, "Too many requests were sent ahead.")),
}  # fmt: skip
_SLOW = (408, Refusal(Reason.INVALID_REQUEST, "The request took too long to arrive."))
_FULL = (503, Refusal(Reason.NO_CAPACITY, "The gateway is at capacity.", 1.0))
_UNKNOWN = Refusal(Reason.NOT_FOUND, "There is nothing at this path.")


class Readiness(Protocol):
    """What the gateway says of itself."""

    @property
    def is_draining(self) -> bool:
        """Whether it is shutting down."""

    @property
    def why_not_ready(self) -> str:
        """Empty when it serves."""


class Listener:
    """All connections of this process."""

    def __init__(self, walk: Walk, readiness: Readiness) -> None:
        self.walk = walk
        self.resources = Resources(walk)
        self.readiness = readiness
        self.connections: set[ClientConnection] = set()
        self.buffered_bytes = 0

    def __call__(self) -> "ClientConnection":
        """A protocol for a new socket."""
        return ClientConnection(self)

    def sweep(self, now_s: float) -> None:
        """Close what is too slow or idle for too long; called each second."""
        for connection in list(self.connections):
            connection.check(now_s)

    def close_idle(self) -> None:
        """Draining: connections without a request are of no more use."""
        for connection in list(self.connections):
            connection.close_if_idle()


class ClientConnection(asyncio.Protocol):
    """One caller's connection: requests one after another, read ahead only a little."""

    __slots__ = (
        "_broken",
        "_is_busy",
        "_is_pumping",
        "_listener",
        "_pending",
        "_reader",
        "_since_s",
        "_style",
        "exchange",
        "transport",
    )

    transport: asyncio.Transport

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._reader = RequestReader(listener.walk.config.max_body_bytes)
        self._pending = b""
        self._broken: Broken | None = None
        self._is_busy = False
        self._is_pumping = False
        self._since_s = time.monotonic()
        self._style = Style.OPENAI  # of errors, as the path of the request in hand has it
        self.exchange: Exchange | None = None

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A caller has connected."""
        self.transport = cast("asyncio.Transport", transport)
        no_delay(self.transport)
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        listener = self._listener
        listener.connections.add(self)
        if len(listener.connections) > MAX_CONNECTIONS:
            self._close_with(*_FULL)

    def data_received(self, data: bytes) -> None:
        """Bytes of a request; while one is served, those of the next wait."""
        if self._is_busy:
            self._pending += data
            if len(self._pending) > MAX_READ_AHEAD_BYTES:
                self.transport.abort()
            return
        self._feed(data)
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        """The caller has left, or we closed."""
        listener = self._listener
        listener.connections.discard(self)
        listener.buffered_bytes -= self._reader.buffered_bytes
        self._reader.close()
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            listener.walk.ends.client_gone(exchange)

    def pause_writing(self) -> None:
        """The caller reads too slowly: hold the upstream back."""
        if self.exchange is not None and self.exchange.attempt is not None:
            self.exchange.attempt.pause()

    def resume_writing(self) -> None:
        """The caller has caught up."""
        if self.exchange is not None and self.exchange.attempt is not None:
            self.exchange.attempt.resume()

    # -- called by the walk

    def write(self, data: bytes) -> None:
        """Send bytes of a response that goes on."""
        self.transport.write(data)

    def finish(self, data: bytes, *, keep_alive: bool) -> None:
        """Send the last bytes; then the next request, or close."""
        self.transport.write(data)
        self.exchange = None
        self._is_busy = False
        self._since_s = time.monotonic()
        if not keep_alive or self._listener.readiness.is_draining:
            self.transport.close()
            return
        self._pump()

    def abort(self) -> None:
        """Drop the connection at once."""
        self.transport.abort()

    # -- bounds on time

    def check(self, now_s: float) -> None:
        """Close when the request does not come to an end, or none comes."""
        if self._is_busy:
            return
        waited_s = now_s - self._since_s
        if self._reader.is_reading:
            if waited_s > REQUEST_TIME_S:
                self._close_with(*_SLOW)
        elif waited_s > IDLE_S:
            self.transport.close()

    def close_if_idle(self) -> None:
        """Close unless a request is being read or served."""
        if not self._is_busy and not self._reader.is_reading:
            self.transport.close()

    # -- reading

    def _feed(self, data: bytes) -> None:
        reader, listener = self._reader, self._listener
        before = reader.buffered_bytes
        if not reader.is_reading:
            self._since_s = time.monotonic()
        try:
            reader.feed(data)
        except BrokenRequestError as error:
            self._broken = error.why
        listener.buffered_bytes += reader.buffered_bytes - before
        if self._broken is None and reader.is_reading:
            if listener.buffered_bytes > MAX_BUFFERED_BYTES:
                self._close_with(*_FULL)
            elif reader.wants_continue:
                reader.wants_continue = False
                self.transport.write(CONTINUE)

    def _pump(self) -> None:
        """Serve what is read, in order, until one takes its time."""
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            while not self._is_busy and not self.transport.is_closing():
                if self._reader.ready:
                    self._serve(self._reader.ready.pop(0))
                elif self._broken is not None:
                    self._close_with(*_BROKEN[self._broken])
                elif self._pending:
                    data, self._pending = self._pending, b""
                    self._feed(data)
                else:
                    return
        finally:
            self._is_pumping = False

    def _close_with(self, status: int, refusal: Refusal) -> None:
        _, line = self._name()
        self.transport.write(refusal_answer(refusal, line, keep_alive=False, status=status))
        self.transport.close()

    # -- what exists

    def _serve(self, request: Request) -> None:
        self._is_busy = True
        self._style = Style.OPENAI
        path = request.target.partition(b"?")[0]
        operation = BY_PATH.get(path)
        if operation is not None:
            self._style = operation.style
            if request.method != b"POST":
                self._refuse_method(request, b"POST")
            elif self._unpack(request):
                self.exchange = self._listener.walk.begin(self, request, operation)
        elif path.startswith(RESOURCES):
            if request.method != b"POST":
                self._refuse_method(request, b"POST")
            elif self._unpack(request):
                self.exchange = self._listener.resources.begin(self, request, path)
        elif path in (b"/healthz", b"/readyz", MODELS) or path.startswith(MODELS + b"/"):
            self._serve_read(request, path)
        else:
            self._refuse(request, _UNKNOWN)

    def _unpack(self, request: Request) -> bool:
        """Whether its body is as it was meant; else it is refused."""
        encoding = request.headers.get(b"content-encoding")
        if encoding is None:
            return True
        body = plain_body(request.body, encoding, self._listener.walk.config.max_body_bytes)
        if isinstance(body, Refusal):
            self._refuse(request, body)
            return False
        request.body = body
        return True

    def _serve_read(self, request: Request, path: bytes) -> None:
        if request.method not in (b"GET", b"HEAD"):
            self._refuse_method(request, b"GET")
        elif path == b"/healthz":
            self._send(request, 200, b'{"status":"ok"}')
        elif path == b"/readyz":
            self._send(request, *readiness_body(self._listener.readiness))
        else:
            self._serve_models(request, path)

    def _serve_models(self, request: Request, path: bytes) -> None:
        walk = self._listener.walk
        snapshot = walk.snapshot
        caller = identify(request.headers, snapshot, walk.config.pepper, walk.now_ms())
        if isinstance(caller, Refusal):
            self._refuse(request, caller)
            return
        if path == MODELS:
            names = accepted_names(snapshot, *caller, walk.fleet.is_loaded)
            rows = [_model_row(name) for name in names]
            self._send(request, 200, msgspec.json.encode({"object": "list", "data": rows}))
            return
        name = unquote(path[len(MODELS) + 1 :], errors="replace")
        found = find_model(snapshot, *caller, name)
        if isinstance(found, Refusal):
            self._refuse(request, found)
        else:
            self._send(request, 200, msgspec.json.encode(_model_row(name)))

    def _send(self, request: Request, status: int, body: bytes) -> None:
        data = whole(status, JSON, body, keep_alive=request.keep_alive)
        self._finish(request, data)

    def _refuse(self, request: Request, refusal: Refusal, headers: bytes = b"") -> None:
        self._listener.walk.stats.refused(refusal.reason)
        request_id, line = self._name()
        data = refusal_answer(
            refusal,
            line + headers,
            keep_alive=request.keep_alive,
            style=self._style,
            request_id=request_id,
        )
        self._finish(request, data)

    def _name(self) -> tuple[str, bytes]:
        """(id, header lines) of a request that becomes no call, so that it can be told of."""
        request_id = new_request_id(self._listener.walk.now_ms())
        return request_id, request_id_lines(request_id, self._style)

    def _finish(self, request: Request, data: bytes) -> None:
        """Send a whole answer; to HEAD its head alone, or the next answer would be misread."""
        if request.method == b"HEAD":
            data = data[: data.index(b"\r\n\r\n") + 4]
        self.finish(data, keep_alive=request.keep_alive)

    def _refuse_method(self, request: Request, allowed: bytes) -> None:
        text = f"Only {allowed.decode()} is allowed here."
        headers = b"allow: %b\r\n" % allowed
        self._refuse(request, Refusal(Reason.METHOD_NOT_ALLOWED, text), headers)


def readiness_body(readiness: Readiness) -> tuple[int, bytes]:
    """(status, JSON) of a readiness page."""
    why_not = readiness.why_not_ready
    if why_not:
        return 503, msgspec.json.encode({"status": "not_ready", "reason": why_not})
    return 200, b'{"status":"ready"}'


def _model_row(name: str) -> dict[str, str | int]:
    return {"id": name, "object": "model", "created": _CREATED, "owned_by": "headrace"}

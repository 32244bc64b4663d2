"""Our own pooled HTTP client: connections to replicas, kept while both sides keep them."""

import asyncio
import socket
from collections import deque
from typing import Protocol, cast

from routing.contracts.reach import Reach, is_literal
from routing.gateway.http1 import BrokenRequestError, ResponseReader

CONNECT_TIMEOUT_S = 2.0  # in the same data centre; a slower one is down
FAR_CONNECT_TIMEOUT_S = 5.0  # over the Internet, name and TLS included
ADDRESSES_TRIED = 3  # of a name that has many
FAR_IDLE_S = 30.0  # below the minute for which providers keep connections
IDLE_S = 4.0  # below the 5 s after which uvicorn, and so vLLM, closes a kept connection
MAX_IDLE = 256  # kept per replica; more than one engine batches
MAX_OPEN = 4096  # per replica; beyond it the replica is hopelessly overloaded
_JOINED_BYTES = 65_536  # larger bodies are written beside their head, without a copy
_MAX_ID_CHARS = 64  # of a request id that is kept


class Handler(Protocol):
    """What an attempt does with its connection's events."""

    def received(self) -> None:
        """More of the response is in the connection's reader."""

    def lost(self) -> None:
        """The connection ended before the response did, or spoke something else than HTTP."""


class UpstreamConnection(asyncio.Protocol):
    """One connection; serves one handler at a time."""

    __slots__ = ("handler", "idle_since_s", "pool", "reader", "transport")

    transport: asyncio.Transport
    reader: ResponseReader

    def __init__(self, pool: "ConnectionPool") -> None:
        self.pool = pool
        self.handler: Handler | None = None
        self.idle_since_s = 0.0

    def send(self, handler: Handler, head: bytes, body: bytes) -> None:
        """Write one request for `handler`."""
        self.handler = handler
        self.reader.reset()
        if len(body) > _JOINED_BYTES:
            self.transport.writelines((head, body))
        else:
            self.transport.write(head + body)

    def release(self, now_s: float) -> None:
        """The response is whole: keep the connection if both sides may."""
        self.handler = None
        if self.reader.keep_alive and not self.transport.is_closing():
            self.pool.put(self, now_s)
        else:
            self.transport.close()

    def abort(self) -> None:
        """Close at once; the handler hears nothing more."""
        self.handler = None
        self.transport.abort()

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The dial succeeded."""
        self.transport = cast("asyncio.Transport", transport)
        self.reader = ResponseReader()  # not before: a dial that fails has no end to close it at
        self.pool.open_count += 1
        no_delay(self.transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of the response. Bytes that nobody asked for end the connection."""
        if self.handler is None:
            self.transport.abort()
            return
        try:
            self.reader.feed(data)
        except BrokenRequestError:
            handler, self.handler = self.handler, None
            self.transport.abort()
            handler.lost()
            return
        self.handler.received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone, by either side."""
        self.pool.open_count -= 1
        handler, self.handler = self.handler, None
        if handler is not None:
            handler.lost()
        else:
            self.pool.forget(self)
        self.reader.close()


class ConnectionPool:
    """Connections to one address, newest first, so that spare ones age and go."""

    __slots__ = (
        "_has_tls", "_idle", "_idle_s", "_is_public", "_reach", "host", "open_count", "port",
    )  # fmt: skip

    def __init__(
        self,
        host: str,
        port: int,
        reach: Reach | None = None,
        *,
        has_tls: bool = False,
        is_public: bool = False,
    ) -> None:
        """`reach` says which addresses a name may have; `is_public`: public ones only."""
        self.host = host
        self.port = port
        self._reach = reach
        self._has_tls = has_tls
        self._idle_s = FAR_IDLE_S if has_tls else IDLE_S
        self._is_public = is_public
        self.open_count = 0
        self._idle: deque[UpstreamConnection] = deque()

    @property
    def is_full(self) -> bool:
        """Whether no further connection may be opened."""
        return self.open_count >= MAX_OPEN

    def get(self, now_s: float) -> UpstreamConnection | None:
        """A kept connection that the other side has not had time to close."""
        while self._idle:
            connection = self._idle.pop()
            if connection.transport.is_closing():
                continue
            if now_s - connection.idle_since_s < self._idle_s:
                return connection
            connection.transport.close()
        return None

    def put(self, connection: UpstreamConnection, now_s: float) -> None:
        """Keep a connection for the next request."""
        if len(self._idle) >= MAX_IDLE:
            connection.transport.close()
            return
        connection.idle_since_s = now_s
        self._idle.append(connection)

    def forget(self, connection: UpstreamConnection) -> None:
        """A kept connection was closed by the other side."""
        try:
            self._idle.remove(connection)
        except ValueError:
            return

    def close_idle(self, now_s: float) -> None:
        """Close what has been idle for too long."""
        while self._idle and now_s - self._idle[0].idle_since_s >= self._idle_s:
            self._idle.popleft().transport.close()

    def close(self) -> None:
        """Close every kept connection."""
        while self._idle:
            self._idle.pop().transport.close()

    async def dial(self) -> UpstreamConnection:
        """A new connection. Raises `OSError` (also for a timeout)."""
        loop = asyncio.get_running_loop()
        if self._reach is not None and (self._has_tls or not is_literal(self.host)):
            return await self._dial_far(loop, self._reach)
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await loop.create_connection(
                lambda: UpstreamConnection(self), self.host, self.port
            )
        return connection

    async def _dial_far(self, loop: asyncio.AbstractEventLoop, reach: Reach) -> UpstreamConnection:
        """The name is looked up here and now: what it said when it was registered may be old."""
        async with asyncio.timeout(FAR_CONNECT_TIMEOUT_S if self._has_tls else CONNECT_TIMEOUT_S):
            found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
            addresses = [str(one[4][0]) for one in found]
            may_be = reach.allowed if self._is_public else reach.allowed_engine
            addresses = may_be(self.host, addresses)
            if not addresses:
                raise OSError(f"{self.host} has no address that may be called")
            for address in addresses[:ADDRESSES_TRIED]:
                try:
                    return await self._dial_one(loop, address, reach)
                except OSError as error:
                    refused = error
            raise refused

    async def _dial_one(
        self, loop: asyncio.AbstractEventLoop, address: str, reach: Reach
    ) -> UpstreamConnection:
        _, connection = await loop.create_connection(
            lambda: UpstreamConnection(self),
            address,
            self.port,
            ssl=reach.tls if self._has_tls else None,
            server_hostname=self.host if self._has_tls else None,
        )
        return connection


def no_delay(transport: asyncio.Transport) -> None:
    """Send small writes at once: a held-back chunk would add 40 ms to each token."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def request_id_of(reader: ResponseReader) -> str:
    """An upstream's own id of a request, for the ledger: short and printable, or empty."""
    raw = reader.headers.get(b"x-request-id", b"")
    if not raw:
        return ""
    text = raw.decode("latin-1")
    return text if len(text) <= _MAX_ID_CHARS and text.isascii() and text.isprintable() else ""

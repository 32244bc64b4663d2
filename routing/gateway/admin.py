"""The process's own port, on loopback: health, readiness, metrics, status, drain."""

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

from routing.decision.types import Reason, Refusal
from routing.gateway.http1 import BrokenRequestError, Request, RequestReader, whole
from routing.gateway.metrics import CONTENT_TYPE
from routing.gateway.reply import JSON, refusal_answer
from routing.gateway.server import Readiness, readiness_body

MAX_BODY_BYTES = 1024  # nothing here reads a body
MAX_CONNECTIONS = 64


class Admin(Protocol):
    """What the admin port asks of the process."""

    @property
    def readiness(self) -> Readiness:
        """Whether it serves, and why not."""

    def metrics(self) -> bytes:
        """The metrics page."""

    def status_page(self) -> bytes:
        """The process's status as JSON."""

    def drain(self) -> None:
        """Begin to shut down."""


class AdminListener:
    """Makes connections of the admin port; bounded like everything else."""

    def __init__(self, admin: Admin) -> None:
        self.admin = admin
        self.open_count = 0

    def __call__(self) -> "AdminConnection":
        """A protocol for a new socket."""
        return AdminConnection(self)


class AdminConnection(asyncio.Protocol):
    """One connection of the admin port."""

    transport: asyncio.Transport

    def __init__(self, listener: AdminListener) -> None:
        self._listener = listener
        self._reader = RequestReader(MAX_BODY_BYTES)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody has connected."""
        self.transport = cast("asyncio.Transport", transport)
        self._listener.open_count += 1
        if self._listener.open_count > MAX_CONNECTIONS:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._listener.open_count -= 1
        self._reader.close()

    def data_received(self, data: bytes) -> None:
        """Answer every whole request."""
        try:
            self._reader.feed(data)
        except BrokenRequestError:
            self.transport.close()
            return
        ready, self._reader.ready = self._reader.ready, []
        for request in ready:
            self.transport.write(self._answer(request))
            if not request.keep_alive:
                self.transport.close()

    def _answer(self, request: Request) -> bytes:
        pages: dict[tuple[bytes, bytes], Callable[[], tuple[int, bytes, bytes]]] = {
            (b"GET", b"/healthz"): lambda: (200, JSON, b'{"status":"ok"}'),
            (b"GET", b"/readyz"): self._readiness,
            (b"GET", b"/metrics"): self._metrics,
            (b"GET", b"/status"): self._status,
            (b"POST", b"/drain"): self._drain,
        }
        keep_alive = request.keep_alive
        path = request.target.partition(b"?")[0]
        page = pages.get((request.method, path))
        if page is not None:
            status, headers, body = page()
            return whole(status, headers, body, keep_alive=keep_alive)
        if any(path == known for _, known in pages):
            refusal = Refusal(Reason.METHOD_NOT_ALLOWED, "Not with this method.")
        else:
            refusal = Refusal(Reason.NOT_FOUND, "There is nothing at this path.")
        return refusal_answer(refusal, b"", keep_alive=keep_alive)

    def _readiness(self) -> tuple[int, bytes, bytes]:
        status, body = readiness_body(self._listener.admin.readiness)
        return status, JSON, body

    def _metrics(self) -> tuple[int, bytes, bytes]:
        headers = b"content-type: %b\r\n" % CONTENT_TYPE
        return 200, headers, self._listener.admin.metrics()

    def _status(self) -> tuple[int, bytes, bytes]:
        return 200, JSON, self._listener.admin.status_page()

    def _drain(self) -> tuple[int, bytes, bytes]:
        self._listener.admin.drain()
        return 200, JSON, b'{"status":"draining"}'

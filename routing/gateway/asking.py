"""The gateway's own short requests to a replica, each bounded, on a connection of its own."""

import asyncio

from routing.gateway.fleet import Endpoint
from routing.gateway.http1 import ResponseReader

MAX_ANSWER_BYTES = 64 << 10


class Answer:
    """Hears one response to its end, or to above `MAX_ANSWER_BYTES`; `done` says if it is whole."""

    def __init__(self, reader: ResponseReader) -> None:
        self._reader = reader
        self.body = b""
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def received(self) -> None:
        """More has come."""
        self.body += self._reader.take()
        if self._reader.is_done or len(self.body) > MAX_ANSWER_BYTES:
            self._finish(is_whole=self._reader.is_done)

    def lost(self) -> None:
        """The connection ended."""
        self._finish(is_whole=False)

    def _finish(self, *, is_whole: bool) -> None:
        if not self.done.done():
            self.done.set_result(is_whole)


async def ask(endpoint: Endpoint, method: bytes, path: bytes, body: bytes = b"") -> bytes | None:
    """The body of a whole answer with status 200, else None.

    The caller bounds the time. Raises `OSError` when the request cannot be sent.
    """
    head = endpoint.head(method, path, b"probe", len(body), b"connection: close\r\n")
    connection = await endpoint.connections.dial()
    try:
        answer = Answer(connection.reader)
        connection.send(answer, head, body)
        is_whole = await answer.done
        return answer.body if is_whole and connection.reader.status == 200 else None
    finally:
        connection.abort()

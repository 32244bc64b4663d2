"""The gateway's own one-token completion: the only thing that half-opens a breaker."""

import asyncio
import logging
import time

import msgspec

from routing.decision.filters import Candidate
from routing.gateway.dialects.failure import is_cut_off
from routing.gateway.dialects.usage import is_answer
from routing.gateway.fleet import Endpoint, Fleet
from routing.gateway.http1 import ResponseReader
from routing.gateway.sse import SseScanner
from routing.gateway.walk import CHAT

log = logging.getLogger(__name__)

PROBE_S = 5.0  # a healthy engine answers one token in well under a second
MAX_PROBES = 16  # at once
MAX_ANSWER_BYTES = 64 << 10


class _Answer:
    """Hears one response to its end."""

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


class Prober:
    """Probes every open breaker whose time has come; called each second."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._running: set[asyncio.Task[None]] = set()

    def turn(self, now_s: float) -> None:
        """Start the probes that are due."""
        for endpoint in self._fleet.endpoints.values():
            candidate = endpoint.candidate
            if len(self._running) >= MAX_PROBES:
                return
            if candidate.breaker.wants_probe(now_s):
                candidate.breaker.probe_started()
                task = asyncio.get_running_loop().create_task(self._probe(endpoint, candidate))
                self._running.add(task)
                task.add_done_callback(self._running.discard)

    def stop(self) -> None:
        """Give up on running probes."""
        for task in self._running:
            task.cancel()

    async def _probe(self, endpoint: Endpoint, candidate: Candidate) -> None:
        succeeded = False
        try:
            async with asyncio.timeout(PROBE_S):
                succeeded = await complete_one_token(endpoint)
        except (OSError, TimeoutError):
            succeeded = False
        finally:
            candidate.breaker.probe_ended(time.monotonic(), succeeded=succeeded)
        log.info("probe of %s: %s", candidate.id, "answers" if succeeded else "no answer")


async def complete_one_token(endpoint: Endpoint) -> bool:
    """Whether a real completion succeeds. Raises `OSError` when it cannot be sent."""
    body = msgspec.json.encode(
        {
            "model": endpoint.pool.served_model,
            "messages": [{"role": "user", "content": "ping"}],
            "max_tokens": 1,
        }
    )
    head = (
        b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\n"
        b"accept-encoding: identity\r\nx-request-id: probe\r\nconnection: close\r\n"
        b"content-length: %d\r\n\r\n" % (CHAT, endpoint.host_header, len(body))
    )
    connection = await endpoint.connections.dial()
    try:
        answer = _Answer(connection.reader)
        connection.send(answer, head, body)
        is_whole = await answer.done
        return is_whole and connection.reader.status == 200 and _is_completion(answer.body)
    finally:
        connection.abort()


def _is_completion(body: bytes) -> bool:
    """A whole answer, or the stream of one (an upstream that only streams is healthy too)."""
    if is_answer(body):
        return not is_cut_off(body)
    scanner = SseScanner(keep_usage=True)
    scanner.feed(body)
    scanner.close()
    return scanner.fault is None and scanner.tokens > 0 and scanner.is_complete

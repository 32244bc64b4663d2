"""A hook over HTTP: one signed POST to the address that the operator gave, and nowhere else."""

import http
import time

import msgspec

from routing.contracts.hooks import HookEntry, HookVerdict, signature
from routing.contracts.reach import Reach
from routing.contracts.version import VERSION
from routing.gateway.asking import MAX_ANSWER_BYTES, Answer
from routing.gateway.hooks.asked import HookError
from routing.gateway.http1 import ResponseReader
from routing.gateway.upstream import ConnectionPool, UpstreamConnection

_PORTS = (80, 443)


class _Said(msgspec.Struct):
    verdict: str
    reason: str = ""


_said = msgspec.json.Decoder(_Said).decode


class Webhook:
    """Connections to one address, kept between calls.

    Redirects are failures; an address inside is called only where `reach` allows its host.
    """

    def __init__(self, entry: HookEntry, secret: bytes, reach: Reach) -> None:
        self._entry = entry
        self._secret = secret
        self.problem = ""
        if entry.has_tls:
            self._pool = ConnectionPool(entry.host, entry.port, reach, has_tls=True, is_public=True)
        else:
            self._pool = ConnectionPool(entry.host, entry.port)
            if entry.host not in reach.private_hosts:
                self.problem = "without TLS only hosts in HEADRACE_PRIVATE_HOOKS are called"
        if not secret:
            self.problem = "its secret cannot be opened here: set it again"

    async def ask(self, payload: bytes) -> str | None:
        """None to pass, a reason (perhaps empty) to refuse.

        The caller bounds the time. Raises `HookError`, or `OSError` when nobody is reached.
        """
        if self.problem:
            raise HookError(self.problem)
        kept = self._pool.get(time.monotonic())
        if kept is not None:
            body = await self._exchange(kept, payload, is_kept=True)
            if body is not None:
                return _verdict(body)
        body = await self._exchange(await self._pool.dial(), payload, is_kept=False)
        if body is None:
            raise HookError("the connection ended before the answer")
        return _verdict(body)

    async def _exchange(
        self, connection: UpstreamConnection, payload: bytes, *, is_kept: bool
    ) -> bytes | None:
        """The answer's body; None when the connection ended without a word."""
        answer, is_over = Answer(connection.reader), False
        try:
            connection.send(answer, self._head(payload), payload)
            is_whole = await answer.done
            if is_kept and not connection.reader.head_done:
                return None  # closed by the other side while it was idle
            _check(connection.reader, answer, is_whole=is_whole)
            is_over = True
        finally:
            if is_over:
                connection.release(time.monotonic())
            else:
                connection.abort()
        return answer.body

    def _head(self, payload: bytes) -> bytes:
        entry, timestamp = self._entry, str(int(time.time()))
        host = entry.host if ":" not in entry.host else f"[{entry.host}]"
        if entry.port not in _PORTS:
            host = f"{host}:{entry.port}"
        return (
            f"POST {entry.path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: headrace/{VERSION}\r\n"
            "content-type: application/json\r\naccept-encoding: identity\r\n"
            f"content-length: {len(payload)}\r\nx-headrace-hook: {entry.name}\r\n"
            f"x-headrace-timestamp: {timestamp}\r\n"
            f"x-headrace-signature: {signature(self._secret, timestamp, payload)}\r\n\r\n"
        ).encode()

    def close_idle(self, now_s: float) -> None:
        """Close connections that have been idle for too long."""
        self._pool.close_idle(now_s)

    def close(self) -> None:
        """Close every kept connection."""
        self._pool.close()


def _check(reader: ResponseReader, answer: Answer, *, is_whole: bool) -> None:
    """Raises `HookError` unless there is a whole answer with status 200."""
    if not reader.head_done:
        raise HookError("the connection ended before the answer")
    if reader.status != http.HTTPStatus.OK:
        raise HookError(_status_words(reader.status))
    if len(answer.body) > MAX_ANSWER_BYTES:
        raise HookError(f"an answer above {MAX_ANSWER_BYTES:,} bytes")
    if not is_whole:
        raise HookError("an answer without its end")


def _status_words(status: int) -> str:
    if http.HTTPStatus.MULTIPLE_CHOICES <= status < http.HTTPStatus.BAD_REQUEST:
        return f"HTTP {status}: redirects are not followed"
    return f"HTTP {status}"


def _verdict(body: bytes) -> str | None:
    try:
        said = _said(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise HookError('an answer that is no {"verdict": ...}') from None
    if said.verdict == HookVerdict.PASS:
        return None
    if said.verdict == HookVerdict.REFUSE:
        return said.reason
    raise HookError("a verdict other than pass and refuse")

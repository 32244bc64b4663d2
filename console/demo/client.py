"""A small streaming chat client over asyncio and httptools: what the replayer needs and no more.

One connection a request, as many callers behave; the time of the first text is taken when its bytes
arrive.
"""

import asyncio
import json
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

READ_BYTES = 65_536
MAX_ERROR_BYTES = 16_384


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """Where a gateway listens."""

    host: str
    port: int
    is_tls: bool = False

    @classmethod
    def from_url(cls, url: str) -> "GatewayAddress":
        """Of `http://host:port`, or https, also with the `/v1` that clients are told.

        Raises ValueError for anything else.
        """
        parts = urlsplit(url)
        is_web = parts.scheme in ("http", "https") and parts.path.strip("/") in ("", "v1")
        if not is_web or not parts.hostname:
            raise ValueError("the address must look like http://127.0.0.1:8100")
        is_tls = parts.scheme == "https"
        return cls(parts.hostname, parts.port or (443 if is_tls else 80), is_tls)


@dataclass(slots=True)
class Answer:
    """What came back; `text_at` is when text came (monotonic s), tokens are the reported usage."""

    status: int = 0
    text_at: list[float] = field(default_factory=list)
    input_tokens: int | None = None
    output_tokens: int | None = None
    request_id: str = ""
    error: str = ""

    @property
    def first_text_at(self) -> float | None:
        """When the first text came."""
        return self.text_at[0] if self.text_at else None


@dataclass(slots=True)
class _Reader:
    """httptools callbacks: collects the answer, event by event."""

    answer: Answer = field(default_factory=Answer)
    parser: httptools.HttpResponseParser | None = None
    pending: bytes = b""
    is_done: bool = False
    body: bytes = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-request-id":
            self.answer.request_id = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """A short answer comes with its headers in one read: its body must know the status."""
        if self.parser is not None:
            self.answer.status = self.parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if self.answer.status != 200:
            self.body = (self.body + data)[:MAX_ERROR_BYTES]
            return
        self.pending += data
        while (end := self.pending.find(b"\n\n")) >= 0:
            self._event(self.pending[:end])
            self.pending = self.pending[end + 2 :]

    def _event(self, event: bytes) -> None:
        if not event.startswith(b"data: ") or event == b"data: [DONE]":
            return
        chunk = json.loads(event[6:])
        if error := chunk.get("error"):
            self.answer.error = str(error.get("code"))
            return
        if usage := chunk.get("usage"):
            self.answer.input_tokens = usage["prompt_tokens"]
            self.answer.output_tokens = usage["completion_tokens"]
        choices = chunk.get("choices")
        if choices and choices[0]["delta"].get("content"):
            self.answer.text_at.append(time.monotonic())

    def on_message_complete(self) -> None:
        self.is_done = True


async def stream_chat(
    gateway: GatewayAddress, secret: str, body: dict[str, object], headers: dict[str, str]
) -> Answer:
    """Send one streaming chat completion and read it to its end.

    Raises OSError or EOFError when the connection fails.
    """
    payload = json.dumps(body).encode()
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        f"Host: {gateway.host}:{gateway.port}",
        f"Authorization: Bearer {secret}",
        "Content-Type: application/json",
        f"Content-Length: {len(payload)}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    reader, writer = await asyncio.open_connection(
        gateway.host, gateway.port, ssl=gateway.is_tls or None
    )
    try:
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + payload)
        await writer.drain()
        state = _Reader()
        parser = state.parser = httptools.HttpResponseParser(state)
        while not state.is_done:
            data = await reader.read(READ_BYTES)
            if not data:
                raise EOFError("gateway closed the connection before the answer ended")
            parser.feed_data(data)
    finally:
        writer.close()
    if state.answer.status != 200:
        state.answer.error = _error_code(state.body)
    return state.answer


def _error_code(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return "unreadable_error"

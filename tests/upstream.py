"""A scripted OpenAI-compatible upstream on real sockets: plays a script a request, records each.

    async with Upstream() as u:                       # or: with UpstreamThread() as u: (sync tests)
        u.plan(stream_script(["he", "llo"]))           # next request; the last plan repeats
        ... u.requests[0].body, .headers, .arrived_at, .closed_at

A script is a list of steps played in order: `Send(bytes)`, `Wait(seconds)`, `Reset()`, `Close()`.
"""

import asyncio
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Send:
    """Write these bytes; `pieces` of that many bytes each when set."""

    data: bytes
    piece_bytes: int = 0


@dataclass(frozen=True)
class Wait:
    """Sleep, unless the peer leaves."""

    seconds: float


@dataclass(frozen=True)
class Hang:
    """Wait until the peer leaves."""


@dataclass(frozen=True)
class Reset:
    """Abort the connection with a TCP reset."""


@dataclass(frozen=True)
class Close:
    """Close the connection in an orderly way."""


Step = Send | Wait | Hang | Reset | Close
Script = Sequence[Step]


@dataclass
class Seen:
    """One request as the upstream saw it. Times are `time.monotonic()`."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    arrived_at: float
    answered_at: float | None = None
    closed_at: float | None = None
    sent_bytes: int = 0

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        """First value of a header, or None."""
        return next((v for k, v in self.headers if k.lower() == name.lower()), None)


def head(status: int, headers: Iterable[tuple[str, str]] = ()) -> bytes:
    """A response head."""
    lines = [f"HTTP/1.1 {status} X"] + [f"{k}: {v}" for k, v in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def json_script(
    body: Any = None, status: int = 200, headers: Iterable[tuple[str, str]] = (), delay_s: float = 0
) -> list[Step]:
    """A whole JSON answer with a length."""
    raw = (
        body
        if isinstance(body, bytes)
        else json.dumps(body if body is not None else answer()).encode()
    )
    base = [("content-type", "application/json"), ("content-length", str(len(raw)))]
    steps: list[Step] = [Wait(delay_s)] if delay_s else []
    return [*steps, Send(head(status, [*base, *headers]) + raw)]


def usage(prompt: int = 10, completion: int = 5, cached: int | None = None) -> dict[str, Any]:
    """A usage object."""
    found: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if cached is not None:
        found["prompt_tokens_details"] = {"cached_tokens": cached}
    return found


def answer(text: str = "hello", used: dict[str, Any] | None = None) -> dict[str, Any]:
    """A chat completion object."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "alpha-8b",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        ],
        "usage": used or usage(),
    }


def chunk(choices: Any, **extra: Any) -> dict[str, Any]:
    """A chat completion chunk object."""
    base = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "alpha-8b",
    }
    return base | {"choices": choices} | extra


def delta(content: str | None = None, finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chunk with one choice."""
    inner = dict(fields) if content is None else {"content": content} | fields
    return chunk([{"index": 0, "delta": inner, "finish_reason": finish}])


def event(payload: Any, end: str = "\n\n") -> bytes:
    """One server-sent event."""
    text = (
        payload
        if isinstance(payload, str)
        else json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    )
    return f"data: {text}{end}".encode()


SSE_HEADERS = (
    ("content-type", "text/event-stream; charset=utf-8"),
    ("transfer-encoding", "chunked"),
)


def framed(data: bytes) -> bytes:
    """HTTP chunk around the data."""
    return b"%x\r\n%s\r\n" % (len(data), data)


LAST = b"0\r\n\r\n"


def sse_head(headers: Iterable[tuple[str, str]] = ()) -> Send:
    """Head of an event stream."""
    return Send(head(200, [*SSE_HEADERS, *headers]))


def stream_events(
    texts: Iterable[str], used: dict[str, Any] | None = None, *, role: bool = True
) -> list[bytes]:
    """Events of a plain answer: role, contents, finish, usage, [DONE]."""
    events = [event(delta("", role="assistant"))] if role else []
    events += [event(delta(text)) for text in texts]
    events.append(event(delta(finish="stop")))
    if used is not None:
        events.append(event(chunk([], usage=used)))
    return [*events, event("[DONE]")]


def stream_script(
    texts: Iterable[str] = ("he", "llo"), used: dict[str, Any] | None = None, gap_s: float = 0.0,
    first_s: float = 0.0,
) -> list[Step]:  # fmt: skip
    """A whole streamed answer; `used` None sends a usage that fits, `{}` sends none."""
    texts = list(texts)
    if used is None:
        used = usage(10, len(texts))
    events = stream_events(texts, used or None)
    steps: list[Step] = [sse_head()] if not first_s else [Wait(first_s), sse_head()]
    for one in events:
        steps.append(Send(framed(one)))
        if gap_s:
            steps.append(Wait(gap_s))
    return [*steps, Send(LAST)]


@dataclass
class _Pages:
    health: int = 200
    metrics: str = ""
    models: list[str] = field(default_factory=lambda: ["alpha-8b"])


class Upstream:
    """The server. `plan(*scripts)` queues scripts for coming requests; the last one repeats.

    `choose`, when set, is called with each request and may return a script (or None: the plan).
    """

    def __init__(self, *scripts: Script, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.requests: list[Seen] = []
        self.pages = _Pages()
        self.choose: Callable[[Seen], Script | None] | None = None
        self.delay_accept_s = 0.0
        self._plan: list[Script] = list(scripts) or [json_script()]
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.host, self.port = "127.0.0.1", 0

    @property
    def address(self) -> tuple[str, int]:
        return self.host, self.port

    def plan(self, *scripts: Script) -> None:
        """Replace what will be played."""
        self._plan = list(scripts)

    @property
    def completions(self) -> list[Seen]:
        """Requests for completions, without pages and probes' pages."""
        return [r for r in self.requests if r.method == "POST"]

    async def __aenter__(self) -> "Upstream":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self, port: int = 0) -> None:
        """Listen."""
        self._server = await asyncio.start_server(
            self._serve, self.host, port, limit=1 << 24, ssl=self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and drop every connection."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while (seen := await self._read(reader)) is not None:
                if not await self._answer(seen, reader, writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> Seen | None:
        try:
            raw = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        lines = raw.decode("latin-1").split("\r\n")
        method, path, _ = lines[0].split(" ", 2)
        headers = [tuple(line.split(": ", 1)) for line in lines[1:] if line]
        seen = Seen(method, path, headers, b"", time.monotonic())  # type: ignore[arg-type]
        length = int(seen.header("content-length") or 0)
        seen.body = await reader.readexactly(length) if length else b""
        self.requests.append(seen)
        return seen

    def _script_for(self, seen: Seen) -> Script:
        if seen.method == "GET":
            return self._page(seen.path)
        if self.choose is not None and (script := self.choose(seen)) is not None:
            return script
        return self._plan.pop(0) if len(self._plan) > 1 else self._plan[0]

    def _page(self, path: str) -> Script:
        if path == "/health":
            return json_script(b"", self.pages.health)
        if path == "/metrics":
            raw = self.pages.metrics.encode()
            return [
                Send(
                    head(200, [("content-type", "text/plain"), ("content-length", str(len(raw)))])
                    + raw
                )
            ]
        if path == "/v1/models":
            return json_script({"object": "list", "data": [{"id": m} for m in self.pages.models]})
        return json_script({"detail": "Not Found"}, 404)

    async def _answer(
        self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        gone = asyncio.create_task(self._watch(seen, reader, writer))
        try:
            for step in self._script_for(seen):
                if not await self._play(step, seen, writer, gone):
                    return False
        except ConnectionError:
            seen.closed_at = seen.closed_at or time.monotonic()
            return False
        finally:
            if not gone.done():
                gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
        seen.answered_at = time.monotonic()
        return not writer.is_closing()

    async def _watch(
        self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Notice when the peer closes: EOF arrives while the script plays."""
        while not reader.at_eof() and reader.exception() is None and not writer.is_closing():
            await asyncio.sleep(0.005)
        seen.closed_at = seen.closed_at or time.monotonic()

    async def _play(
        self, step: Step, seen: Seen, writer: asyncio.StreamWriter, gone: "asyncio.Task[None]"
    ) -> bool:
        if isinstance(step, Send):
            size = step.piece_bytes or len(step.data) or 1
            for at in range(0, len(step.data), size):
                if gone.done():
                    return False
                writer.write(step.data[at : at + size])
                seen.sent_bytes += size
                await writer.drain()
                if step.piece_bytes:
                    await asyncio.sleep(0)
            return True
        if isinstance(step, Wait):
            await asyncio.wait([gone], timeout=step.seconds)
            return not gone.done()
        if isinstance(step, Hang):
            await gone
            return False
        if isinstance(step, Reset):
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            return False
        writer.close()
        return False


class UpstreamThread(Upstream):
    """The same server on a thread of its own, for tests that are not async."""

    def __enter__(self) -> "UpstreamThread":
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.run(self.start(self.port))
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def run(self, work: Any) -> Any:
        """Run a coroutine on the server's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

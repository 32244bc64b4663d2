"""The stand of the gateway benchmark: an upstream and a load generator.

`python -m console.benchmarks.stand upstream PORT` answers any POST with a small completion, or with
an SSE stream of `max_tokens` chunks when the body asks for one. `... load PORT KEY CONNS SECONDS
CHUNKS BYTES` keeps CONNS requests with prompts of BYTES in flight for SECONDS and prints one JSON
object of counts and latencies.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from typing import cast

import httptools
import uvloop

LOREM = "lorem ipsum dolor sit amet "
CHUNK = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" token"},"finish_reason":null}]}\n\n'
)
LAST = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[],'
    b'"usage":{"prompt_tokens":50,"completion_tokens":%d,"total_tokens":%d}}\n\ndata: [DONE]\n\n'
)
ANSWER = (
    b'{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"hello there"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":50,"completion_tokens":20,"total_tokens":70}}'
)


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Upstream(asyncio.Protocol):
    """Answers at once; streams chunk by chunk, yielding between chunks."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Feed the parser."""
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        """Forget the last request."""
        self._body = b""

    def on_body(self, data: bytes) -> None:
        """Collect the body."""
        self._body += data

    def on_message_complete(self) -> None:
        """Answer."""
        if b'"stream":true' in self._body.replace(b" ", b""):
            asyncio.get_running_loop().create_task(self._stream())
            return
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
            % (len(ANSWER), ANSWER)
        )

    async def _stream(self) -> None:
        count = int(json.loads(self._body)["max_tokens"])
        self._transport.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for _ in range(count):
            self._transport.write(_framed(CHUNK))
            await asyncio.sleep(0)
        self._transport.write(_framed(LAST % (count, count + 50)) + b"0\r\n\r\n")


class Caller(asyncio.Protocol):
    """One connection in a closed loop: the next request leaves when the answer has ended."""

    def __init__(self, request: bytes, done: Callable[[int, float, int], None]) -> None:
        self._request = request
        self._done = done
        self._chunks = 0
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self._transport = cast("asyncio.Transport", transport)
        self._next()

    def _next(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._chunks = 0
        self._is_ended = False
        self._sent_at = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Feed the parser; at the end of an answer send again."""
        self._parser.feed_data(data)
        if self._is_ended:
            elapsed_s = time.perf_counter() - self._sent_at
            self._done(self._parser.get_status_code(), elapsed_s, self._chunks)
            self._next()

    def on_body(self, data: bytes) -> None:
        """Count the events."""
        self._chunks += data.count(b"data: {")

    def on_message_complete(self) -> None:
        """Mark the end; `data_received` goes on from there."""
        self._is_ended = True


async def serve_upstream(port: int) -> None:
    """Run the upstream until killed."""
    server = await asyncio.get_running_loop().create_server(
        Upstream, "127.0.0.1", port, backlog=1024
    )
    await server.serve_forever()


async def load(
    port: int, key: str, connections: int, seconds: float, chunks: int, prompt_bytes: int
) -> dict[str, float]:
    """Drive `connections` callers for `seconds`; `chunks` 0 means plain JSON answers."""
    body: dict[str, object] = {
        "model": "m",
        "messages": [{"role": "user", "content": LOREM * (prompt_bytes // len(LOREM))}],
        "max_tokens": chunks or 100,
    }
    if chunks:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    payload = json.dumps(body, separators=(",", ":")).encode()
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nauthorization: Bearer %s\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
    ) % (port, key.encode(), len(payload), payload)
    latencies_s: list[float] = []
    counts = {"requests": 0, "errors": 0, "chunks": 0}

    def done(status: int, elapsed_s: float, seen: int) -> None:
        if status == 200 and (not chunks or seen >= chunks):
            counts["requests"] += 1
            counts["chunks"] += seen
            latencies_s.append(elapsed_s)
        else:
            counts["errors"] += 1

    loop = asyncio.get_running_loop()
    for _ in range(connections):
        await loop.create_connection(lambda: Caller(request, done), "127.0.0.1", port)
    await asyncio.sleep(seconds)
    latencies_s.sort()
    middle = latencies_s[len(latencies_s) // 2] if latencies_s else 0.0
    tail = latencies_s[int(len(latencies_s) * 0.99)] if latencies_s else 0.0
    return {**counts, "seconds": seconds, "latency_p50_s": middle, "latency_p99_s": tail}


def main() -> None:
    """Run the part that the first argument names."""
    match sys.argv[1:]:
        case ["upstream", port]:
            uvloop.run(serve_upstream(int(port)))
        case ["load", port, key, connections, seconds, chunks, prompt_bytes]:
            counts = (int(connections), float(seconds), int(chunks), int(prompt_bytes))
            result = uvloop.run(load(int(port), key, *counts))
            sys.stdout.write(json.dumps(result) + "\n")
        case _:
            sys.exit("usage: stand upstream PORT | load PORT KEY CONNS SECONDS CHUNKS BYTES")


if __name__ == "__main__":
    main()

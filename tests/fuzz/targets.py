"""What fuzzing runs: each target takes any bytes and holds what must be true of every parser.

The first `CONTROL_BYTES` choose options and where the rest is cut; the rest is what a peer sent. A
target returns or raises AssertionError; any other exception is a finding too. `run.py` searches
with coverage, `test_corpus.py` replays what was found, `tests/property/test_parsers.py` draws.
"""

import itertools
import json
import re
from collections.abc import Callable
from typing import Any

from routing.decision.types import Refusal
from routing.gateway.dialects.body import Call, Decided, forwarded_body, read_call
from routing.gateway.dialects.catalog import OPERATIONS
from routing.gateway.dialects.events import MESSAGES_LOOK, OPENAI_LOOK, RESPONSES_LOOK, Look
from routing.gateway.dialects.failure import (
    MAX_MESSAGE,
    MAX_WAIT_S,
    error_code,
    error_message,
    is_cut_off,
    retry_after_s,
)
from routing.gateway.dialects.operation import Operation
from routing.gateway.dialects.pictures import size_of
from routing.gateway.dialects.usage import (
    MOST_TOKENS,
    chat_usage,
    messages_usage,
    read_answer,
    read_usage,
    responses_usage,
)
from routing.gateway.http1 import BrokenRequestError, Request, RequestReader, ResponseReader
from routing.gateway.names import bad_name, names_of
from routing.gateway.sse import SseScanner, payloads_of
from routing.gateway.trace import read_traceparent

BODY_BYTES = 200
CONTROL_BYTES = 5
CUTS = CONTROL_BYTES - 1
LOOKS = (OPENAI_LOOK, MESSAGES_LOOK, RESPONSES_LOOK)
_LINE_ENDS = re.compile(rb"[\r\n]+")
READERS = (chat_usage, messages_usage, responses_usage)


def pieces_of(data: bytes, at: list[int]) -> list[bytes]:
    """The same bytes in pieces."""
    edges = sorted({0, len(data), *(one for one in at if one < len(data))})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


# -- what must hold, however the bytes came


def check_request(data: bytes, at: list[int]) -> None:
    """Requests are the same however they are cut, and within their bounds."""
    assert requests_in(pieces_of(data, at)) == requests_in([data])


def requests_in(pieces: list[bytes]) -> tuple[list[tuple[Any, ...]], bool]:
    """Whole requests, and whether the connection is broken."""
    reader = RequestReader(BODY_BYTES)
    is_broken = False
    try:
        for piece in pieces:
            reader.feed(piece)
            assert reader.buffered_bytes <= BODY_BYTES + len(piece)
    except BrokenRequestError:
        is_broken = True
    return [_seen(one) for one in reader.ready], is_broken


def _seen(request: Request) -> tuple[Any, ...]:
    assert len(request.body) <= BODY_BYTES
    if bad_name(request.headers) is None:
        names_of(request.headers)
    read_traceparent(request.headers.get(b"traceparent"))
    return request.method, request.target, sorted(request.headers.items()), request.body


def check_response(data: bytes, at: list[int]) -> None:
    """A response that can be read is the same however it is cut."""

    def read(pieces: list[bytes]) -> tuple[int, bytes, bool, bool]:
        reader, body = ResponseReader(), b""
        try:
            for piece in pieces:
                reader.feed(piece)
                body += reader.take()
        except BrokenRequestError:
            return reader.status, body, reader.is_done, True
        wait_s = retry_after_s(reader.headers, 1e9)
        assert wait_s is None or 0 <= wait_s <= MAX_WAIT_S
        return reader.status, body, reader.is_done, False

    whole = read([data])
    if not whole[3]:
        assert read(pieces_of(data, at)) == whole


def check_stream(data: bytes, at: list[int], look: Look, *, keep_usage: bool = True) -> None:
    """A stream is the same however it is cut; nothing is added to it."""

    def scan(pieces: list[bytes], *, holds_end: bool) -> tuple[Any, ...]:
        scanner = SseScanner(keep_usage=keep_usage, look=look, holds_end=holds_end)
        out = b"".join(scanner.feed(piece) for piece in pieces) + scanner.close()
        assert len(out) + len(scanner.ending) <= len(data)
        told = scanner.tokens, scanner.usage, scanner.opening, scanner.fault, scanner.is_complete
        # A blank line cut inside its line end may leave one more, which ends no event.
        return (*told, _LINE_ENDS.sub(b"\n", out + scanner.ending).lstrip(b"\n"))

    whole = scan([data], holds_end=False)
    assert scan(pieces_of(data, at), holds_end=False) == whole
    assert scan([data], holds_end=True)[:5] == whole[:5]
    scanner = SseScanner(keep_usage=keep_usage, look=look, is_rest=True)
    assert len(scanner.feed(data) + scanner.close()) <= len(data)
    assert sum(len(raw) for raw, _ in payloads_of(data)) <= len(data)


def check_body(data: bytes, operation: Operation) -> None:
    """A body is refused in words, or forwarded with every member that is its own."""
    found = read_call(data, operation)
    if isinstance(found, Refusal):
        assert found.message
        return
    assert isinstance(found, Call)
    assert found.ask.input_bytes >= 0
    sent = json.loads(forwarded_body(found, Decided("real", 7, "salt", 0, "id")))
    given = json.loads(data)
    assert sent["model"] == "real"
    ours = {"model", "cache_salt", "priority", "request_id", "stream_options", *operation.bounds}
    assert {k: v for k, v in sent.items() if k not in ours} == {
        k: v for k, v in given.items() if k not in ours
    }
    assert not operation.generates or all(
        sent[name] <= 7 for name in operation.bounds if sent.get(name) is not None
    )


def check_answer(data: bytes, reader: Any) -> None:
    """An upstream's answer or error: counts that can be charged, words that can be shown."""
    message = error_message(data)
    assert len(message) <= MAX_MESSAGE
    assert message.isprintable()
    code = error_code(data)
    assert code is None or 400 <= code <= 599
    is_cut_off(data)
    for usage in (read_answer(data, reader)[1], read_usage(data, reader, data)):
        if usage is not None:
            counts = usage.input_tokens, usage.output_tokens, usage.cached_tokens
            assert all(0 <= count <= MOST_TOKENS for count in counts)
            assert usage.cached_tokens + usage.cache_write_tokens <= usage.input_tokens


# -- targets of the search


def _split(data: bytes) -> tuple[int, list[int], bytes]:
    control, rest = data[:CONTROL_BYTES].ljust(CONTROL_BYTES, b"\0"), data[CONTROL_BYTES:]
    return control[0], [one * len(rest) // 256 for one in control[1:]], rest


def request(data: bytes) -> None:
    _, at, rest = _split(data)
    check_request(rest, at)


def response(data: bytes) -> None:
    _, at, rest = _split(data)
    check_response(rest, at)


def stream(data: bytes) -> None:
    option, at, rest = _split(data)
    check_stream(rest, at, LOOKS[option % len(LOOKS)], keep_usage=bool(option & 128))


def body(data: bytes) -> None:
    option, _, rest = _split(data)
    check_body(rest, OPERATIONS[option % len(OPERATIONS)])


def answer(data: bytes) -> None:
    option, _, rest = _split(data)
    check_answer(rest, READERS[option % len(READERS)])


def picture(data: bytes) -> None:
    found = size_of(b"data:image/png;base64," + data[CONTROL_BYTES:])
    assert found is None or min(found) > 0


TARGETS: dict[str, Callable[[bytes], None]] = {
    one.__name__: one for one in (request, response, stream, body, answer, picture)
}

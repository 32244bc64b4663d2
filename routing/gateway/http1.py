"""HTTP/1.1 without I/O: bytes to requests and response heads, heads to bytes. llhttp parses."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import httptools

MAX_HEAD_BYTES = 64 * 1024  # generous for tokens and cookies of proxies in front
MAX_HEADER_COUNT = 128
MAX_PIPELINED = 16  # requests read ahead on a connection while one is served
NO_BODY_STATUS = 200  # first status that is not informational

OUR_PREFIX = b"x-headrace-"  # nobody else's headers begin so

# The only request headers that are read; everything else stops here.
READ_HEADERS = frozenset(
    (
        b"authorization",
        b"x-api-key",
        b"content-encoding",
        b"expect",
        b"idempotency-key",
        b"x-stainless-retry-count",
        b"x-headrace-class",
        b"x-headrace-stream-cost",
        b"x-headrace-exact-model",
        b"x-headrace-deadline-ms",
        b"x-headrace-session-id",
        b"x-headrace-task-id",
        b"x-headrace-task-kind",
        b"x-headrace-task-outcome",
        b"x-headrace-task-score",
        b"x-headrace-parent-id",
        b"x-headrace-step",
        b"x-session-id",
        b"x-claude-code-session-id",
        b"x-opencode-session",
        b"x-session-affinity",
        b"x-litellm-session-id",
        b"session-id",
        b"session_id",
        b"traceparent",
    )
)


class Broken(StrEnum):
    """Why a connection cannot go on."""

    MALFORMED = "malformed"
    HEAD_TOO_LARGE = "head_too_large"
    BODY_TOO_LARGE = "body_too_large"
    TOO_MANY = "too_many"


class BrokenRequestError(Exception):
    """The peer broke the protocol or a bound; answer once and close."""

    def __init__(self, why: Broken) -> None:
        super().__init__(why.value)
        self.why = why


class Request:
    """One request: method and target as sent, the headers of `READ_HEADERS`, the whole body.

    Under `OUR_PREFIX` stands the name of a header that would be ours and is none.
    """

    __slots__ = ("body", "headers", "is_http10", "keep_alive", "method", "target")

    def __init__(self) -> None:
        self.method = b""
        self.target = b""
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.keep_alive = True
        self.is_http10 = False


class RequestReader:
    """Feeds bytes, collects whole requests in `ready`; bounds are checked before bytes are kept.

    `wants_continue` turns true when a peer waits for `100 Continue`. `buffered_bytes` is what an
    unfinished body holds; `is_reading` is true from the first byte of a request to its last.
    """

    __slots__ = (
        "_framing",
        "_in_head",
        "_length",
        "_max_body",
        "_parser",
        "_pieces",
        "_request",
        "_seen_headers",
        "broken",
        "buffered_bytes",
        "head_bytes",
        "is_reading",
        "ready",
        "wants_continue",
    )

    def __init__(self, max_body_bytes: int) -> None:
        self._parser: Any = httptools.HttpRequestParser(self)
        self._max_body = max_body_bytes
        self._pieces: list[bytes] = []
        self._request = Request()
        self._in_head = True
        self._length = -1
        self._framing = b""
        self._seen_headers = 0
        self.head_bytes = 0
        self.buffered_bytes = 0
        self.broken: Broken | None = None
        self.wants_continue = False
        self.is_reading = False
        self.ready: list[Request] = []

    def close(self) -> None:
        """Nothing more comes. The parser knows this reader: until they part, neither can be freed
        but by a search for cycles, which the gateway makes seldom."""
        self._parser = None

    def feed(self, data: bytes) -> None:
        """Take bytes in. Raises `BrokenRequestError`; requests before the fault stay in `ready`."""
        self.is_reading = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline(data[offer.args[0] :])
            return
        except httptools.HttpParserError:
            raise BrokenRequestError(self.broken or Broken.MALFORMED) from None
        if self._in_head and self.is_reading:
            self.head_bytes += len(data)
            if self.head_bytes > MAX_HEAD_BYTES:
                raise BrokenRequestError(Broken.HEAD_TOO_LARGE)

    def _decline(self, rest: bytes) -> None:
        """Go on as HTTP/1 after an offer of another protocol (`Upgrade: h2c`).

        The parser ended the message with its head, since anything might follow one. A new parser
        reads that head again, without the offer.
        """
        offered = self.ready.pop()
        if offered.method == b"CONNECT":
            raise BrokenRequestError(Broken.MALFORMED)
        self._parser = httptools.HttpRequestParser(self)
        kept = b"".join(b"%b: %b\r\n" % pair for pair in offered.headers.items())
        line = b"%b %b HTTP/1.1\r\nhost: -\r\n" % (offered.method, offered.target)
        self.feed(line + kept + self._framing + b"\r\n" + rest)

    def _stop(self, why: Broken) -> None:
        self.broken = why
        raise BrokenRequestError(why)

    # -- called by the parser

    def on_message_begin(self) -> None:
        """A request starts."""
        if len(self.ready) >= MAX_PIPELINED:
            self._stop(Broken.TOO_MANY)
        self.is_reading = True
        self._request = Request()
        self._length = -1
        self._framing = b""
        self._seen_headers = 0

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        self._request.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A whole header."""
        self._seen_headers = seen = self._seen_headers + 1
        if seen > MAX_HEADER_COUNT:
            self._stop(Broken.HEAD_TOO_LARGE)
        name = name.lower()
        if name in READ_HEADERS:
            self._request.headers[name] = value
        elif name in (b"content-length", b"transfer-encoding"):
            self._framing += b"%b: %b\r\n" % (name, value)
            if name == b"content-length":
                self._length = int(value) if value.isdigit() else -1
        elif name.startswith(OUR_PREFIX):
            self._request.headers[OUR_PREFIX] = name  # there is no such header: told, not ignored

    def on_headers_complete(self) -> None:
        """The head ends: a declared length over the bound is refused before any body is kept."""
        self._in_head = False
        self.head_bytes = 0
        if self._length > self._max_body:
            self._stop(Broken.BODY_TOO_LARGE)
        expected = self._request.headers.get(b"expect")
        if expected is not None and expected.lower() == b"100-continue":
            self.wants_continue = True

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        self.buffered_bytes += len(piece)
        if self.buffered_bytes > self._max_body:
            self._pieces.clear()
            self._stop(Broken.BODY_TOO_LARGE)
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """The request is whole."""
        request, pieces = self._request, self._pieces
        request.body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        request.method = self._parser.get_method()
        request.keep_alive = self._parser.should_keep_alive()
        request.is_http10 = self._parser.get_http_version() == "1.0"
        self._pieces = []
        self.buffered_bytes = 0
        self.wants_continue = False
        self._in_head = True
        self.is_reading = False
        self.ready.append(request)


class ResponseReader:
    """An upstream's response: status, the few headers that matter, body pieces.

    `take` hands over what came since the last call. Informational (1xx) responses are skipped.
    One reader serves a connection for as long as it is reused.
    """

    __slots__ = (
        "_parser",
        "_pieces",
        "_seen_headers",
        "head_done",
        "headers",
        "is_done",
        "is_framed",
        "keep_alive",
        "status",
    )

    _WANTED = frozenset(
        (b"content-type", b"content-encoding", b"retry-after", b"retry-after-ms", b"x-request-id")
    )

    def __init__(self) -> None:
        self._parser: Any = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self.reset()

    def reset(self) -> None:
        """Before the next response on the connection."""
        self._pieces = []
        self._seen_headers = 0
        self.headers: dict[bytes, bytes] = {}
        self.status = 0
        self.head_done = False
        self.is_done = False
        self.is_framed = False
        self.keep_alive = True

    def close(self) -> None:
        """Nothing more comes: part with the parser, as `RequestReader.close` does."""
        self._parser = None

    def feed(self, data: bytes) -> None:
        """Take bytes in. Raises `BrokenRequestError` for bytes that are no response."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            raise BrokenRequestError(Broken.MALFORMED) from None

    def take(self) -> bytes:
        """Body bytes since the last call."""
        pieces = self._pieces
        if not pieces:
            return b""
        self._pieces = []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    # -- called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        """A whole header."""
        self._seen_headers += 1
        if self._seen_headers > MAX_HEADER_COUNT:
            raise BrokenRequestError(Broken.HEAD_TOO_LARGE)
        name = name.lower()
        if name in self._WANTED:
            self.headers[name] = value
        elif name in (b"content-length", b"transfer-encoding"):
            self.is_framed = True

    def on_headers_complete(self) -> None:
        """The head ends."""
        status = self._parser.get_status_code()
        if status < NO_BODY_STATUS:
            self.headers = {}
            return
        self.status = status
        self.head_done = True

    def on_body(self, piece: bytes) -> None:
        """A piece of the body."""
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """The response is whole (unless it was informational)."""
        if self.head_done:
            self.is_done = True
            self.keep_alive = self._parser.should_keep_alive()


REASONS = {
    200: b"OK", 400: b"Bad Request", 401: b"Unauthorized", 403: b"Forbidden", 404: b"Not Found",
    405: b"Method Not Allowed", 408: b"Request Timeout", 409: b"Conflict",
    413: b"Content Too Large", 415: b"Unsupported Media Type", 429: b"Too Many Requests",
    431: b"Request Header Fields Too Large", 500: b"Internal Server Error", 502: b"Bad Gateway",
    503: b"Service Unavailable", 504: b"Gateway Timeout",
}  # fmt: skip

STATUS_LINES = {code: b"HTTP/1.1 %d %b\r\n" % (code, text) for code, text in REASONS.items()}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
CLOSE = b"connection: close\r\n"


def whole(status: int, headers: bytes, body: bytes, *, keep_alive: bool) -> bytes:
    """A response with a length; `headers` are finished lines."""
    return b"%b%b%bcontent-length: %d\r\n\r\n%b" % (
        STATUS_LINES[status],
        headers,
        b"" if keep_alive else CLOSE,
        len(body),
        body,
    )


def chunk(data: bytes) -> bytes:
    """Data as one HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


Send = Callable[[bytes], None]

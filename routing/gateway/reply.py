"""Head and body of what a caller receives, apart from refusals' words."""

from routing.contracts.enums import Dimension, LimitScope, WindowKind
from routing.decision.limits import window_edges
from routing.decision.types import Refusal
from routing.gateway.exchange import Exchange
from routing.gateway.http1 import STATUS_LINES, chunk, whole
from routing.gateway.refusal import error_object, retry_headers, status_of

JSON = b"content-type: application/json\r\n"
# Proxies in front would hold tokens back to fill their buffers.
_STREAM = (
    b"content-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\nx-accel-buffering: no\r\n"
)
_CHUNKED = b"transfer-encoding: chunked\r\n"
_MINUTE_MS = 60_000
_NANO = 1_000_000_000

LimitName = tuple[LimitScope, Dimension, str]


def identity_headers(exchange: Exchange) -> bytes:
    """Our request id and the policy version that serves the request."""
    return b"x-request-id: %b\r\nx-headrace-policy-version: %b\r\n" % (
        exchange.request_id.encode(),
        exchange.snapshot.policy.label.encode(),
    )


def rate_headers(exchange: Exchange, now_ms: int) -> bytes:
    """`x-ratelimit-*` of the tightest request limit and the tightest token limit, if there are."""
    hold = exchange.hold
    if hold is None or not hold.remaining:
        return b""
    requests: tuple[int, LimitName] | None = None
    tokens: tuple[int, LimitName] | None = None
    for name, left in hold.remaining.items():
        dimension = name[1]
        if dimension is Dimension.REQUESTS:
            if requests is None or left < requests[0]:
                requests = left, name
        elif (dimension is Dimension.INPUT_TOKENS or dimension is Dimension.OUTPUT_TOKENS) and (
            tokens is None or left < tokens[0]
        ):
            tokens = left, name
    lines = b""
    if requests is not None:
        lines = _rate_lines(b"requests", exchange, requests, now_ms)
    if tokens is not None:
        lines += _rate_lines(b"tokens", exchange, tokens, now_ms)
    return lines


def _rate_lines(
    suffix: bytes, exchange: Exchange, tightest: tuple[int, LimitName], now_ms: int
) -> bytes:
    left, name = tightest
    if name[2] == WindowKind.MINUTE:
        reset_ms = _MINUTE_MS - now_ms % _MINUTE_MS
    else:
        edges = window_edges(WindowKind(name[2]), exchange.tenant.timezone, now_ms)
        reset_ms = max(0, edges[1] - now_ms)
    return (
        b"x-ratelimit-limit-%b: %d\r\n"
        b"x-ratelimit-remaining-%b: %d\r\n"
        b"x-ratelimit-reset-%b: %d.%03ds\r\n"
    ) % (
        suffix,
        _amount(exchange, *name),
        suffix,
        max(0, left),
        suffix,
        *divmod(reset_ms, 1000),
    )


def _amount(exchange: Exchange, scope: LimitScope, dimension: Dimension, window: str) -> int:
    """The limit that the remaining amount belongs to."""
    least = 0
    for limit in exchange.tenant.limits:
        if (
            limit.dimension is dimension
            and limit.scope is scope
            and limit.window == window
            and _applies(exchange, limit.subject)
            and (not least or limit.amount < least)
        ):
            least = limit.amount
    return least


def _applies(exchange: Exchange, subject: str) -> bool:
    return not subject or subject in (
        exchange.key.id,
        exchange.model_name,
        exchange.class_name,
    )


def dollars(nanousd: int) -> bytes:
    """Decimal dollars, exact to the nano-dollar."""
    return b"%d.%09d" % divmod(nanousd, _NANO)


def stream_start(exchange: Exchange, rates: bytes, first: bytes) -> bytes:
    """Head of an event stream and its first bytes. HTTP/1.0 peers read until the end."""
    is_old = exchange.request.is_http10
    head = b"%b%b%b%b%b\r\n" % (
        STATUS_LINES[200],
        _STREAM,
        identity_headers(exchange),
        rates,
        b"connection: close\r\n" if is_old else _CHUNKED,
    )
    return head + (first if is_old else chunk(first))


def answer(
    exchange: Exchange, rates: bytes, spend_nanousd: int, body: bytes, *, keep_alive: bool
) -> bytes:
    """A whole answer with its cost."""
    cost = b"x-headrace-cost-usd: %b\r\n" % dollars(spend_nanousd)
    headers = JSON + identity_headers(exchange) + rates + cost
    return whole(200, headers, body, keep_alive=keep_alive)


def refusal_answer(
    refusal: Refusal, headers: bytes, *, keep_alive: bool, status: int | None = None
) -> bytes:
    """A refusal as JSON; `headers` are extra finished lines."""
    lines = JSON + headers + retry_headers(refusal)
    code = status if status is not None else status_of(refusal)
    return whole(code, lines, error_object(refusal), keep_alive=keep_alive)

"""Head and body of what a caller receives, apart from refusals' words."""

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from routing.contracts.enums import WindowKind
from routing.decision.limits import window_edges
from routing.decision.types import Rate, Refusal, Standing
from routing.gateway.dialects.openai import CHAT
from routing.gateway.dialects.operation import Style
from routing.gateway.exchange import Exchange
from routing.gateway.http1 import LAST_CHUNK, STATUS_LINES, Request, chunk, whole
from routing.gateway.once import Answer
from routing.gateway.refusal import error_object, retry_headers, status_of

JSON = b"content-type: application/json\r\n"
# Proxies in front would hold tokens back to fill their buffers.
_STREAM = (
    b"content-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\nx-accel-buffering: no\r\n"
)
_CHUNKED = b"transfer-encoding: chunked\r\n"
_REPLAYED = b"x-headrace-replayed: true\r\n"
_MINUTE_MS = 60_000
_NANO = 1_000_000_000
_POLICIES = 64  # policies whose header line is kept: those of the snapshots still in use


def identity_headers(exchange: Exchange) -> bytes:
    """Our request id, the policy version that serves it, and what overload took from it."""
    policy = exchange.snapshot.policy
    return b"%b%b%b" % (
        request_id_lines(exchange.request_id, exchange.operation.style),
        _policy_line(policy.name, policy.version),
        _degraded_line(exchange),
    )


def _degraded_line(exchange: Exchange) -> bytes:
    """What this answer is less than what was asked for: less output, another model."""
    if exchange.stand is None:
        found = exchange.degraded
    else:
        other = b"model=%b" % exchange.model_name.encode()
        found = b"%b, %b" % (exchange.degraded, other) if exchange.degraded else other
    return b"x-headrace-degraded: %b\r\n" % found if found else b""


def request_id_lines(request_id: str, style: Style) -> bytes:
    """`x-request-id`, and the header in which Anthropic's clients look for it."""
    spelled = request_id.encode()
    line = b"x-request-id: %b\r\n" % spelled
    return line if style is not Style.ANTHROPIC else b"request-id: %b\r\n%b" % (spelled, line)


@lru_cache(maxsize=_POLICIES)
def _policy_line(name: str, version: int) -> bytes:
    return b"x-headrace-policy-version: %b@%d\r\n" % (name.encode(), version)


def rate_headers(exchange: Exchange, now_ms: int, standing: Standing | None = None) -> bytes:
    """`x-ratelimit-*` of the tightest request limit and the tightest token limit, if there are.

    `standing` is what a refused request found; one that was held knows it from its hold.
    """
    hold = exchange.hold
    if hold is not None:
        rates, left = hold.rates, hold.left
    elif standing is not None:
        rates, left = standing
    else:
        return b""
    lines, zone = b"", exchange.tenant.timezone
    if rates.requests:
        rate = _tightest(rates.requests, left)
        lines = _rate_lines(b"requests", rate, left[rate.place], zone, now_ms)
    if rates.tokens:
        rate = _tightest(rates.tokens, left)
        lines += _rate_lines(b"tokens", rate, left[rate.place], zone, now_ms)
    return lines


def _tightest(rates: Sequence[Rate], left: Sequence[int]) -> Rate:
    """The limit with the least left; of equals the first."""
    found = rates[0]
    least = left[found.place]
    for rate in rates[1:]:
        if left[rate.place] < least:
            found, least = rate, left[rate.place]
    return found


def _rate_lines(suffix: bytes, rate: Rate, left: int, zone: str, now_ms: int) -> bytes:
    if rate.window is WindowKind.MINUTE:
        reset_ms = _MINUTE_MS - now_ms % _MINUTE_MS
    else:
        reset_ms = max(0, window_edges(rate.window, zone, now_ms, rate.anchor_min)[1] - now_ms)
    return (
        b"x-ratelimit-limit-%b: %d\r\n"
        b"x-ratelimit-remaining-%b: %d\r\n"
        b"x-ratelimit-reset-%b: %d.%03ds\r\n"
    ) % (suffix, rate.amount, suffix, max(0, left), suffix, *divmod(reset_ms, 1000))


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


def replay(request: Request, answer: Answer, body: bytes) -> bytes:
    """An answer given before, byte for byte, under its own request id. It costs nothing again."""
    if not answer.is_stream:
        headers = JSON + answer.headers + _REPLAYED + b"x-headrace-cost-usd: %b\r\n" % dollars(0)
        return whole(200, headers, body, keep_alive=request.keep_alive)
    is_old = request.is_http10
    head = b"%b%b%b%b%b\r\n" % (
        STATUS_LINES[200],
        _STREAM,
        answer.headers,
        _REPLAYED,
        b"connection: close\r\n" if is_old else _CHUNKED,
    )
    return head + (body if is_old else chunk(body) + LAST_CHUNK)


def answer(
    exchange: Exchange, rates: bytes, spend_nanousd: int, body: bytes, *, keep_alive: bool
) -> bytes:
    """A whole answer with its cost."""
    cost = b"x-headrace-cost-usd: %b\r\n" % dollars(spend_nanousd)
    headers = JSON + identity_headers(exchange) + rates + cost
    return whole(200, headers, body, keep_alive=keep_alive)


def cost_event(exchange: Exchange, spend_nanousd: int) -> bytes:
    """The event before a stream's last one that says what it cost, where the caller asked for it.

    Chat and completions get a chunk without choices, the other dialects an event of a name of ours:
    clients read over both.
    """
    told = {
        "cost_usd": dollars(spend_nanousd).decode(),
        "policy_version": exchange.snapshot.policy.label,
        "request_id": exchange.request_id,
    }
    operation = exchange.operation
    if operation.asks_usage:
        kind = "chat.completion.chunk" if operation is CHAT else "text_completion"
        body = {
            "id": exchange.request_id,
            "object": kind,
            "created": exchange.arrived_ms // 1000,
            "model": exchange.call.model,
            "choices": [],
            "headrace": told,
        }
        return b"data: %b\n\n" % msgspec.json.encode(body)
    event = {"type": "headrace.cost"} | told
    return b"event: headrace.cost\ndata: %b\n\n" % msgspec.json.encode(event)


def refusal_answer(
    refusal: Refusal,
    headers: bytes,
    *,
    keep_alive: bool,
    status: int | None = None,
    style: Style = Style.OPENAI,
    request_id: str = "",
) -> bytes:
    """A refusal as JSON in the caller's shape; `headers` are extra finished lines."""
    code = status if status is not None else status_of(refusal)
    lines = JSON + headers + retry_headers(refusal, code)
    return whole(code, lines, error_object(refusal, style, request_id), keep_alive=keep_alive)

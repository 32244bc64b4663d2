"""What a hook is told of a call, as JSON: the caller's bytes stay as they came."""

import json

import msgspec

from routing.contracts.hooks import HookPoint
from routing.gateway.exchange import Exchange


def of_request(exchange: Exchange) -> bytes:
    """A call before it is admitted: its whole body as `request`."""
    return _with(_facts(exchange, HookPoint.BEFORE), b"request", exchange.call.body)


def of_answer(exchange: Exchange, body: bytes) -> bytes:
    """A whole answer, as `answer`."""
    return _with(_facts(exchange, HookPoint.AFTER), b"answer", body)


def of_deltas(exchange: Exchange, choices: list[dict[str, object]]) -> bytes:
    """What came of a stream since the last question, as `choices`."""
    raw = json.dumps(choices, separators=(",", ":")).encode()  # takes half a surrogate pair too
    return _with(_facts(exchange, HookPoint.STREAM), b"choices", raw)


def _facts(exchange: Exchange, point: HookPoint) -> bytes:
    return msgspec.json.encode(
        {
            "at": point.value,
            "request_id": exchange.request_id,
            "tenant": exchange.tenant.slug,
            "model": exchange.model_name,
            "class": exchange.class_name,
            "operation": exchange.operation.name,
            "stream": exchange.call.is_stream,
        }
    )


def _with(facts: bytes, name: bytes, raw: bytes) -> bytes:
    return b'%b,"%b":%b}' % (facts[:-1], name, raw)

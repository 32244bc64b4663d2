"""What a caller is sent of a stream, in one place: framed, recorded, and kept for a replica's loss.

Nothing is sent before the first output, so the head goes out with the first piece.
"""

from collections.abc import Callable

from routing.gateway.exchange import Exchange, Step
from routing.gateway.http1 import LAST_CHUNK, chunk
from routing.gateway.reply import rate_headers, stream_start


def deliver(exchange: Exchange, out: bytes, now_ms: Callable[[], int]) -> None:
    """Send whole events; `now_ms` is the store's time, for the head's times."""
    if exchange.recording is not None:
        exchange.recording.feed(out)
    if exchange.sent is not None:
        exchange.sent.feed(out)
    if exchange.step is Step.RELAYING:
        exchange.client.write(out if exchange.request.is_http10 else chunk(out))
    else:
        exchange.client.write(_first(exchange, out, now_ms()))


def last_bytes(exchange: Exchange, out: bytes, now_ms: Callable[[], int]) -> bytes:
    """Record a stream's last events, `out` (may be empty): the bytes that end its answer."""
    if exchange.recording is not None:
        exchange.recording.feed(out)
    data = b""
    if exchange.step is not Step.RELAYING:
        data = _first(exchange, out, now_ms())
    elif out:
        data = out if exchange.request.is_http10 else chunk(out)
    return data if exchange.request.is_http10 else data + LAST_CHUNK


def _first(exchange: Exchange, out: bytes, now_ms: int) -> bytes:
    exchange.step = Step.RELAYING
    return stream_start(exchange, rate_headers(exchange, now_ms), out)

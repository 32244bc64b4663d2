"""What became of tries on one replica, summed over five seconds: mergeable, small."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from telemetry.stats import sketch

SPAN_MS = 5_000
KEPT_S = 2400  # sums are kept this long; whoever compares looks back at most `LOOK_BACK_S`
LOOK_BACK_S = 1800


@dataclass(slots=True)
class Tries:
    """Tries that ended, those of them that failed, and times to first output as sketch bins."""

    requests: int = 0
    failed: int = 0
    ttft_s: dict[int, int] = field(default_factory=dict)

    def add(self, requests: int, failed: int, ttft_s: Iterable[tuple[int, int]]) -> None:
        """Count more of them."""
        self.requests += requests
        self.failed += failed
        sketch.add(self.ttft_s, ttft_s)

    def merge(self, other: "Tries") -> None:
        """Count those of another sum."""
        self.add(other.requests, other.failed, other.ttft_s.items())


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, int, bytes]).decode


def encode_tries(tries: Tries) -> bytes:
    """Bytes for the store."""
    return _encode((tries.requests, tries.failed, sketch.pack(tries.ttft_s)))


def decode_tries(raw: bytes) -> Tries:
    """Inverse of `encode_tries`. Raises `msgspec.MsgspecError` or `sketch.SketchError`."""
    requests, failed, packed = _decode(raw)
    return Tries(requests, failed, sketch.unpack(packed))


def spans_of(since_ms: int, until_ms: int) -> range:
    """The spans that lie in `[since_ms, until_ms)` but for a part of the last one.

    The first one begins a second after `since_ms` or later: a gateway's report covers the second
    before it. At most those of `LOOK_BACK_S`.
    """
    first = max(-((-since_ms - 1000) // SPAN_MS), (until_ms - LOOK_BACK_S * 1000) // SPAN_MS)
    return range(first, max(first, -(-until_ms // SPAN_MS)))

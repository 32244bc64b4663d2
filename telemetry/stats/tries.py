"""What became of tries on one replica, summed over five seconds: mergeable, small.

Times to first output are kept apart by the size of the prompt, in octaves of its estimated tokens:
prefill takes time in proportion to it, so that times of unlike sizes say nothing about a replica.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from telemetry.stats import sketch

SPAN_MS = 5_000
KEPT_S = 2400  # sums are kept this long; whoever compares looks back at most `LOOK_BACK_S`
LOOK_BACK_S = 1800
UNSIZED = 0  # the octave of times that came without a size, from a gateway of an earlier version
MAX_OCTAVE = 24  # 8 million tokens and more count as one size

Sizes = Mapping[int, Mapping[int, int]]  # octave -> sketch bins


def octave_of(input_tokens: int) -> int:
    """The size of a prompt: 1 for one token, 2 for 2 to 3, 11 for 1,024 to 2,047."""
    return min(max(1, input_tokens).bit_length(), MAX_OCTAVE)


@dataclass(slots=True)
class Tries:
    """Tries that ended, those of them that failed, and times to first output by prompt size."""

    requests: int = 0
    failed: int = 0
    ttft_by_octave_s: dict[int, dict[int, int]] = field(default_factory=dict)

    @property
    def ttft_s(self) -> dict[int, int]:
        """Bins of all sizes together."""
        merged: dict[int, int] = {}
        for bins in self.ttft_by_octave_s.values():
            sketch.add(merged, bins.items())
        return merged

    def add(self, requests: int, failed: int) -> None:
        """Count more of them."""
        self.requests += requests
        self.failed += failed

    def add_times(self, octave: int, bins: Iterable[tuple[int, int]]) -> None:
        """Count times to first output of prompts of one size."""
        sketch.add(self.ttft_by_octave_s.setdefault(octave, {}), bins)

    def merge(self, other: "Tries") -> None:
        """Count those of another sum."""
        self.add(other.requests, other.failed)
        for octave, bins in other.ttft_by_octave_s.items():
            self.add_times(octave, bins.items())


class _Packed(msgspec.Struct, array_like=True):
    """Bytes of a sum; `unsized` is where an earlier version kept all times."""

    requests: int
    failed: int
    unsized: bytes
    by_octave: dict[int, bytes] = {}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Packed).decode


def encode_tries(tries: Tries) -> bytes:
    """Bytes for the store."""
    packed = {octave: sketch.pack(bins) for octave, bins in tries.ttft_by_octave_s.items()}
    unsized = packed.pop(UNSIZED, b"")
    return _encode(_Packed(tries.requests, tries.failed, unsized, packed))


def decode_tries(raw: bytes) -> Tries:
    """Inverse of `encode_tries`. Raises `msgspec.MsgspecError` or `sketch.SketchError`."""
    packed = _decode(raw)
    times = {octave: sketch.unpack(one) for octave, one in packed.by_octave.items()}
    if packed.unsized:
        times[UNSIZED] = sketch.unpack(packed.unsized)
    return Tries(packed.requests, packed.failed, times)


def spans_of(since_ms: int, until_ms: int) -> range:
    """The spans that lie in `[since_ms, until_ms)` but for a part of the last one.

    The first one begins a second after `since_ms` or later: a gateway's report covers the second
    before it. At most those of `LOOK_BACK_S`.
    """
    first = max(-((-since_ms - 1000) // SPAN_MS), (until_ms - LOOK_BACK_S * 1000) // SPAN_MS)
    return range(first, max(first, -(-until_ms // SPAN_MS)))

"""Mergeable quantile sketch of durations: DDSketch with relative error 1%.

A value x in seconds falls into bin `ceil(ln x / ln GAMMA)`, with `GAMMA = (1 + a) / (1 - a)` and
a = 0.01; a bin stands for `2 * GAMMA**index / (GAMMA + 1)`, which is within 1% of every value that
can fall into it. Bins are sparse (index -> count), merging adds counts, so a merge is exact and
its order does not matter. Percentiles of groups come from merged bins; they are never averaged.

Check values: 0.001, 0.1, 1.0 and 2.5 s fall into bins -345, -115, 0 and 46.
"""

import math
from collections.abc import Iterable, Mapping

ALPHA = 0.01
GAMMA = (1 + ALPHA) / (1 - ALPHA)
_LN_GAMMA = math.log(GAMMA)
# Durations outside are counted at the edge: the span of bins, hence the size of a sketch, is fixed
# (1,382 bins at most), whatever a clock or a client does.
MIN_S = 1e-6
MAX_S = 1e6
_FORMAT = 1  # first byte of a packed sketch
_VARINT_BITS_MAX = 63


class SketchError(ValueError):
    """Packed bytes are damaged or of an unknown format."""


def index_of(seconds: float) -> int:
    """Bin of a duration; values outside [MIN_S, MAX_S], and NaN, count at the nearest edge."""
    if not seconds > MIN_S:
        seconds = MIN_S
    elif seconds > MAX_S:
        seconds = MAX_S
    return math.ceil(math.log(seconds) / _LN_GAMMA)


def value_of(index: int) -> float:
    """Seconds that a bin stands for."""
    return 2 * GAMMA**index / (GAMMA + 1)


def count_of(bins: Mapping[int, int]) -> int:
    """How many samples the bins hold."""
    return sum(bins.values())


def quantile(bins: Mapping[int, int], q: float) -> float | None:
    """The q-quantile (0..1) in seconds, or None when there are no samples.

    It stands for the sample of rank `floor(q * (count - 1))` in order of size (the lower quantile),
    within 1%.
    """
    return quantiles(bins, (q,))[0]


def quantiles(bins: Mapping[int, int], qs: tuple[float, ...]) -> list[float | None]:
    """`quantile` for several ascending q in one pass."""
    total = count_of(bins)
    if total <= 0:
        return [None] * len(qs)
    found: list[float | None] = []
    ordered = sorted(bins.items())
    position, seen = 0, ordered[0][1]
    for q in qs:
        rank = math.floor(q * (total - 1))
        while seen <= rank:
            position += 1
            seen += ordered[position][1]
        found.append(value_of(ordered[position][0]))
    return found


def add(into: dict[int, int], pairs: Iterable[tuple[int, int]]) -> None:
    """Add `(index, count)` pairs to `into`."""
    for index, count in pairs:
        into[index] = into.get(index, 0) + count


def subtract(into: dict[int, int], pairs: Iterable[tuple[int, int]]) -> None:
    """Take pairs away that were added before; empty bins disappear."""
    for index, count in pairs:
        left = into.get(index, 0) - count
        if left > 0:
            into[index] = left
        else:
            into.pop(index, None)


def merge(a: Mapping[int, int], b: Mapping[int, int]) -> dict[int, int]:
    """Bins of both; neither argument changes."""
    merged = dict(a)
    add(merged, b.items())
    return merged


def pack(bins: Mapping[int, int]) -> bytes:
    """Bytes of the bins: a format byte, then index steps and counts as variable-length integers."""
    out = bytearray((_FORMAT,))
    previous = 0
    for index, count in sorted(bins.items()):
        if count <= 0:
            continue
        step = index - previous
        _put(out, step << 1 if step >= 0 else (-step << 1) - 1)
        _put(out, count)
        previous = index
    return bytes(out)


def unpack(raw: bytes) -> dict[int, int]:
    """Inverse of `pack`; no bytes at all are an empty sketch. Raises `SketchError`."""
    if not raw:
        return {}
    if raw[0] != _FORMAT:
        raise SketchError(f"sketch format {raw[0]} is unknown")
    bins: dict[int, int] = {}
    position, index = 1, 0
    while position < len(raw):
        step, position = _take(raw, position)
        count, position = _take(raw, position)
        index += step >> 1 if not step & 1 else -((step + 1) >> 1)
        bins[index] = count
    return bins


def _put(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _take(raw: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if position >= len(raw) or shift > _VARINT_BITS_MAX:
            raise SketchError("sketch bytes end inside a number")
        byte = raw[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7

"""Sums of slices over windows of time, and what two readings of a counter say.

Gateways report deltas once a second (`routing.contracts.slices`). They are folded into one-minute
sums, which merge into any longer window. Engines report counters that begin again at zero when the
engine restarts: a rate over a restart is unknown, never negative.
"""

from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from routing.contracts.slices import SliceDelta
from telemetry.stats import sketch

# Slices kept apart in one window; what comes later merges into its tenant's `OTHER` row, so totals
# stay exact while memory and the store stay bounded.
SLICES_MAX = 20_000
OTHER = "other"
MINUTE_MS = 60_000


class SliceKey(NamedTuple):
    """Which slice: tenant x model x pool x work class. `pool` is empty when refused before one."""

    tenant_id: str
    model: str
    pool: str
    work_class: str

    def as_other(self) -> "SliceKey":
        """The tenant's row for everything beyond `SLICES_MAX`."""
        return SliceKey(self.tenant_id, OTHER, OTHER, OTHER)


# The sum over all traffic: no tenant has an empty id.
TOTAL = SliceKey("", "", "", "")


def class_key(key: SliceKey) -> SliceKey:
    """The sum over tenants and pools that a slice adds to: one for each model and work class."""
    return SliceKey("", key.model, "", key.work_class)


class SliceSum(msgspec.Struct, omit_defaults=True):
    """Counts of one slice over one window; sketches are bins over seconds."""

    requests: int = 0
    failed: int = 0
    cancelled: int = 0
    refused: dict[str, int] = {}
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    spend_nanousd: int = 0
    ttft_s: dict[int, int] = {}
    itl_s: dict[int, int] = {}
    e2e_s: dict[int, int] = {}
    refused_input_tokens: int = 0

    def add(self, delta: SliceDelta) -> None:
        """Add what a gateway reported."""
        self._count(delta, 1)
        for reason, count in delta.refused.items():
            self.refused[reason] = self.refused.get(reason, 0) + count
        sketch.add(self.ttft_s, delta.ttft_s)
        sketch.add(self.itl_s, delta.itl_s)
        sketch.add(self.e2e_s, delta.e2e_s)

    def subtract(self, delta: SliceDelta) -> None:
        """Take away what was added before: it left the window."""
        self._count(delta, -1)
        for reason, count in delta.refused.items():
            left = self.refused.get(reason, 0) - count
            if left > 0:
                self.refused[reason] = left
            else:
                self.refused.pop(reason, None)
        sketch.subtract(self.ttft_s, delta.ttft_s)
        sketch.subtract(self.itl_s, delta.itl_s)
        sketch.subtract(self.e2e_s, delta.e2e_s)

    def merge(self, other: "SliceSum") -> None:
        """Add another sum; `other` does not change."""
        self._count(other, 1)
        for reason, count in other.refused.items():
            self.refused[reason] = self.refused.get(reason, 0) + count
        sketch.add(self.ttft_s, other.ttft_s.items())
        sketch.add(self.itl_s, other.itl_s.items())
        sketch.add(self.e2e_s, other.e2e_s.items())

    @property
    def is_empty(self) -> bool:
        """Whether nothing happened in the window."""
        return not (self.requests or self.refused or self.ttft_s or self.spend_nanousd)

    def _count(self, what: "SliceDelta | SliceSum", sign: int) -> None:
        self.requests += sign * what.requests
        self.failed += sign * what.failed
        self.cancelled += sign * what.cancelled
        self.input_tokens += sign * what.input_tokens
        self.cached_tokens += sign * what.cached_tokens
        self.output_tokens += sign * what.output_tokens
        self.spend_nanousd += sign * what.spend_nanousd
        self.refused_input_tokens += sign * what.refused_input_tokens


encode_sum = msgspec.msgpack.Encoder().encode
decode_sum = msgspec.msgpack.Decoder(SliceSum).decode
encode_key = msgspec.json.Encoder().encode
decode_key = msgspec.json.Decoder(SliceKey).decode


def key_of(delta: SliceDelta) -> SliceKey:
    """The slice that a delta belongs to."""
    return SliceKey(delta.tenant_id, delta.model, delta.pool, delta.work_class)


def minute_of(at_ms: int) -> int:
    """Unix minute that a frame of `at_ms` is folded into."""
    return at_ms // MINUTE_MS


def place(key: SliceKey, *, is_known: bool, known_count: int) -> SliceKey:
    """Where a delta of `key` goes in a window that already keeps `known_count` slices.

    A full window takes no new slice: at that moment the newcomer is its smallest.
    """
    return key if is_known or known_count < SLICES_MAX else key.as_other()


class Seen(msgspec.Struct, frozen=True):
    """Which frames of one gateway incarnation were folded: the newest, and the 64 before it."""

    newest: int = -1
    mask: int = 0  # bit i: frame `newest - 1 - i` was folded
    at_ms: int = 0


SEEN_BITS = 64


def see(seen: Seen, seq: int, at_ms: int) -> Seen | None:
    """`seen` with frame `seq`, or None when it was folded before or is too old to know.

    Gateways send again when the store's answer is lost, so a frame may stand in the stream twice.
    """
    at_ms = max(at_ms, seen.at_ms)
    if seq > seen.newest:
        step = seq - seen.newest
        mask = seen.mask << step | (1 << (step - 1) if seen.newest >= 0 else 0)
        return Seen(newest=seq, mask=mask & ((1 << SEEN_BITS) - 1), at_ms=at_ms)
    bit = seen.newest - seq - 1
    if bit < 0 or bit >= SEEN_BITS or seen.mask >> bit & 1:
        return None
    return Seen(newest=seen.newest, mask=seen.mask | 1 << bit, at_ms=at_ms)


@dataclass(frozen=True, slots=True)
class Counter:
    """One reading of a counter. `run` tells runs of the engine apart (its start time), if known."""

    value: float
    at_s: float
    run: float | None = None


@dataclass(frozen=True, slots=True)
class Tally:
    """One reading of a histogram's sum (seconds) and count."""

    total_s: float
    count: float
    run: float | None = None


def rate_per_s(before: Counter | None, after: Counter | None) -> float | None:
    """Rise per second between two readings; None when unknown.

    Unknown: a reading is missing, no time passed, or the engine restarted in between (another run,
    or a lower value). The first rate after a restart comes one period later.
    """
    if before is None or after is None or before.run != after.run:
        return None
    elapsed_s = after.at_s - before.at_s
    if elapsed_s <= 0 or after.value < before.value:
        return None
    return (after.value - before.value) / elapsed_s


def mean_s(before: Tally | None, after: Tally | None) -> float | None:
    """Mean of what was observed between two readings, in seconds; None when nothing or unknown.

    After a restart the new run's counts began at zero inside the period, so they are the period.
    """
    if before is None or after is None:
        return None
    is_new_run = before.run != after.run or after.count < before.count
    total_s = after.total_s if is_new_run else after.total_s - before.total_s
    count = after.count if is_new_run else after.count - before.count
    return total_s / count if count > 0 and total_s >= 0 else None

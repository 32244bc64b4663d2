"""What a run shows, as production shows it: sketches a slice, so memory does not grow with time.

TTFT is accept to first token at the gateway, ITL the gap between two tokens, E2E accept to end.
Goodput counts answers that met both targets of their class, a request's ITL being its mean.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from routing.contracts.enums import WorkClass
from telemetry.stats.sketch import GAMMA, add, index_of, quantiles

MOST_SLICES = 2_000
OTHER = "other"
_QS = (0.5, 0.9, 0.95, 0.99)
_NAMES = ("p50", "p90", "p95", "p99")

SliceKey = tuple[str, WorkClass]


@dataclass(slots=True)
class Durations:
    """A sketch with its sum: percentiles within 1%, the mean exact."""

    bins: dict[int, int] = field(default_factory=dict)
    sum_s: float = 0.0
    count: int = 0

    def add(self, seconds: float, times: int = 1) -> None:
        """Count a duration, `times` times."""
        index = index_of(seconds)
        self.bins[index] = self.bins.get(index, 0) + times
        self.sum_s += seconds * times
        self.count += times

    def add_bins(self, pieces: Iterable[tuple[int, int]], sum_s: float, count: int) -> None:
        """Count durations whose bins are known already."""
        add(self.bins, pieces)
        self.sum_s += sum_s
        self.count += count

    def merge(self, other: "Durations") -> None:
        """Count all of another's."""
        self.add_bins(other.bins.items(), other.sum_s, other.count)

    @property
    def mean_s(self) -> float | None:
        """None when nothing was counted."""
        return self.sum_s / self.count if self.count else None

    def quantile(self, q: float) -> float | None:
        """Seconds, within 1%."""
        return quantiles(self.bins, (q,))[0]

    def as_json(self) -> dict[str, float | int | None]:
        """Count, mean and percentiles."""
        found: dict[str, float | int | None] = {"count": self.count, "mean_s": _short(self.mean_s)}
        for name, value in zip(_NAMES, quantiles(self.bins, _QS), strict=True):
            found[f"{name}_s"] = _short(value)
        return found


@dataclass(slots=True, eq=False)
class SliceFigures:
    """Sums of one (tenant, class); a key by identity."""

    ttft: Durations = field(default_factory=Durations)
    itl: Durations = field(default_factory=Durations)
    e2e: Durations = field(default_factory=Durations)
    arrived: int = 0
    attempts: int = 0
    ok: int = 0
    met: int = 0
    left: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    spend_nanousd: int = 0
    work: float = 0.0
    refused: Counter[str] = field(default_factory=Counter)

    def merge(self, other: "SliceFigures") -> None:
        """Add another slice's sums."""
        for name in ("ttft", "itl", "e2e"):
            getattr(self, name).merge(getattr(other, name))
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.refused += other.refused

    def as_json(self, span_s: float) -> dict[str, Any]:
        """Figures over `span_s` seconds."""
        found: dict[str, Any] = {name: getattr(self, name) for name in _SUMS if name != "work"}
        found["goodput_per_s"] = _short(self.met / span_s)
        found["prefix_hit_ratio"] = _short(self.cached_tokens / max(1, self.input_tokens))
        found["refused"] = dict(sorted(self.refused.items()))
        for name in ("ttft", "itl", "e2e"):
            found[name] = getattr(self, name).as_json()
        return found


_SUMS = (
    *("arrived", "attempts", "ok", "met", "left", "input_tokens", "cached_tokens"),
    *("output_tokens", "spend_nanousd", "work"),
)


@dataclass(slots=True)
class Measures:
    """All slices of a run, and means over time of what the replicas hold."""

    slices: dict[SliceKey, SliceFigures] = field(default_factory=dict)
    kv_ratio_sum: float = 0.0
    kv_ratio_max: float = 0.0
    running_sum: float = 0.0
    waiting_sum: float = 0.0
    samples: int = 0

    def of(self, tenant: str, work_class: WorkClass) -> SliceFigures:
        """The slice of a request; beyond `MOST_SLICES` they share one a class."""
        key = (tenant, work_class)
        found = self.slices.get(key)
        if found is None:
            if len(self.slices) >= MOST_SLICES:
                key = (OTHER, work_class)
            found = self.slices.setdefault(key, SliceFigures())
        return found

    def clear(self) -> None:
        """Forget the warm-up; slices stay the same objects, so running requests keep theirs."""
        for one in self.slices.values():
            fresh = SliceFigures()
            for name in (*_SUMS, "ttft", "itl", "e2e", "refused"):
                setattr(one, name, getattr(fresh, name))
        self.kv_ratio_sum = self.kv_ratio_max = self.running_sum = self.waiting_sum = 0.0
        self.samples = 0

    def sample(self, running: int, waiting: int, kv_ratio: float) -> None:
        """The fleet at one instant: totals, and the mean KV occupancy."""
        self.samples += 1
        self.running_sum += running
        self.waiting_sum += waiting
        self.kv_ratio_sum += kv_ratio
        self.kv_ratio_max = max(self.kv_ratio_max, kv_ratio)

    def total(self, tenant: str | None = None) -> SliceFigures:
        """All slices (of one tenant) as one."""
        whole = SliceFigures()
        for (name, _work_class), one in self.slices.items():
            if tenant is None or name == tenant:
                whole.merge(one)
        return whole

    def jain(self, weights: Mapping[str, float]) -> float | None:
        """Jain's index of the tenants' work over their weights: 1 equal, 1/n one has all."""
        shares: dict[str, float] = {}
        for (tenant, _work_class), one in self.slices.items():
            shares[tenant] = shares.get(tenant, 0.0) + one.work / weights.get(tenant, 1.0)
        squares = sum(share * share for share in shares.values())
        return sum(shares.values()) ** 2 / (len(shares) * squares) if squares else None


def growing_bins(first_s: float, growth_s: float, count: int) -> list[tuple[int, int]]:
    """Bins of `count` durations `first_s + j * growth_s`, without looking at each."""
    index, last = index_of(first_s), index_of(first_s + growth_s * (count - 1))
    if index == last:
        return [(index, count)]
    found, done = [], 0
    while index < last:
        upto = min(count, max(done, int((GAMMA**index - first_s) / growth_s) + 1))
        if upto > done:
            found.append((index, upto - done))
            done = upto
        index += 1
    if count > done:
        found.append((last, count - done))
    return found


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")

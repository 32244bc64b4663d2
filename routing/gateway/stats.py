"""Counts of one gateway: slices for the collector (each second), totals for `/metrics`.

Callers never choose a label: tenants and models are those of the snapshot, everything else is a
closed set.
"""

from bisect import bisect_left
from collections import Counter

from routing.contracts.enums import RequestStatus
from routing.contracts.slices import ReplicaDelta, SliceDelta, SliceFrame
from routing.contracts.snapshot import Snapshot
from routing.contracts.usage import UsageEvent
from telemetry.stats.sketch import index_of
from telemetry.stats.tries import octave_of

MAX_SLICES = 20_000  # rows a frame may have; above it tenants share the row `other`
MAX_TENANT_LABELS = 200
MAX_MODEL_LABELS = 50
OTHER = "other"
BUCKETS_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

SliceName = tuple[str, str, str, str]


class Slice:
    """Counts of one tenant x model x pool x class since the last frame."""

    __slots__ = (
        "cached_tokens",
        "cancelled",
        "e2e_s",
        "failed",
        "input_tokens",
        "itl_s",
        "output_tokens",
        "refused",
        "refused_input_tokens",
        "requests",
        "spend_nanousd",
        "ttft_s",
    )

    def __init__(self) -> None:
        self.requests = self.failed = self.cancelled = 0
        self.input_tokens = self.cached_tokens = self.output_tokens = self.spend_nanousd = 0
        self.refused: dict[str, int] = {}
        self.refused_input_tokens = 0
        self.ttft_s: dict[int, int] = {}
        self.itl_s: dict[int, int] = {}
        self.e2e_s: dict[int, int] = {}


class Tries:
    """What tries on one replica came to since the last frame."""

    __slots__ = ("failed", "requests", "ttft_by_octave_s")

    def __init__(self) -> None:
        self.requests = self.failed = 0
        self.ttft_by_octave_s: dict[int, dict[int, int]] = {}


class Histogram:
    """Cumulative buckets of seconds, as the exposition format wants them."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one value."""
        self.sum_s += seconds
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1


def bump(bins: dict[int, int], seconds: float, count: int = 1) -> None:
    """Count a duration in a sketch."""
    index = index_of(seconds)
    bins[index] = bins.get(index, 0) + count


class Stats:
    """All counts; owned by the event loop."""

    def __init__(self) -> None:
        self._slices: dict[SliceName, Slice] = {}
        self._tries: dict[str, Tries] = {}  # by replica, of which a snapshot has only so many
        self._seq = 0
        self._tenants: dict[str, str] = {}
        self._models: frozenset[str] = frozenset()
        self.requests: Counter[tuple[str, str]] = Counter()  # tenant label, outcome
        self.tokens: Counter[tuple[str, str]] = Counter()  # tenant label, kind
        self.spend_nanousd: Counter[str] = Counter()  # tenant label
        self.refusals: Counter[str] = Counter()  # code
        self.model_requests: Counter[tuple[str, str]] = Counter()  # model label, outcome
        self.ttft: dict[str, Histogram] = {}  # model label
        self.duration: dict[str, Histogram] = {}
        self.retries = self.retries_refused = 0
        self.fallbacks: Counter[tuple[str, str, str]] = Counter()  # asked, served, outcome
        self.hold_exceeded: Counter[str] = Counter()  # model label
        self.replays = 0

    def take_snapshot(self, snapshot: Snapshot) -> None:
        """New label sets; counts of tenants that are gone are dropped."""
        named = sorted(snapshot.tenants.values(), key=lambda tenant: tenant.slug)
        self._tenants = {tenant.id: tenant.slug for tenant in named[:MAX_TENANT_LABELS]}
        self._models = frozenset(sorted(snapshot.models)[:MAX_MODEL_LABELS])
        labels = {*self._tenants.values(), OTHER}
        for counter in (self.requests, self.tokens):
            for name in [name for name in counter if name[0] not in labels]:
                del counter[name]
        for label in [label for label in self.spend_nanousd if label not in labels]:
            del self.spend_nanousd[label]

    def slice_of(self, name: SliceName) -> Slice:
        """The slice to count in until the next frame; beyond the bound, one shared `other`."""
        row = self._slices.get(name)
        if row is None:
            if len(self._slices) >= MAX_SLICES:
                name = (OTHER, OTHER, OTHER, name[3])
            row = self._slices.setdefault(name, Slice())
        return row

    def ended(self, event: UsageEvent, asked: str) -> None:
        """Count an ended reservation; what an upstream refused as the caller's fault as refused.

        `asked` is the model asked for: another one than the event's is a fallback.
        """
        row = self.slice_of((event.tenant_id, event.model, event.pool, event.work_class))
        outcome: str = event.status
        is_ok = event.status is RequestStatus.OK
        if not is_ok and event.is_refused:
            outcome = "refused"
            row.refused[event.error_code] = row.refused.get(event.error_code, 0) + 1
        else:
            row.requests += 1
            if not is_ok:
                row.cancelled += event.status is RequestStatus.CANCELLED
                row.failed += event.has_failed
        row.input_tokens += event.input_tokens
        row.cached_tokens += event.cached_tokens
        row.output_tokens += event.output_tokens
        row.spend_nanousd += event.spend_nanousd
        tenant = self._tenants.get(event.tenant_id, OTHER)
        model = event.model if event.model in self._models else OTHER
        self.requests[tenant, outcome] += 1
        self.model_requests[model, outcome] += 1
        if asked != event.model:
            self.fallbacks[asked if asked in self._models else OTHER, model, outcome] += 1
        self.tokens[tenant, "input"] += event.input_tokens
        self.tokens[tenant, "cached"] += event.cached_tokens
        self.tokens[tenant, "output"] += event.output_tokens
        self.spend_nanousd[tenant] += event.spend_nanousd
        if event.is_above_hold:
            self.hold_exceeded[model] += 1
        if is_ok:
            self._timed(row, event, model)

    def _timed(self, row: Slice, event: UsageEvent, model: str) -> None:
        seconds = (event.ended_at_ms - event.started_at_ms) / 1000
        bump(row.e2e_s, seconds)
        _histogram(self.duration, model).observe(seconds)

    def tokens_came(self, name: SliceName, gap_s: float, tokens: int) -> None:
        """Count tokens that came together, `gap_s` after those before them."""
        row = self._slices.get(name)  # most often there: it runs for every chunk
        if row is None:
            row = self.slice_of(name)
        bins, index = row.itl_s, index_of(gap_s / tokens)
        bins[index] = bins.get(index, 0) + tokens

    def first_token(self, name: SliceName, seconds: float) -> None:
        """Count a time to first token."""
        bump(self.slice_of(name).ttft_s, seconds)
        label = name[1] if name[1] in self._models else OTHER
        _histogram(self.ttft, label).observe(seconds)

    def try_ended(self, replica_id: str, *, has_failed: bool) -> None:
        """Count a try on a replica, whatever becomes of its request."""
        tries = self._tries_of(replica_id)
        tries.requests += 1
        tries.failed += has_failed

    def try_answered(self, replica_id: str, seconds: float, input_tokens: int) -> None:
        """Count the time from sending a try to its first output, by the size of its prompt."""
        by_octave = self._tries_of(replica_id).ttft_by_octave_s
        bump(by_octave.setdefault(octave_of(input_tokens), {}), seconds)

    def _tries_of(self, replica_id: str) -> Tries:
        tries = self._tries.get(replica_id)
        if tries is None:
            tries = self._tries[replica_id] = Tries()
        return tries

    def refused(
        self, code: str, slice_name: SliceName | None = None, input_tokens: int = 0
    ) -> None:
        """Count a refusal; `slice_name` when the tenant is known (an unknown model is `other`).

        `input_tokens` is the estimate of its prompt, 0 if it was refused before.
        """
        self.refusals[code] += 1
        if slice_name is None:
            return
        tenant_id, model, pool, work_class = slice_name
        self.requests[self._tenants.get(tenant_id, OTHER), "refused"] += 1
        row = self.slice_of((tenant_id, model or OTHER, pool, work_class))
        row.refused[code] = row.refused.get(code, 0) + 1
        row.refused_input_tokens += input_tokens

    def frame(self, gateway_id: str, incarnation: str, at_ms: int) -> SliceFrame:
        """What was counted since the last frame; starts the next one."""
        slices, self._slices = self._slices, {}
        tries, self._tries = self._tries, {}
        self._seq += 1
        rows = [_delta(name, row) for name, row in slices.items()]
        replicas = [
            ReplicaDelta(
                name,
                one.requests,
                one.failed,
                ttft_by_octave_s={
                    octave: list(bins.items()) for octave, bins in one.ttft_by_octave_s.items()
                },
            )
            for name, one in tries.items()
        ]
        return SliceFrame(gateway_id, incarnation, self._seq, at_ms, rows, replicas)


def _histogram(by_label: dict[str, Histogram], label: str) -> Histogram:
    found = by_label.get(label)
    if found is None:
        found = by_label[label] = Histogram()
    return found


def _delta(name: SliceName, row: Slice) -> SliceDelta:
    return SliceDelta(
        *name,
        requests=row.requests,
        failed=row.failed,
        cancelled=row.cancelled,
        refused=row.refused,
        refused_input_tokens=row.refused_input_tokens,
        input_tokens=row.input_tokens,
        cached_tokens=row.cached_tokens,
        output_tokens=row.output_tokens,
        spend_nanousd=row.spend_nanousd,
        ttft_s=list(row.ttft_s.items()),
        itl_s=list(row.itl_s.items()),
        e2e_s=list(row.e2e_s.items()),
    )

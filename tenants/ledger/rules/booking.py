"""What a batch of lines does to the ledger and to the live counters (accounting protocol, 4).

The ledger decides, the counters follow: rows and adjustments say what was used; where the counters
of the present epoch say something else, the difference is a numbered correction.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from routing.contracts.enums import RequestStatus, SettleKind, TaskOutcome
from tenants.ledger.rules.lines import Booked, CounterKey, Line, Slice, Sums

LATE = "late"
GRAINS_MS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000}  # all aligned in UTC

_OUTCOMES = frozenset(TaskOutcome)
_GUESSED = (SettleKind.SWEPT, SettleKind.RECOVERED)
_EXACT = (SettleKind.SETTLED, SettleKind.VOID)

TaskKey = tuple[int, str, str, str]  # tenant, task, model, pool
RollupKey = tuple[str, int, Slice]  # grain, start in ms, slice
RollupKeys = tuple[RollupKey, ...]


@dataclass(slots=True)
class RollupSums:
    """Differences to one rollup row."""

    requests: int = 0
    failed: int = 0
    cancelled: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    spend_nanousd: int = 0

    def add(self, sums: Sums) -> None:
        """Add what a line or an adjustment adds."""
        self.requests += sums.requests
        self.input_tokens += sums.input_tokens
        self.cached_tokens += sums.cached_tokens
        self.output_tokens += sums.output_tokens
        self.spend_nanousd += sums.spend_nanousd


@dataclass(frozen=True, slots=True)
class Adjustment:
    """A correction of one row, to be added with its reason."""

    booked: Booked
    reason: str
    sums: Sums
    note: str = ""


@dataclass(slots=True)
class TaskMark:
    """What the new rows of one batch say of a task itself. Instants in Unix milliseconds.

    The latest non-empty name wins; of outcomes the first one stands.
    """

    first_ms: int
    last_ms: int
    kind: str = ""
    parent_id: str = ""
    session: str = ""
    outcome: str = ""
    score: float | None = None
    outcome_ms: int | None = None


@dataclass(slots=True)
class Booking:
    """All that one batch changes besides the rows themselves."""

    adjustments: list[Adjustment] = field(default_factory=list)
    windows: dict[CounterKey, int] = field(default_factory=lambda: defaultdict(int))
    rollups: dict[RollupKey, RollupSums] = field(default_factory=lambda: defaultdict(RollupSums))
    delta: dict[CounterKey, int] = field(default_factory=lambda: defaultdict(int))
    tasks: dict[TaskKey, RollupSums] = field(default_factory=lambda: defaultdict(RollupSums))
    marks: dict[tuple[int, str], TaskMark] = field(default_factory=dict)

    def correct(self, counters: Collection[CounterKey], sums: Sums, sign: int = 1) -> None:
        """Move the live counters by `sums` (or back, with sign -1)."""
        for key in counters:
            self.delta[key] += sign * sums.counted(key[1])

    def count(self, booked: Booked, sums: Sums) -> RollupKeys:
        """Add to the windows and rollups of the row, wherever its time was."""
        for key in booked.counters:
            self.windows[key] += sums.counted(key[1])
        keys = rollup_keys(booked)
        for rollup in keys:
            self.rollups[rollup].add(sums)
        if booked.task_id:
            self.tasks[task_key(booked)].add(sums)
        return keys

    def mark(self, line: Line) -> None:
        """Note what a new row says of its task."""
        booked, columns = line.booked, line.columns
        started_ms = booked.started_at_ms
        key = (booked.slice.tenant_id, booked.task_id)
        mark = self.marks.setdefault(key, TaskMark(started_ms, line.ended_at_ms))
        mark.first_ms = min(mark.first_ms, started_ms)
        mark.last_ms = max(mark.last_ms, line.ended_at_ms)
        mark.kind = str(columns["task_kind"]) or mark.kind
        mark.parent_id = str(columns["parent_id"]) or mark.parent_id
        mark.session = str(columns["session"]) or mark.session
        outcome = str(columns["task_outcome"])
        if not mark.outcome and outcome in _OUTCOMES:
            score = columns["task_score"]
            mark.outcome, mark.outcome_ms = outcome, line.ended_at_ms
            mark.score = score if isinstance(score, float) else None

    def adjust(self, adjustment: Adjustment) -> None:
        """Book an adjustment: it follows its row into the windows in which that one started."""
        self.adjustments.append(adjustment)
        self.count(adjustment.booked, adjustment.sums)
        self.correct(adjustment.booked.counters, adjustment.sums)

    def corrections(self) -> dict[CounterKey, int]:
        """What the counters lack: the differences that are not zero."""
        return {key: amount for key, amount in self.delta.items() if amount}


def task_key(booked: Booked) -> TaskKey:
    """The row of a task that a request adds to."""
    part = booked.slice
    return part.tenant_id, booked.task_id, part.model, part.pool


def rollup_keys(booked: Booked) -> RollupKeys:
    """The minute, hour and day in which the request started."""
    return tuple(
        (grain, booked.started_at_ms - booked.started_at_ms % length, booked.slice)
        for grain, length in GRAINS_MS.items()
    )


def book(
    lines: Sequence[Line], inserted: Collection[str], known: Mapping[str, Booked], epoch: int
) -> Booking:
    """Book lines in stream order.

    `inserted` are the ids whose first line of this batch became a row just now; `known` holds the
    rows of all other ids. `epoch` is the bucket's in the ledger. Raises `LookupError` for an id
    that is neither: the caller's read was not whole.
    """
    booking, rows = Booking(), dict(known)
    for line in lines:
        row = rows.get(line.booked.request_id)
        if row is None:
            if line.booked.request_id not in inserted:
                raise LookupError(f"{line.booked.request_id} is neither new nor known")
            rows[line.booked.request_id] = line.booked
            _book_new(booking, line, epoch)
            continue
        if line.epoch == epoch:  # counted twice
            booking.correct(line.booked.counters, line.booked.sums, -1)
        if row.kind in _GUESSED and line.booked.kind in _EXACT and not row.has_late:
            booking.adjust(Adjustment(row, LATE, line.booked.sums.minus(row.sums)))
            rows[row.request_id] = replace(row, has_late=True)
    return booking


def _book_new(booking: Booking, line: Line, epoch: int) -> None:
    booked = line.booked
    if line.epoch != epoch:  # not in these counters
        booking.correct(booked.counters, booked.sums)
    if booked.kind is SettleKind.VOID:
        return  # a row to be found by, no request served: rollups and windows do not know it
    for key in booking.count(booked, booked.sums):
        rollup = booking.rollups[key]
        rollup.failed += line.has_failed
        rollup.cancelled += line.status is RequestStatus.CANCELLED
    if booked.task_id:
        task = booking.tasks[task_key(booked)]
        task.failed += line.has_failed
        task.cancelled += line.status is RequestStatus.CANCELLED
        booking.mark(line)

"""What must hold between holds, counters and ledger, and where it does not.

At every instant, traffic or not, for each counter of the present epoch:
  used  = ledger's window + charges counted but not yet booked - corrections not yet applied
  held  = sum of the legs of the holds that are registered in this epoch - such corrections
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tenants.ledger.rules.lines import CounterKey, Line, Sums

OVERDUE_MS = 10_000  # after a lease: two rounds of the sweeper
COMPARED_MS = 25 * 3_600_000  # counters go 26 h after their window: one side may be gone first
MAX_SAMPLES = 20
USED = {
    "req": "requests",
    "in": "input tokens",
    "out": "output tokens",
    "usd": "nano-dollars",
}


class Check(StrEnum):
    """The lines of a reconciliation."""

    NO_END = "reservations without an end"
    OVERDUE = "holds older than their lease"
    NO_RESERVATION = "rows without a reservation"
    ROLLUPS = "rollups minus rows"
    REQUESTS = "counters minus ledger: requests"
    INPUT = "counters minus ledger: input tokens"
    OUTPUT = "counters minus ledger: output tokens"
    SPEND = "counters minus ledger: nano-dollars"
    PARKED = "parked damaged entries"
    KEPT = "days past their time"
    UNCHECKED = "buckets not compared"


BOUNDS = {
    Check.NO_END: "every held amount belongs to a hold, every hold has a lease",
    Check.OVERDUE: f"ended within {OVERDUE_MS // 1000} s of its lease's end",
    Check.NO_RESERVATION: "every charged row names the windows it was reserved in",
    Check.ROLLUPS: "each minute's rollups are the sum of its rows and adjustments",
    Check.REQUESTS: "at every instant, entries on their way included",
    Check.INPUT: "at every instant, entries on their way included",
    Check.OUTPUT: "at every instant, entries on their way included",
    Check.SPEND: "at every instant, entries on their way included",
    Check.PARKED: "every entry of the stream is booked",
    Check.KEPT: "a day of usage is dropped within a day of its retention's end",
    Check.UNCHECKED: "open, in one epoch, with few entries on their way",
}
_OF_DIMENSION = {
    "req": Check.REQUESTS,
    "in": Check.INPUT,
    "out": Check.OUTPUT,
    "usd": Check.SPEND,
}


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter's fields (`usd`, `usd_h`, ...) and its window's end in ms."""

    fields: Mapping[str, int]
    end_ms: int


@dataclass(frozen=True, slots=True)
class Drift:
    """A counter that says something else than it must."""

    suffix: str
    dimension: str
    counter: int
    expected: int
    end_ms: int

    @property
    def check(self) -> Check:
        """The line that it belongs to."""
        return _OF_DIMENSION.get(self.dimension, Check.NO_END)

    @property
    def words(self) -> str:
        """One line for people."""
        return f"{self.suffix} {self.dimension}: {self.counter}, must be {self.expected}"


@dataclass(slots=True)
class Found:
    """One line: how many, by how much in all, and which ones."""

    count: int = 0
    amount: int = 0
    samples: list[str] = field(default_factory=list)

    def add(self, sample: str, amount: int = 0) -> None:
        """One more; the first few are named."""
        self.count += 1
        self.amount += abs(amount)
        if len(self.samples) < MAX_SAMPLES:
            self.samples.append(sample[:300])


@dataclass(slots=True)
class Report:
    """Every line, in their order."""

    lines: dict[Check, Found] = field(default_factory=lambda: {check: Found() for check in Check})

    @property
    def is_clean(self) -> bool:
        """Nothing found on any line."""
        return not any(found.count for found in self.lines.values())

    def rows(self) -> list[dict[str, object]]:
        """As JSON."""
        return [
            {
                "check": check.value,
                "bound": BOUNDS[check],
                "count": found.count,
                "amount": found.amount,
                "samples": list(found.samples),
            }
            for check, found in self.lines.items()
        ]


def drifts(
    counters: Mapping[str, Counter],
    *,
    booked: Mapping[str, Sums],
    unread: Iterable[Line],
    pending: Iterable[Sequence[object]],
    held: Mapping[tuple[str, str], int],
    epoch: int,
) -> list[Drift]:
    """Where counters and what they must say part, in order of their names.

    `counters` names every counter to compare, an absent one with no fields; `booked` are the
    ledger's sums of their windows; `pending` are corrections `[suffix, dimension, amount, ...]`
    not yet applied; `held` sums the legs of holds in this epoch by (suffix, dimension).
    """
    due = _due(booked, (line for line in unread if line.epoch == epoch), pending, held)
    found = []
    for suffix, counter in sorted(counters.items()):
        must = due.get(suffix, {})
        names = {name for name in counter.fields if name in USED or name.endswith("_h")}
        for name in sorted(names | must.keys()):
            value, expected = counter.fields.get(name, 0), must.get(name, 0)
            if value != expected:
                found.append(Drift(suffix, name, value, expected, counter.end_ms))
    return found


def _due(
    booked: Mapping[str, Sums],
    counted: Iterable[Line],
    pending: Iterable[Sequence[object]],
    held: Mapping[tuple[str, str], int],
) -> dict[str, dict[str, int]]:
    due: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for suffix, sums in booked.items():
        for dimension in USED:
            due[suffix][dimension] += sums.counted(dimension)
    for line in counted:
        for suffix, dimension, _ in line.booked.counters:
            due[suffix][dimension] += line.booked.sums.counted(dimension)
    for correction in pending:
        key, of, amount = map(str, correction[:3])
        due[key][of] -= int(amount)
    for (counter, name), held_amount in held.items():
        due[counter][f"{name}_h"] += held_amount
    return due


def corrections(found: Iterable[Drift]) -> dict[CounterKey, int]:
    """What each drifted counter must move by."""
    return {(d.suffix, d.dimension, d.end_ms): d.expected - d.counter for d in found}

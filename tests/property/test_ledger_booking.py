"""Rows, adjustments and counters agree at quiet, whatever arrives how often in which epoch.

A small store beside the rules counts as `settle.lua` does: an entry whose `k` is an epoch moved the
counters of that epoch. New epochs start from the ledger's sums (the fill).
"""

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from routing.contracts.enums import RequestStatus, SettleKind, UsageSource, WorkClass
from routing.contracts.ids import uuid7
from routing.contracts.usage import UsageEvent, encode_usage
from tenants.ledger.rules.booking import Adjustment, book
from tenants.ledger.rules.lines import Booked, CounterKey, Line, line_of

NOW_MS = 1_800_000_000_000
IDS = [uuid7(NOW_MS, number) for number in range(4)]
LEGS: list[list[object]] = [
    [1, "w:7:tenant::d:1", NOW_MS + 1_000, ["req", 1, "in", 9, "out", 9, "usd", 99]],
    [1, "w:7:key:3:m:1", NOW_MS + 1_000, ["usd", 99]],
    [2, "g:7:tenant::g", 0, ["conc", 1]],
]


def line(request_id: str, kind: SettleKind, epoch: int, spend: int, number: int) -> Line:
    event = UsageEvent(
        request_id=request_id,
        tenant_id="7",
        key_id="3",
        project_id="2",
        model_asked="m",
        model="m",
        status=RequestStatus.OK,
        usage_source=UsageSource.REPORTED,
        work_class=WorkClass.STANDARD,
        policy="p",
        price_version=1,
        gateway_id="g",
        started_at_ms=NOW_MS,
        ended_at_ms=NOW_MS + 5,
        input_tokens=spend % 7,
        cached_tokens=3,
        output_tokens=spend % 5,
        spend_nanousd=spend,
        legs=LEGS,
    )
    fields = {
        b"id": request_id.encode(),
        b"k": str(epoch).encode(),
        b"t": kind.value.encode(),
        b"e": encode_usage(event),
    }
    return line_of(f"{NOW_MS + number}-0", fields)


@dataclass
class World:
    """A ledger and one store of the smallest kind."""

    epoch: int = 1
    counters: Counter[CounterKey] = field(default_factory=Counter)
    windows: Counter[CounterKey] = field(default_factory=Counter)
    rows: dict[str, Booked] = field(default_factory=dict)
    adjustments: list[Adjustment] = field(default_factory=list)

    def ingest(self, lines: list[Line]) -> None:
        firsts: dict[str, Booked] = {}
        for item in lines:
            firsts.setdefault(item.booked.request_id, item.booked)
        inserted = firsts.keys() - self.rows.keys()
        known = {id_: self.rows[id_] for id_ in firsts if id_ in self.rows}
        booking = book(lines, inserted, known, self.epoch)
        lates = {a.booked.request_id for a in booking.adjustments}
        self.adjustments += booking.adjustments
        for id_ in inserted:
            self.rows[id_] = firsts[id_]
        for id_ in lates:
            row = self.rows[id_]
            self.rows[id_] = Booked(
                row.request_id, row.day, row.kind, row.sums, row.counters, row.slice,
                row.started_at_ms, has_late=True,
            )  # fmt: skip
        self.windows.update(booking.windows)
        self.counters.update(booking.corrections())
        self.roll = booking.rollups

    def truth(self) -> Counter[CounterKey]:
        total: Counter[CounterKey] = Counter()
        for row in self.rows.values():
            total.update({key: row.sums.counted(key[1]) for key in row.counters})
        for item in self.adjustments:
            total.update({k: item.sums.counted(k[1]) for k in item.booked.counters})
        return total


acts = st.tuples(
    st.sampled_from(IDS),
    st.sampled_from(list(SettleKind)),
    st.sampled_from(["counted", "not counted", "older epoch"]),
    st.integers(0, 40),
)


def positive(counters: Counter[CounterKey]) -> dict[CounterKey, int]:
    return {key: amount for key, amount in counters.items() if amount}


@settings(max_examples=300)
@given(st.lists(st.tuples(st.lists(acts, max_size=6), st.booleans()), max_size=6))
def test_counters_equal_rows_and_adjustments_at_quiet(
    rounds: list[tuple[list[tuple[str, SettleKind, str, int]], bool]],
) -> None:
    world, number = World(), 0
    for batch, is_lost in rounds:
        lines = []
        for request_id, kind, how, spend in batch:
            number += 1
            epoch = {"counted": world.epoch, "not counted": 0, "older epoch": world.epoch - 1}[how]
            item = line(request_id, kind, epoch, spend, number)
            if how == "counted":
                sums = item.booked.sums
                world.counters.update({k: sums.counted(k[1]) for k in item.booked.counters})
            lines.append(item)
        world.ingest(lines)
        assert positive(world.counters) == positive(world.truth()) == positive(world.windows)
        assert all(amount >= 0 for amount in world.counters.values())
        if is_lost:
            world.epoch += 1
            world.counters = Counter(world.windows)
    per_request = Counter(item.booked.request_id for item in world.adjustments)
    assert all(count == 1 for count in per_request.values())


@settings(max_examples=100)
@given(st.lists(acts, min_size=1, max_size=12), st.integers(1, 11))
def test_batches_may_be_cut_anywhere(
    batch: list[tuple[str, SettleKind, str, int]], cut: int
) -> None:
    lines = [
        line(request_id, kind, {"counted": 1, "not counted": 0, "older epoch": 9}[how], spend, n)
        for n, (request_id, kind, how, spend) in enumerate(batch)
    ]
    whole, parts = World(), World()
    whole.ingest(lines)
    parts.ingest(lines[:cut])
    parts.ingest(lines[cut:])
    assert positive(whole.windows) == positive(parts.windows)
    assert positive(whole.counters) == positive(parts.counters)
    assert whole.rows == parts.rows

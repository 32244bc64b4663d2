"""One batch of one bucket's stream into the ledger: one transaction, position included."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from enum import StrEnum

import msgspec
import psycopg
from django.conf import settings

from routing.store import keys
from routing.store.counters import StreamEntry
from tenants.ledger import tables
from tenants.ledger.cursors import Cursor
from tenants.ledger.rules.booking import book
from tenants.ledger.rules.health import BucketState, entry_order
from tenants.ledger.rules.lines import Damage, Line, Slice, first_day_kept, line_of
from tenants.ledger.writer.database import Database

logger = logging.getLogger(__name__)

MAX_RAW_BYTES = 64 * 1024  # of a damaged entry; a real event has about 1 KiB
MAX_KNOWN = (
    50_000  # ids seen to exist, kept to spare a query a batch; then forgotten and asked anew
)


class Outcome(StrEnum):
    """What became of a batch: committed, held by another writer, or read from another epoch."""

    DONE = "done"
    BUSY = "busy"
    MOVED = "moved"


@dataclass(frozen=True, slots=True)
class Result:
    """`state` is the bucket's row after the batch; counts are of rows and of parked entries."""

    outcome: Outcome
    state: BucketState | None = None
    rows: int = 0
    parked: int = 0
    has_correction: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """Entries of one bucket after `seen.pos`, read from the server `run_id` in `seen`'s epoch."""

    bucket: int
    run_id: str
    seen: BucketState
    entries: Sequence[StreamEntry]


@dataclass(slots=True)
class Known:
    """What a process has seen in PostgreSQL and need not ask for again."""

    days: set[date] = field(default_factory=set)
    shape_days: set[date] = field(default_factory=set)
    parties: set[tuple[str, int]] = field(default_factory=set)

    def forget(self) -> None:
        """After an error of the database: ask for everything again."""
        self.days.clear()
        self.shape_days.clear()
        self.parties.clear()


@dataclass(slots=True)
class _Sorted:
    lines: list[Line] = field(default_factory=list)
    damaged: list[tuple[str, str, bytes]] = field(default_factory=list)

    def park(self, entry: StreamEntry, reason: str) -> None:
        raw = msgspec.msgpack.encode(
            {k.decode("ascii", "replace"): v for k, v in entry.fields.items()}
        )
        self.damaged.append((entry.id, reason[:200].replace("\x00", " "), raw[:MAX_RAW_BYTES]))


def ingest(database: Database, batch: Batch, known: Known) -> Result:
    """Book a batch. Repeatable: what is committed is skipped by position and by primary key.

    An entry that the tables refuse, against all checks, is found by halving and parked: one bad
    entry never stops a stream. Raises `psycopg.OperationalError` when PostgreSQL is away.
    """
    try:
        return _ingest(database, batch, known, refused="")
    except (psycopg.IntegrityError, psycopg.DataError) as error:
        known.forget()
        return _ingest_halves(database, batch, known, error)


def _ingest_halves(database: Database, batch: Batch, known: Known, error: psycopg.Error) -> Result:
    entries = batch.entries
    if len(entries) == 1:
        try:
            return _ingest(database, batch, known, refused="")
        except (psycopg.IntegrityError, psycopg.DataError):
            return _ingest(database, batch, known, refused=f"refused by the tables: {error}")
    half = len(entries) // 2
    first = ingest(database, _part(batch, entries[:half], batch.seen), known)
    if first.outcome is not Outcome.DONE or first.state is None:
        return first
    second = ingest(database, _part(batch, entries[half:], first.state), known)
    if second.outcome is not Outcome.DONE:
        return first
    return Result(
        Outcome.DONE,
        second.state,
        first.rows + second.rows,
        first.parked + second.parked,
        first.has_correction or second.has_correction,
    )


def _part(batch: Batch, entries: Sequence[StreamEntry], seen: BucketState) -> Batch:
    return Batch(batch.bucket, batch.run_id, seen, entries)


def _ingest(database: Database, batch: Batch, known: Known, *, refused: str) -> Result:
    found = _sort(batch.entries, refused)
    _ensure_days(database, found.lines, known)
    with database.transaction() as cursor:
        state = tables.lock_bucket(cursor, batch.bucket)
        if state is None:
            return Result(Outcome.BUSY)
        if _is_elsewhere(state, batch):
            return Result(Outcome.MOVED, state)
        _drop_done(found, state.pos)
        if not found.lines and not found.damaged:
            return Result(Outcome.DONE, state)
        _park_strangers(cursor, found, batch.entries, known)
        state, rows = _write(cursor, batch, state, found)
        if found.damaged:
            tables.park(cursor, keys.bucket_usage(batch.bucket), found.damaged)
    for entry_id, reason, _ in found.damaged:
        logger.error("bucket %s entry %s parked: %s", batch.bucket, entry_id, reason)
    return Result(Outcome.DONE, state, rows, len(found.damaged), state.seq > batch.seen.seq)


def _is_elsewhere(state: BucketState, batch: Batch) -> bool:
    """Was the batch read in another epoch or server, or beyond what is committed?"""
    return (
        state.epoch != batch.seen.epoch
        or state.run_id != batch.run_id
        or entry_order(state.pos) < entry_order(batch.seen.pos)
    )


def _sort(entries: Sequence[StreamEntry], refused: str) -> _Sorted:
    found = _Sorted()
    oldest = first_day_kept(time.time_ns() // 1_000_000, settings.USAGE_DAYS_KEPT)
    for entry in entries:
        if refused:
            found.park(entry, refused)
            continue
        try:
            found.lines.append(_line_since(oldest, entry))
        except Damage as damage:
            found.park(entry, str(damage))
    return found


def _line_since(oldest: date, entry: StreamEntry) -> Line:
    """A dropped day's partition never comes back for a late row. Raises `Damage`."""
    line = line_of(entry.id, entry.fields)
    if line.booked.day < oldest:
        raise Damage(f"its day {line.booked.day} is past the retention")
    return line


def _drop_done(found: _Sorted, pos: str) -> None:
    """Another writer may have committed a part of the batch since it was read."""
    done = entry_order(pos)
    found.lines = [x for x in found.lines if entry_order(x.entry_id) > done]
    found.damaged = [x for x in found.damaged if entry_order(x[0]) > done]


def _ensure_days(database: Database, lines: Sequence[Line], known: Known) -> None:
    days = {line.booked.day for line in lines} - known.days
    if not days:
        return
    # Tomorrow's too: midnight then finds its table made, and no batch waits for the table's lock.
    days |= {max(days) + timedelta(days=1)}
    with database.transaction() as cursor:
        tables.ensure_partitions(cursor, "tenants_usage", days)
    known.days |= days


def _park_strangers(
    cursor: Cursor, found: _Sorted, entries: Sequence[StreamEntry], known: Known
) -> None:
    """Park lines of tenants, projects or keys that are not in the tables (a restored backup)."""
    slices = {line.booked.slice for line in found.lines}
    parties = {party for part in slices for party in _parties(part)} - known.parties
    if not parties:
        return
    strangers = tables.find_strangers(cursor, slices)
    if len(known.parties) > MAX_KNOWN:
        known.parties.clear()
    known.parties |= parties - strangers
    if not strangers:
        return
    by_id = {entry.id: entry for entry in entries}
    kept = []
    for line in found.lines:
        missing = sorted(strangers & set(_parties(line.booked.slice)))
        if missing:
            found.park(by_id[line.entry_id], f"unknown {missing[0][0]} {missing[0][1]}")
        else:
            kept.append(line)
    found.lines = kept


def _parties(part: Slice) -> tuple[tuple[str, int], ...]:
    return ("tenant", part.tenant_id), ("project", part.project_id), ("key", part.key_id)


def _write(
    cursor: Cursor, batch: Batch, state: BucketState, found: _Sorted
) -> tuple[BucketState, int]:
    firsts: dict[str, Line] = {}
    for line in found.lines:
        firsts.setdefault(line.booked.request_id, line)
    seq, inserted = state.seq, set[str]()
    if firsts:
        inserted = tables.insert_usage(cursor, [line.columns for line in firsts.values()])
        rest = {id_: line.booked.day for id_, line in firsts.items() if id_ not in inserted}
        known_rows = tables.find_booked(cursor, rest) if rest else {}
        booking = book(found.lines, inserted, known_rows, state.epoch)
        tables.apply_booking(cursor, batch.bucket, booking)
        seq = tables.insert_delta(cursor, batch.bucket, state, booking.corrections())
    pos = max(batch.entries[-1].id, state.pos, key=entry_order)
    tables.move_bucket(cursor, batch.bucket, pos, seq)
    return BucketState(state.epoch, state.run_id, state.state, pos, seq), len(inserted)

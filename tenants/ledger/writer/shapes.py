"""Shape rows: lists of `ShapeRow` from one stream into their day's partitions."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta

import msgspec
import psycopg

from routing.contracts.usage import decode_shapes
from routing.store import keys
from routing.store.counters import StoreSession, StreamEntry
from tenants.ledger import tables
from tenants.ledger.rules.health import entry_order
from tenants.ledger.rules.lines import Damage
from tenants.ledger.rules.shapes import first_day_kept, shape_columns
from tenants.ledger.writer.database import Database
from tenants.ledger.writer.ingest import MAX_RAW_BYTES, Known

logger = logging.getLogger(__name__)

STREAM = "shapes"
MAX_ENTRIES = 64  # lists in one batch; a gateway's list holds up to a few hundred rows


@dataclass(slots=True)
class _Batch:
    rows: list[dict[str, object]] = field(default_factory=list)
    days: set[date] = field(default_factory=set)
    damaged: list[tuple[str, str, bytes]] = field(default_factory=list)


def ingest_shapes(database: Database, session: StoreSession, known: Known) -> tuple[int, int]:
    """One batch of the shapes stream: (rows written, entries read). Repeatable.

    Entries that the tables refuse are parked one by one, like damaged ones.
    """
    with database.transaction() as cursor:
        position = tables.lock_position(cursor, STREAM)
    if position is None:
        return 0, 0
    # Another server process may hold another stream: read it whole, the primary key drops what
    # is there already.
    pos = position[1] if position[0] == session.run_id else "0-0"
    entries = session.range(keys.SHAPES, pos, MAX_ENTRIES)
    if not entries:
        return 0, 0
    try:
        rows = _write(database, session.run_id, position, entries, known)
    except (psycopg.IntegrityError, psycopg.DataError):
        known.forget()
        rows = _write_singly(database, session.run_id, position, entries, known)
    if rows is None:
        return 0, 0
    session.trim(keys.SHAPES, entries[-1].id)
    return rows, len(entries)


def _write_singly(
    database: Database,
    run_id: str,
    position: tuple[str, str],
    entries: Sequence[StreamEntry],
    known: Known,
) -> int | None:
    rows = 0
    for entry in entries:
        try:
            written = _write(database, run_id, position, [entry], known)
        except (psycopg.IntegrityError, psycopg.DataError) as error:
            written = _park(database, run_id, position, entry, f"refused by the tables: {error}")
        if written is None:
            return None
        rows += written
        position = (run_id, entry.id)
    return rows


def _write(
    database: Database,
    run_id: str,
    position: tuple[str, str],
    entries: Sequence[StreamEntry],
    known: Known,
) -> int | None:
    """Rows written with the new position; None when another writer was faster."""
    batch = _sort(entries)
    _ensure_days(database, batch.days, known)
    with database.transaction() as cursor:
        if tables.lock_position(cursor, STREAM) != position:
            return None
        rows = tables.insert_shapes(cursor, batch.rows) if batch.rows else 0
        if batch.damaged:
            tables.park(cursor, STREAM, batch.damaged)
        tables.move_position(cursor, STREAM, run_id, entries[-1].id)
    for entry_id, reason, _ in batch.damaged:
        logger.error("shapes entry %s parked: %s", entry_id, reason)
    return rows


def _park(
    database: Database, run_id: str, position: tuple[str, str], entry: StreamEntry, reason: str
) -> int | None:
    with database.transaction() as cursor:
        if tables.lock_position(cursor, STREAM) != position:
            return None
        tables.park(cursor, STREAM, [_parked(entry, reason)])
        tables.move_position(cursor, STREAM, run_id, entry.id)
    logger.error("shapes entry %s parked: %s", entry.id, reason)
    return 0


def _ensure_days(database: Database, days: set[date], known: Known) -> None:
    missing = days - known.shape_days
    if not missing:
        return
    missing |= {max(missing) + timedelta(days=1)}
    with database.transaction() as cursor:
        tables.ensure_partitions(cursor, "tenants_shape", missing)
    known.shape_days |= missing


def _sort(entries: Sequence[StreamEntry]) -> _Batch:
    batch = _Batch()
    for entry in entries:
        now_ms = entry_order(entry.id)[0]
        oldest = first_day_kept(now_ms)
        try:
            rows = [shape_columns(row, now_ms) for row in decode_shapes(entry.fields[b"s"])]
        except (KeyError, ValueError, RecursionError, msgspec.MsgspecError, Damage) as error:
            batch.damaged.append(_parked(entry, f"not readable: {error}"))
            continue
        kept = [(day, columns) for day, columns in rows if day >= oldest]
        batch.rows += [columns for _, columns in kept]
        batch.days |= {day for day, _ in kept}
    return batch


def _parked(entry: StreamEntry, reason: str) -> tuple[str, str, bytes]:
    raw = entry.fields.get(b"s", b"")[:MAX_RAW_BYTES]
    return entry.id, reason[:200].replace("\x00", " "), raw

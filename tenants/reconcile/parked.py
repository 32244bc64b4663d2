"""Entries that the writer could not book, tried again: what was missing may be there by now."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from functools import partial
from typing import cast

import msgspec
from django.conf import settings
from django.db import DataError, IntegrityError, connection, transaction
from django.utils import timezone

from console.audit.rules import Actor
from console.audit.services import record
from routing.contracts.snapshot import bucket_of
from routing.contracts.usage import decode_shapes
from tenants.ledger import tables
from tenants.ledger.cursors import Cursor
from tenants.ledger.rules import lines
from tenants.ledger.rules.booking import book
from tenants.ledger.rules.health import entry_order
from tenants.ledger.rules.lines import Damage, Line, line_of
from tenants.ledger.rules.shapes import first_day_kept, shape_columns
from tenants.models import DamagedEntry
from tenants.reconcile.counters import Act
from tenants.reconcile.rules import Check, Found, Report

MAX_TRIED = 1_000  # in one run; the next goes on with those that are left
SHAPES = "shapes"  # the stream's name among parked entries
_fields = msgspec.msgpack.Decoder(dict[str, bytes]).decode


def check_parked(report: Report, actor: Actor | None) -> list[Act]:
    """Count parked entries; with an actor, book those that can be read now."""
    acts = []
    if actor is not None:
        acts = [_book(row, actor) for row in DamagedEntry.objects.order_by("pk")[:MAX_TRIED]]
    _note(report.lines[Check.PARKED], DamagedEntry.objects.order_by("pk")[:MAX_TRIED])
    found = report.lines[Check.PARKED]
    found.count = max(found.count, DamagedEntry.objects.count())
    return acts


def _note(found: Found, entries: Iterable[DamagedEntry]) -> None:
    for row in entries:
        found.add(f"{row.stream} {row.entry_id}: {row.reason}")


def _book(row: DamagedEntry, actor: Actor) -> Act:
    """One entry in one transaction, which it leaves only as a row of the ledger."""
    name = f"{row.stream} {row.entry_id}"
    try:
        book_it = _shapes_of(row) if row.stream == SHAPES else _usage_of(row)
        with transaction.atomic(), connection.cursor() as raw:
            book_it(cast(Cursor, raw))
            DamagedEntry.objects.filter(pk=row.pk).delete()
            record(
                actor=actor,
                act="ledger.book_parked",
                object_type="entry",
                object_id=name,
                reason=f"reconcile; it was parked: {row.reason}"[:500],
            )
    except Damage as damage:
        return Act(Check.PARKED, f"{name}: {damage}", is_done=False)
    except (IntegrityError, DataError) as error:
        return Act(Check.PARKED, f"{name}: refused by the tables: {error}"[:300], is_done=False)
    return Act(Check.PARKED, f"{name}: booked")


def _line(row: DamagedEntry) -> Line:
    try:
        fields = _fields(bytes(row.raw))
    except msgspec.MsgspecError as error:
        raise Damage(f"its bytes were cut or are damaged: {error}") from error
    return line_of(row.entry_id, {name.encode(): value for name, value in fields.items()})


def _usage_of(row: DamagedEntry) -> Callable[[Cursor], None]:
    line = _line(row)
    if line.booked.day < lines.first_day_kept(_now_ms(), settings.USAGE_DAYS_KEPT):
        raise Damage(f"its day {line.booked.day} is past the retention")
    _ensure_days("tenants_usage", {line.booked.day})
    return partial(_book_usage, line)


def _shapes_of(row: DamagedEntry) -> Callable[[Cursor], None]:
    now_ms = entry_order(row.entry_id)[0]
    try:
        found = [shape_columns(shape, now_ms) for shape in decode_shapes(bytes(row.raw))]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Damage(f"not readable: {error}") from error
    oldest = first_day_kept(_now_ms())
    kept = [(day, columns) for day, columns in found if day >= oldest]
    _ensure_days("tenants_shape", {day for day, _ in kept})
    return partial(_book_shapes, [columns for _, columns in kept])


def _now_ms() -> int:
    return int(timezone.now().timestamp() * 1000)


@transaction.atomic
def _ensure_days(table: str, days: set[date]) -> None:
    """In a transaction of its own: a new partition locks the whole table."""
    with connection.cursor() as raw:
        tables.ensure_partitions(cast(Cursor, raw), table, days)


def _book_shapes(columns: Sequence[Mapping[str, object]], cursor: Cursor) -> None:
    tables.insert_shapes(cursor, columns)


def _book_usage(line: Line, cursor: Cursor) -> None:
    """As the writer books a line; the rules decide whether the counters already have it."""
    bucket = bucket_of(str(line.booked.slice.tenant_id))
    tables.create_buckets(cursor, [bucket])
    state = tables.lock_buckets(cursor, [bucket])[bucket]
    if strangers := tables.find_strangers(cursor, [line.booked.slice]):
        noun, number = sorted(strangers)[0]
        raise Damage(f"unknown {noun} {number}")
    request_id = line.booked.request_id
    inserted = tables.insert_usage(cursor, [line.columns])
    known = {} if inserted else tables.find_booked(cursor, {request_id: line.booked.day})
    booking = book([line], inserted, known, state.epoch)
    tables.apply_booking(cursor, bucket, booking)
    seq = tables.insert_delta(cursor, bucket, state, booking.corrections())
    tables.move_bucket(cursor, bucket, state.pos, seq)

"""The ledger's tables as set-based SQL: one statement for a whole batch, whatever its size.

The writer calls these on its own connection, services on Django's: both inside a transaction that
holds the bucket's row. Rows travel as one JSON parameter, read by the table's own row type.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import date, datetime
from typing import Any

import msgspec

from routing.contracts.enums import Dimension, SettleKind
from tenants.ledger.cursors import Cursor, as_json
from tenants.ledger.rules.booking import Adjustment, Booking, RollupKey, RollupSums
from tenants.ledger.rules.gaps import REASON_PREFIX
from tenants.ledger.rules.health import BucketState
from tenants.ledger.rules.lines import (
    Booked,
    CounterKey,
    Slice,
    Sums,
    counters_of,
    instant,
)
from tenants.ledger.task_tables import add_tasks

MAX_PARKED = 10_000  # damaged entries kept: more of them say nothing new, and the disk is finite


# -- buckets ---------------------------------------------------------------------------------------


def lock_bucket(cursor: Cursor, bucket: int) -> BucketState | None:
    """The bucket's row, locked; None when another writer holds it (or it does not exist)."""
    cursor.execute(
        "SELECT epoch, run_id, state, pos, seq FROM tenants_ledgerbucket"
        " WHERE bucket = %s FOR UPDATE SKIP LOCKED",
        [bucket],
    )
    row = cursor.fetchone()
    return None if row is None else BucketState(*row)


def lock_buckets(cursor: Cursor, buckets: Collection[int]) -> dict[int, BucketState]:
    """Rows of these buckets, locked in their order; waits for writers to finish their batch."""
    cursor.execute(
        "SELECT bucket, epoch, run_id, state, pos, seq FROM tenants_ledgerbucket"
        " WHERE bucket = ANY(%s) ORDER BY bucket FOR UPDATE",
        [list(buckets)],
    )
    return {row[0]: BucketState(*row[1:]) for row in cursor.fetchall()}


def read_buckets(cursor: Cursor) -> dict[int, BucketState]:
    """Every bucket's row."""
    cursor.execute("SELECT bucket, epoch, run_id, state, pos, seq FROM tenants_ledgerbucket")
    return {row[0]: BucketState(*row[1:]) for row in cursor.fetchall()}


def create_buckets(cursor: Cursor, buckets: Collection[int]) -> None:
    """Rows for buckets that have none: epoch 0, rebuilding."""
    cursor.execute(
        "INSERT INTO tenants_ledgerbucket (bucket, epoch, run_id, state, pos, seq, updated_at)"
        " SELECT bucket, 0, '', 'rebuilding', '0-0', 0, now()"
        " FROM unnest(%s::int[]) AS bucket ORDER BY bucket ON CONFLICT DO NOTHING",
        [list(buckets)],
    )


def start_epochs(cursor: Cursor, epochs: Mapping[int, int], run_id: str) -> None:
    """Step 1 of a rebuild: a new epoch, read from the start of the stream."""
    cursor.execute(
        "UPDATE tenants_ledgerbucket b SET epoch = n.epoch, run_id = %s, state = 'rebuilding',"
        " pos = '0-0', updated_at = now()"
        " FROM unnest(%s::int[], %s::bigint[]) AS n(bucket, epoch) WHERE b.bucket = n.bucket",
        [run_id, list(epochs), list(epochs.values())],
    )


def make_ready(cursor: Cursor, buckets: Collection[int]) -> None:
    """Step 4: the sums taken in this transaction hold all corrections, so those go."""
    cursor.execute("DELETE FROM tenants_counterdelta WHERE bucket = ANY(%s)", [list(buckets)])
    cursor.execute(
        "UPDATE tenants_ledgerbucket SET state = 'ready', updated_at = now()"
        " WHERE bucket = ANY(%s)",
        [list(buckets)],
    )


def move_bucket(cursor: Cursor, bucket: int, pos: str, seq: int) -> None:
    """Commit the position with the rows that it stands for."""
    cursor.execute(
        "UPDATE tenants_ledgerbucket SET pos = %s, seq = %s, updated_at = now() WHERE bucket = %s",
        [pos, seq, bucket],
    )


# -- rows ------------------------------------------------------------------------------------------


def ensure_partitions(cursor: Cursor, table: str, days: Iterable[date]) -> None:
    """Make the partitions of these days. Run it apart from rows: it locks the whole table."""
    cursor.execute(
        "SELECT headrace_ensure_partition(%s, day) FROM unnest(%s::date[]) AS day ORDER BY day",
        [table, sorted(set(days))],
    )


def insert_usage(cursor: Cursor, rows: Sequence[Mapping[str, object]]) -> set[str]:
    """Insert rows by column name; returns the ids that were not there before."""
    cursor.execute(
        "INSERT INTO tenants_usage"
        " SELECT * FROM json_populate_recordset(NULL::tenants_usage, %s::json)"
        " ON CONFLICT DO NOTHING RETURNING request_id::text",
        [as_json(rows)],
    )
    return {row[0] for row in cursor.fetchall()}


def insert_shapes(cursor: Cursor, rows: Sequence[Mapping[str, object]]) -> int:
    """Insert shape rows by column name; returns how many were new."""
    cursor.execute(
        "INSERT INTO tenants_shape"
        " SELECT * FROM json_populate_recordset(NULL::tenants_shape, %s::json)"
        " ON CONFLICT DO NOTHING RETURNING 1",
        [as_json(rows)],
    )
    return len(cursor.fetchall())


def find_booked(cursor: Cursor, ids: Mapping[str, date]) -> dict[str, Booked]:
    """Rows of these requests (id -> day), found by primary key inside their partitions."""
    cursor.execute(
        "SELECT request_id::text, day, kind, input_tokens, cached_tokens, output_tokens,"
        " spend_nanousd, legs, tenant_id, project_id, key_id, model, pool, work_class, region,"
        " (extract(epoch FROM started_at) * 1000)::bigint,"
        " task_id,"
        " EXISTS (SELECT 1 FROM tenants_usageadjustment a"
        "         WHERE a.request_id = u.request_id AND a.reason = 'late')"
        " FROM tenants_usage u WHERE day = ANY(%s) AND request_id = ANY(%s::uuid[])",
        [sorted(set(ids.values())), list(ids)],
    )
    return {row[0]: _booked(row) for row in cursor.fetchall()}


def _booked(row: Sequence[Any]) -> Booked:
    kind = SettleKind(row[2])
    legs = msgspec.json.decode(row[7]) if isinstance(row[7], str) else row[7]
    return Booked(
        request_id=row[0],
        day=row[1],
        kind=kind,
        sums=Sums(0 if kind is SettleKind.VOID else 1, *row[3:7]),
        counters=counters_of(legs),
        slice=Slice(*row[8:15]),
        started_at_ms=row[15],
        task_id=row[16],
        has_late=row[17],
    )


def find_strangers(cursor: Cursor, slices: Collection[Slice]) -> set[tuple[str, int]]:
    """Tenant, project and key ids that no table knows, as (table's noun, id)."""
    cursor.execute(
        "SELECT 'tenant', n.id FROM unnest(%s::bigint[]) AS n(id)"
        " WHERE NOT EXISTS (SELECT 1 FROM tenants_tenant t WHERE t.id = n.id)"
        " UNION ALL SELECT 'project', n.id FROM unnest(%s::bigint[]) AS n(id)"
        " WHERE NOT EXISTS (SELECT 1 FROM tenants_project t WHERE t.id = n.id)"
        " UNION ALL SELECT 'key', n.id FROM unnest(%s::bigint[]) AS n(id)"
        " WHERE NOT EXISTS (SELECT 1 FROM tenants_apikey t WHERE t.id = n.id)",
        [
            sorted({part.tenant_id for part in slices}),
            sorted({part.project_id for part in slices}),
            sorted({part.key_id for part in slices}),
        ],
    )
    return {(row[0], row[1]) for row in cursor.fetchall()}


# -- what follows rows -----------------------------------------------------------------------------


def apply_booking(cursor: Cursor, bucket: int, booking: Booking) -> None:
    """Adjustments, windows and rollups of one booking; corrections of counters are apart."""
    if booking.adjustments:
        _insert_adjustments(cursor, booking.adjustments)
    if booking.windows:
        _add_windows(cursor, bucket, booking.windows)
    if booking.rollups:
        _add_rollups(cursor, booking.rollups)
    if booking.tasks:
        add_tasks(cursor, booking.tasks, booking.marks)


def _insert_adjustments(cursor: Cursor, adjustments: Sequence[Adjustment]) -> None:
    rows = [
        {
            "request_id": item.booked.request_id,
            "day": item.booked.day.isoformat(),
            "tenant_id": item.booked.slice.tenant_id,
            "reason": item.reason,
            "note": item.note,
            **asdict(item.sums),
        }
        for item in adjustments
    ]
    cursor.execute(
        "INSERT INTO tenants_usageadjustment (request_id, day, tenant_id, reason, note, requests,"
        " input_tokens, cached_tokens, output_tokens, spend_nanousd, created_at)"
        " SELECT request_id, day, tenant_id, reason, note, requests, input_tokens, cached_tokens,"
        " output_tokens, spend_nanousd, now()"
        " FROM json_populate_recordset(NULL::tenants_usageadjustment, %s::json)",
        [as_json(rows)],
    )


_WINDOW_COLUMNS = {
    Dimension.REQUESTS.value: "requests",
    Dimension.INPUT_TOKENS.value: "input_tokens",
    Dimension.OUTPUT_TOKENS.value: "output_tokens",
    Dimension.SPEND_NANOUSD.value: "spend_nanousd",
}


def _add_windows(cursor: Cursor, bucket: int, windows: Mapping[CounterKey, int]) -> None:
    rows: dict[str, dict[str, object]] = {}
    for (suffix, dimension, end_ms), amount in sorted(windows.items()):
        column = _WINDOW_COLUMNS.get(dimension)
        if column is None:
            continue
        row = rows.setdefault(
            suffix,
            {"suffix": suffix, "window_end_at": instant(end_ms).isoformat()}
            | dict.fromkeys(_WINDOW_COLUMNS.values(), 0),
        )
        row[column] = amount
    cursor.execute(
        "INSERT INTO tenants_windowusage AS w (bucket, suffix, window_end_at, requests,"
        " input_tokens, output_tokens, spend_nanousd)"
        " SELECT %s, suffix, window_end_at, requests, input_tokens, output_tokens, spend_nanousd"
        " FROM json_populate_recordset(NULL::tenants_windowusage, %s::json)"
        " ON CONFLICT (bucket, suffix) DO UPDATE SET requests = w.requests + excluded.requests,"
        " input_tokens = w.input_tokens + excluded.input_tokens,"
        " output_tokens = w.output_tokens + excluded.output_tokens,"
        " spend_nanousd = w.spend_nanousd + excluded.spend_nanousd",
        [bucket, as_json(list(rows.values()))],
    )


def _add_rollups(cursor: Cursor, rollups: Mapping[RollupKey, RollupSums]) -> None:
    rows = [
        {
            "grain": grain,
            "start_at": instant(start_ms).isoformat(),
            **asdict(part),
            **asdict(sums),
        }
        for (grain, start_ms, part), sums in rollups.items()
    ]
    cursor.execute(
        "INSERT INTO tenants_usagerollup AS r (grain, start_at, tenant_id, project_id, key_id,"
        " model, pool, work_class, region, requests, failed, cancelled, input_tokens,"
        " cached_tokens, output_tokens, spend_nanousd)"
        " SELECT grain, start_at, tenant_id, project_id, key_id, model, pool, work_class, region,"
        " requests, failed, cancelled, input_tokens, cached_tokens, output_tokens, spend_nanousd"
        " FROM json_populate_recordset(NULL::tenants_usagerollup, %s::json)"
        " ON CONFLICT (grain, start_at, tenant_id, project_id, key_id, model, pool, work_class,"
        " region) DO UPDATE SET requests = r.requests + excluded.requests,"
        " failed = r.failed + excluded.failed, cancelled = r.cancelled + excluded.cancelled,"
        " input_tokens = r.input_tokens + excluded.input_tokens,"
        " cached_tokens = r.cached_tokens + excluded.cached_tokens,"
        " output_tokens = r.output_tokens + excluded.output_tokens,"
        " spend_nanousd = r.spend_nanousd + excluded.spend_nanousd",
        [as_json(rows)],
    )


# -- corrections of counters -----------------------------------------------------------------------


def insert_delta(
    cursor: Cursor, bucket: int, state: BucketState, corrections: Mapping[CounterKey, int]
) -> int:
    """Number a correction behind the bucket's last one; returns the bucket's new number.

    A bucket that is not ready takes none: its counters are about to be filled from the sums.
    """
    if state.state != "ready" or not corrections:
        return state.seq
    rows = [
        [suffix, dimension, amount, end_ms]
        for (suffix, dimension, end_ms), amount in sorted(corrections.items())
    ]
    cursor.execute(
        "INSERT INTO tenants_counterdelta (bucket, seq, epoch, rows) VALUES (%s, %s, %s, %s)",
        [bucket, state.seq + 1, state.epoch, as_json(rows)],
    )
    return state.seq + 1


def pending_deltas(
    cursor: Cursor, buckets: Collection[int], limit: int
) -> list[tuple[int, int, int, list[list[Any]]]]:
    """Corrections not known to be applied: (bucket, seq, epoch, rows), in the order to apply."""
    cursor.execute(
        "SELECT bucket, seq, epoch, rows::text FROM tenants_counterdelta"
        " WHERE bucket = ANY(%s) ORDER BY bucket, seq LIMIT %s",
        [list(buckets), limit],
    )
    return [(*row[:3], msgspec.json.decode(row[3])) for row in cursor.fetchall()]


def delete_deltas(cursor: Cursor, bucket: int, seq: int) -> None:
    """Forget corrections that the counters hold, up to and with `seq`."""
    cursor.execute(
        "DELETE FROM tenants_counterdelta WHERE bucket = %s AND seq <= %s", [bucket, seq]
    )


def window_sums(
    cursor: Cursor, buckets: Collection[int], ended_after: datetime
) -> list[tuple[int, str, datetime, Sums]]:
    """Charged sums of windows that a counter may still stand for: what a fill is made of."""
    cursor.execute(
        "SELECT bucket, suffix, window_end_at, requests, input_tokens, output_tokens,"
        " spend_nanousd FROM tenants_windowusage WHERE bucket = ANY(%s) AND window_end_at > %s",
        [list(buckets), ended_after],
    )
    return [
        (row[0], row[1], row[2], Sums(row[3], row[4], 0, row[5], row[6]))
        for row in cursor.fetchall()
    ]


# -- positions of other streams, damage ------------------------------------------------------------


def lock_position(cursor: Cursor, stream: str) -> tuple[str, str] | None:
    """(run id, position) of a stream that is not per bucket; None when another writer has it."""
    cursor.execute(
        "INSERT INTO tenants_writerposition (stream, run_id, pos) VALUES (%s, '', '0-0')"
        " ON CONFLICT DO NOTHING",
        [stream],
    )
    cursor.execute(
        "SELECT run_id, pos FROM tenants_writerposition WHERE stream = %s FOR UPDATE SKIP LOCKED",
        [stream],
    )
    row = cursor.fetchone()
    return None if row is None else (row[0], row[1])


def move_position(cursor: Cursor, stream: str, run_id: str, pos: str) -> None:
    """Commit the position with the rows that it stands for."""
    cursor.execute(
        "UPDATE tenants_writerposition SET run_id = %s, pos = %s WHERE stream = %s",
        [run_id, pos, stream],
    )


def read_gaps(cursor: Cursor) -> list[tuple[str, str]]:
    """(position, reason) of every gap on record."""
    cursor.execute(
        "SELECT entry_id, reason FROM tenants_damagedentry WHERE starts_with(reason, %s)",
        [REASON_PREFIX],
    )
    return [(row[0], row[1]) for row in cursor.fetchall()]


def park(cursor: Cursor, stream: str, entries: Sequence[tuple[str, str, bytes]]) -> None:
    """Keep damaged entries (id, reason, raw) for people, at most `MAX_PARKED` of all."""
    cursor.execute(
        "INSERT INTO tenants_damagedentry (stream, entry_id, reason, raw, created_at)"
        " SELECT %s, entry, reason, raw, now()"
        " FROM unnest(%s::text[], %s::text[], %s::bytea[]) AS n(entry, reason, raw)"
        " WHERE (SELECT count(*) FROM tenants_damagedentry) < %s ON CONFLICT DO NOTHING",
        [stream, *(list(column) for column in zip(*entries, strict=True)), MAX_PARKED],
    )

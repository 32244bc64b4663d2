"""Corrections by people, and the end of what is kept."""

from datetime import date, datetime, timedelta
from typing import cast

from django.db import IntegrityError, connection, transaction
from django.db.models import Sum
from django.utils import timezone
from psycopg import sql

from console.audit.rules import Actor
from console.audit.services import record
from console.errors import Conflict, NotFound
from routing.contracts.snapshot import bucket_of
from tenants.ledger import tables
from tenants.ledger.rules.adjustments import check_adjustment
from tenants.ledger.rules.booking import Adjustment, Booking
from tenants.ledger.rules.lines import Booked, Sums, clean
from tenants.ledger.rules.shapes import DAYS_KEPT
from tenants.models import DamagedEntry, UsageAdjustment, UsageRollup, WindowUsage

WINDOWS_KEPT = timedelta(days=3)  # counters end 26 h after their window; a day and more to spare
MINUTES_KEPT = timedelta(days=31)  # older periods are read by hours and days
DAMAGE_KEPT = timedelta(days=90)
MAX_DROPPED = 32  # partitions in one run: each takes the table's lock for a moment
DELETE_ROWS = 5_000  # in one statement, so that no lock is held for long
MAX_DELETES = 200  # statements in one run; the next run goes on


@transaction.atomic(durable=True)
def adjust(
    *, request_id: str, day: date, reason: str, spend_nanousd: int, note: str, actor: Actor
) -> int:
    """Add to (or take from) what a request cost; returns the adjustment's id.

    The row stays as it is. Rollups, windows and live counters follow in the windows in which the
    request started: the counters within about a second, by the ledger writer. Once for each reason
    (`Conflict`); raises `NotFound` without such a row, `InvalidInput` for what cannot be booked.
    """
    reason, note = clean(reason.strip(), 1_000), clean(note.strip(), 1_000)
    with connection.cursor() as raw_cursor:
        cursor = cast(tables.Cursor, raw_cursor)
        booked = _find(cursor, request_id, day)
        tenant_id = booked.slice.tenant_id
        bucket = bucket_of(str(tenant_id))
        tables.create_buckets(cursor, [bucket])
        state = tables.lock_buckets(cursor, [bucket])[bucket]
        net_nanousd = _net(booked)  # under the lock: every adjustment takes it
        check_adjustment(
            reason=reason, note=note, spend_nanousd=spend_nanousd, net_nanousd=net_nanousd
        )
        booking = Booking()
        booking.adjust(Adjustment(booked, reason, Sums(spend_nanousd=spend_nanousd), note))
        try:
            tables.apply_booking(cursor, bucket, booking)
        except IntegrityError as error:
            raise Conflict(
                "This request was already adjusted for this reason.",
                field="reason",
                hint="Give another reason, or look at the earlier adjustment.",
            ) from error
        seq = tables.insert_delta(cursor, bucket, state, booking.corrections())
        tables.move_bucket(cursor, bucket, state.pos, seq)
    record(
        actor=actor,
        act="usage_adjusted",
        object_type="usage",
        object_id=booked.request_id,
        tenant_id=tenant_id,
        reason=note or reason,
        before={"spend_nanousd": net_nanousd},
        after={"spend_nanousd": net_nanousd + spend_nanousd, "reason": reason},
    )
    return UsageAdjustment.objects.get(request_id=booked.request_id, reason=reason).pk


def _find(cursor: tables.Cursor, request_id: str, day: date) -> Booked:
    spelled = request_id.strip().lower()
    is_uuid = len(spelled) == 36 and not spelled.strip("0123456789abcdef-")
    found = tables.find_booked(cursor, {spelled: day}) if is_uuid else {}
    if spelled not in found:
        raise NotFound("No such request in the ledger.", field="request_id")
    return found[spelled]


def _net(booked: Booked) -> int:
    adjusted = UsageAdjustment.objects.filter(request_id=booked.request_id).aggregate(
        total=Sum("spend_nanousd")
    )["total"]
    return booked.sums.spend_nanousd + int(adjusted or 0)


def drop_old() -> dict[str, int]:
    """Drop what is kept no longer; returns how much of each kind went. Safe to repeat.

    Whole partitions of shapes; rows of ended windows, of minute rollups and of damaged entries.
    """
    now = timezone.now()
    return {
        "shape_partitions": _drop_partitions((now - timedelta(days=DAYS_KEPT)).date()),
        "windows": _delete_windows(now - WINDOWS_KEPT),
        "minutes": _delete_minutes(now - MINUTES_KEPT),
        "damaged": DamagedEntry.objects.filter(created_at__lt=now - DAMAGE_KEPT).delete()[0],
    }


def _drop_partitions(before: date) -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
            " WHERE i.inhparent = 'tenants_shape'::regclass"
            " AND c.relname < 'tenants_shape_' || to_char(%s::date, 'YYYYMMDD')"
            " ORDER BY c.relname LIMIT %s",
            [before, MAX_DROPPED],
        )
        names = [row[0] for row in cursor.fetchall()]
        for name in names:
            statement = sql.SQL("DROP TABLE {}").format(sql.Identifier(name))
            cursor.execute(statement.as_string(None))
    return len(names)


def _delete_windows(before: datetime) -> int:
    deleted = 0
    for _ in range(MAX_DELETES):
        ids = WindowUsage.objects.filter(window_end_at__lt=before).values("pk")[:DELETE_ROWS]
        gone = WindowUsage.objects.filter(pk__in=ids).delete()[0]
        deleted += gone
        if gone < DELETE_ROWS:
            break
    return deleted


def _delete_minutes(before: datetime) -> int:
    deleted = 0
    for _ in range(MAX_DELETES):
        old = UsageRollup.objects.filter(grain="m", start_at__lt=before)
        gone = UsageRollup.objects.filter(pk__in=old.values("pk")[:DELETE_ROWS]).delete()[0]
        deleted += gone
        if gone < DELETE_ROWS:
            break
    return deleted

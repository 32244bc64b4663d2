"""Corrections by people, sums for new limits, and the end of what is kept."""

from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta
from typing import Any, cast

from django.db import IntegrityError, connection, transaction
from django.db.models import Sum
from django.utils import timezone
from psycopg import sql

from console.audit.rules import Actor
from console.audit.services import record
from console.errors import Conflict, NotFound
from routing.contracts.enums import Dimension, LimitScope, WindowKind
from routing.contracts.snapshot import Limit, TenantEntry, bucket_of
from routing.decision.limits import Group, window_edges
from routing.store.reservations import suffix_of
from tenants.ledger import tables
from tenants.ledger.rules.adjustments import check_adjustment
from tenants.ledger.rules.booking import Adjustment, Booking
from tenants.ledger.rules.lines import Booked, Sums, clean, instant
from tenants.ledger.rules.shapes import DAYS_KEPT
from tenants.ledger.selectors import periods_filter
from tenants.models import DamagedEntry, UsageAdjustment, UsageRollup, WindowUsage

WINDOWS_KEPT = timedelta(days=3)  # counters end 26 h after their window; a day and more to spare
MINUTES_KEPT = timedelta(days=35)  # the longest window, a month, may start at any minute (UTC)
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


@transaction.atomic
def seed_windows(*, tenant: TenantEntry, now_ms: int) -> int:
    """Count what was used before a limit existed; returns how many counters moved. Repeatable.

    Call it for a tenant whose limits changed, before they are published: gateways count a window
    only while it has a limit, so a new one would start at zero. Sums come from rollups, which know
    when a request started by its gateway's clock; requests in flight at the change are not seeded.
    The tenant's day is always counted, and a minute is over before it matters.
    """
    bucket = bucket_of(tenant.id)
    seeded = Booking()
    with connection.cursor() as raw_cursor:
        cursor = cast(tables.Cursor, raw_cursor)
        tables.create_buckets(cursor, [bucket])
        state = tables.lock_buckets(cursor, [bucket])[bucket]
        for group in _seedable(tenant.limits):
            start_ms, end_ms, _ = window_edges(group.window, tenant.timezone, now_ms)
            suffix = suffix_of(tenant.id, group, start_ms)
            used = _used(int(tenant.id), group, instant(start_ms), instant(end_ms))
            counted = _counted(bucket, suffix)
            for dimension, _ in group.dims:
                missing = used.counted(dimension.value) - counted.counted(dimension.value)
                if missing > 0:
                    seeded.windows[suffix, dimension.value, end_ms] += missing
                    seeded.delta[suffix, dimension.value, end_ms] += missing
        tables.apply_booking(cursor, bucket, seeded)
        seq = tables.insert_delta(cursor, bucket, state, seeded.corrections())
        tables.move_bucket(cursor, bucket, state.pos, seq)
    return len(seeded.windows)


def _seedable(limits: Iterable[Limit]) -> list[Group]:
    found: dict[tuple[LimitScope, str, WindowKind], list[tuple[Dimension, int]]] = {}
    for limit in limits:
        is_counted_anyway = (limit.scope, limit.window) == (LimitScope.TENANT, WindowKind.DAY)
        if limit.window in (WindowKind.NOW, WindowKind.MINUTE) or is_counted_anyway:
            continue
        found.setdefault((limit.scope, limit.subject, limit.window), []).append(
            (limit.dimension, limit.amount)
        )
    return [
        Group(scope, window, subject, tuple(dims))
        for (scope, subject, window), dims in found.items()
    ]


def _used(tenant_id: int, group: Group, since: datetime, until: datetime) -> Sums:
    rows = UsageRollup.objects.filter(periods_filter(since, until), tenant_id=tenant_id)
    if group.scope is LimitScope.KEY:
        rows = rows.filter(key_id=int(group.subject))
    elif group.scope is LimitScope.TENANT_MODEL:
        rows = rows.filter(model=group.subject)
    elif group.scope is LimitScope.TENANT_CLASS:
        rows = rows.filter(work_class=group.subject)
    return _sums(rows.aggregate(**{name: Sum(name) for name in Sums.__slots__}))


def _counted(bucket: int, suffix: str) -> Sums:
    names = ("requests", "input_tokens", "output_tokens", "spend_nanousd")
    return _sums(WindowUsage.objects.filter(bucket=bucket, suffix=suffix).values(*names).first())


def _sums(row: Mapping[str, Any] | None) -> Sums:
    return Sums(**{name: int(amount or 0) for name, amount in (row or {}).items()})


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

"""Corrections by people, and sums for new limits."""

from collections.abc import Iterable, Mapping
from datetime import date, datetime
from typing import Any, cast

from django.db import IntegrityError, connection, transaction
from django.db.models import Sum

from console.audit.rules import Actor
from console.audit.services import record
from console.errors import Conflict, NotFound
from routing.contracts.enums import Dimension, LimitScope, WindowKind
from routing.contracts.resources import RESOURCE_PREFIX
from routing.contracts.snapshot import Limit, TenantEntry, bucket_of
from routing.decision.limits import Group, window_edges
from routing.store.plans import suffix_of
from tenants.ledger import tables
from tenants.ledger.cursors import Cursor
from tenants.ledger.rules.adjustments import check_adjustment
from tenants.ledger.rules.booking import Adjustment, Booking
from tenants.ledger.rules.lines import Booked, Sums, clean, instant
from tenants.ledger.selectors import periods_filter
from tenants.models import UsageAdjustment, UsageRollup, WindowUsage


@transaction.atomic
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
        cursor = cast(Cursor, raw_cursor)
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


def _find(cursor: Cursor, request_id: str, day: date) -> Booked:
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
    The tenant's calendar day is always counted, and a minute is over before it matters.
    """
    bucket = bucket_of(tenant.id)
    seeded = Booking()
    with connection.cursor() as raw_cursor:
        cursor = cast(Cursor, raw_cursor)
        tables.create_buckets(cursor, [bucket])
        state = tables.lock_buckets(cursor, [bucket])[bucket]
        for group in _seedable(tenant.limits):
            start_ms, end_ms, _ = window_edges(
                group.window, tenant.timezone, now_ms, group.anchor_min
            )
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
    found: dict[tuple[LimitScope, str, WindowKind, int], list[tuple[Dimension, int]]] = {}
    for limit in limits:
        place = (limit.scope, limit.window, limit.anchor_min)
        is_counted_anyway = place == (LimitScope.TENANT, WindowKind.DAY, 0)
        if limit.window in (WindowKind.NOW, WindowKind.MINUTE) or is_counted_anyway:
            continue
        found.setdefault((limit.scope, limit.subject, limit.window, limit.anchor_min), []).append(
            (limit.dimension, limit.amount)
        )
    return [
        Group(scope, window, subject, tuple(dims), anchor_min)
        for (scope, subject, window, anchor_min), dims in found.items()
    ]


def _used(tenant_id: int, group: Group, since: datetime, until: datetime) -> Sums:
    rows = UsageRollup.objects.filter(periods_filter(since, until), tenant_id=tenant_id)
    if group.scope is LimitScope.KEY:
        rows = rows.filter(key_id=int(group.subject))
    elif group.scope is LimitScope.TENANT_MODEL:
        rows = rows.filter(model=group.subject)
    elif group.scope is LimitScope.TENANT_CLASS:
        rows = rows.filter(work_class=group.subject)
    elif group.scope is LimitScope.RESOURCE:
        rows = rows.filter(model=RESOURCE_PREFIX + group.subject)
    return _sums(rows.aggregate(**{name: Sum(name) for name in Sums.__slots__}))


def _counted(bucket: int, suffix: str) -> Sums:
    names = ("requests", "input_tokens", "output_tokens", "spend_nanousd")
    return _sums(WindowUsage.objects.filter(bucket=bucket, suffix=suffix).values(*names).first())


def _sums(row: Mapping[str, Any] | None) -> Sums:
    return Sums(**{name: int(amount or 0) for name, amount in (row or {}).items()})

"""The ledger against itself: rows, their rollups, and entries that could not be booked.

Rows are found by the time in their ids, an hour in one statement. Rows and what follows from them
commit together, so one statement sees both or neither, whatever the writer does.
"""

import random
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, cast

from django.db import connection, transaction
from django.utils import timezone

from console.audit.rules import Actor
from console.audit.services import record
from routing.contracts.ids import uuid7
from routing.contracts.snapshot import bucket_of
from tenants.ledger import tables
from tenants.ledger.cursors import Cursor
from tenants.ledger.rules.booking import GRAINS_MS, Adjustment, Booking, RollupSums
from tenants.ledger.rules.lines import Slice, Sums
from tenants.models import UsageAdjustment
from tenants.reconcile.counters import Act
from tenants.reconcile.rules import Check, Report

NO_RESERVATION = "no_reservation"  # reasons of adjustments; one of each a request
LOST_ROW = "lost_row"
HOUR = timedelta(hours=1)
SLACK = timedelta(minutes=5)  # between the time in an id and the start that its row states
AHEAD = timedelta(minutes=2)
MAX_ROWS = 500  # of one kind in an hour that are named or repaired in one run

_AMOUNTS = ("requests", "input_tokens", "cached_tokens", "output_tokens", "spend_nanousd")
# Rows, their adjustments where the row started, and (less) rollups, of one stretch of time.
_LINES = """
WITH lines AS (
 SELECT tenant_id, date_trunc('minute', started_at) AS minute, (kind <> 'v')::int AS requests,
  input_tokens, cached_tokens, output_tokens, spend_nanousd FROM tenants_usage
  WHERE day BETWEEN %(first)s AND %(last)s AND request_id BETWEEN %(low)s AND %(high)s
 UNION ALL
 SELECT a.tenant_id, date_trunc('minute', COALESCE(
   (SELECT u.started_at FROM tenants_usage u WHERE u.day = a.day AND u.request_id = a.request_id),
   uuid_extract_timestamp(a.request_id))), a.requests, a.input_tokens, a.cached_tokens,
  a.output_tokens, a.spend_nanousd FROM tenants_usageadjustment a
  WHERE a.request_id BETWEEN %(low)s AND %(high)s
 UNION ALL
 SELECT tenant_id, start_at, -requests, -input_tokens, -cached_tokens, -output_tokens,
  -spend_nanousd FROM tenants_usagerollup
  WHERE grain = 'm' AND start_at >= %(since)s AND start_at < %(until)s
)
SELECT tenant_id, minute, sum(requests)::bigint, sum(input_tokens)::bigint,
 sum(cached_tokens)::bigint, sum(output_tokens)::bigint, sum(spend_nanousd)::bigint
 FROM lines WHERE minute >= %(since)s AND minute < %(until)s
 AND (%(tenant)s::bigint IS NULL OR tenant_id = %(tenant)s) GROUP BY tenant_id, minute
 HAVING sum(requests) <> 0 OR sum(input_tokens) <> 0 OR sum(cached_tokens) <> 0
  OR sum(output_tokens) <> 0 OR sum(spend_nanousd) <> 0 ORDER BY minute, tenant_id LIMIT %(most)s
"""
_SLICE = "project_id, key_id, model, pool, work_class, region"
_BY_SLICE = f"""
SELECT {_SLICE}, sum(requests)::bigint, sum(input_tokens)::bigint, sum(cached_tokens)::bigint,
 sum(output_tokens)::bigint, sum(spend_nanousd)::bigint FROM (
 SELECT {_SLICE}, (kind <> 'v')::int AS requests, input_tokens, cached_tokens, output_tokens,
  spend_nanousd FROM tenants_usage WHERE day BETWEEN %(first)s AND %(last)s
  AND request_id BETWEEN %(low)s AND %(high)s AND tenant_id = %(tenant)s
  AND started_at >= %(since)s AND started_at < %(until)s
 UNION ALL
 SELECT {_SLICE}, a.requests, a.input_tokens, a.cached_tokens, a.output_tokens, a.spend_nanousd
  FROM tenants_usageadjustment a JOIN tenants_usage u USING (day, request_id)
  WHERE a.request_id BETWEEN %(low)s AND %(high)s AND u.tenant_id = %(tenant)s
  AND u.started_at >= %(since)s AND u.started_at < %(until)s
 UNION ALL
 SELECT {_SLICE}, -requests, -input_tokens, -cached_tokens, -output_tokens, -spend_nanousd
  FROM tenants_usagerollup WHERE grain = 'm' AND tenant_id = %(tenant)s
  AND start_at >= %(since)s AND start_at < %(until)s
) AS lines GROUP BY {_SLICE}
"""  # noqa: S608 - column names of ours
_UNRESERVED = """
SELECT request_id::text, day, tenant_id, spend_nanousd FROM tenants_usage u
 WHERE day BETWEEN %(first)s AND %(last)s AND request_id BETWEEN %(low)s AND %(high)s
 AND kind <> 'v' AND NOT legs @> '[[1]]' AND NOT EXISTS (SELECT 1 FROM tenants_usageadjustment a
  WHERE a.request_id = u.request_id AND a.reason = %(reason)s)
 ORDER BY request_id LIMIT %(most)s
"""


def _stretch(since: datetime, until: datetime, **more: Any) -> dict[str, Any]:
    low, high = since - SLACK, until + SLACK
    return {
        "since": since,
        "until": until,
        "first": low.date(),
        "last": high.date(),
        "low": uuid7(int(low.timestamp() * 1000), 0),
        "high": uuid7(int(high.timestamp() * 1000), 0),
        "tenant": None,
        "most": MAX_ROWS,
        "reason": NO_RESERVATION,
        **more,
    }


def _hours(hours: int) -> Iterator[tuple[datetime, datetime]]:
    end = (timezone.now() + AHEAD).replace(second=0, microsecond=0) + timedelta(minutes=1)
    for back in range(hours):
        yield end - HOUR * (back + 1), end - HOUR * back


def _all(query: str, parameters: dict[str, Any]) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(query, parameters)
        return list(cursor.fetchall())


def check_rows(hours: int, report: Report, actor: Actor | None) -> list[Act]:
    """Rows of the last hours; with an actor, repaired: first rows, then what follows from them."""
    acts: list[Act] = []
    for since, until in _hours(hours):
        at = _stretch(since, until)
        for request_id, day, tenant_id, spend in _all(_UNRESERVED, at):
            report.lines[Check.NO_RESERVATION].add(f"{request_id} of {day}", spend)
            if actor:
                acts.append(_take_back(request_id, day, tenant_id, actor))
        for tenant_id, minute, *amounts in _all(_LINES, at):
            words = f"tenant {tenant_id}, {minute:%Y-%m-%d %H:%M}: {_words(amounts)}"
            report.lines[Check.ROLLUPS].add(words, amounts[-1])
            if actor:
                acts += _repair_minute(tenant_id, minute, actor)
    return acts


def _words(less: Sequence[int]) -> str:
    return ", ".join(f"{name} {-amount:+d}" for name, amount in zip(_AMOUNTS, less, strict=True))


@transaction.atomic
def _take_back(request_id: str, day: Any, tenant_id: int, actor: Actor) -> Act:
    """What was charged without a reservation is charged no longer; the row stays."""
    with connection.cursor() as raw:
        cursor = cast(Cursor, raw)
        bucket = _lock(cursor, tenant_id)
        booked = tables.find_booked(cursor, {request_id: day})[request_id]
        if UsageAdjustment.objects.filter(request_id=request_id, reason=NO_RESERVATION).exists():
            return Act(Check.NO_RESERVATION, f"{request_id}: taken back already")
        net = Sums(*(getattr(booked.sums, name) for name in _AMOUNTS))
        for row in UsageAdjustment.objects.filter(request_id=request_id).values(*_AMOUNTS):
            net = Sums(*(getattr(net, name) + int(row[name]) for name in _AMOUNTS))
        booking = Booking()
        note = "reconcile: no reservation names this request"
        booking.adjust(Adjustment(booked, NO_RESERVATION, Sums().minus(net), note))
        tables.apply_booking(cursor, bucket, booking)
    what = f"{request_id}: {net.spend_nanousd} nano-dollars taken back"
    record(
        actor=actor,
        act="ledger.take_back",
        object_type="usage",
        object_id=request_id,
        tenant_id=tenant_id,
        before={"spend_nanousd": net.spend_nanousd},
        after={"spend_nanousd": 0},
        reason=note,
    )
    return Act(Check.NO_RESERVATION, what)


def _lock(cursor: Cursor, tenant_id: int) -> int:
    """The tenant's bucket, locked: nothing is booked until the transaction ends."""
    bucket = bucket_of(str(tenant_id))
    tables.create_buckets(cursor, [bucket])
    tables.lock_buckets(cursor, [bucket])
    return bucket


@transaction.atomic
def _repair_minute(tenant_id: int, minute: datetime, actor: Actor) -> list[Act]:
    """Raise rollups that lack rows; where rows are gone, an adjustment keeps what they charged."""
    at = _stretch(minute, minute + timedelta(minutes=1), tenant=tenant_id)
    acts = []
    with connection.cursor() as raw:
        cursor = cast(Cursor, raw)
        bucket = _lock(cursor, tenant_id)
        booking = Booking()
        for *parts, requests, inputs, cached, outputs, spend in _all(_BY_SLICE, at):
            sums = Sums(requests, inputs, cached, outputs, spend)
            if _is_more(sums):
                _raise(booking, Slice(tenant_id, *parts), minute, sums)
        if booking.rollups:
            tables.apply_booking(cursor, bucket, booking)
            acts.append(_noted(actor, tenant_id, minute, "rollups raised to their rows"))
    for _, _, *less in _all(_LINES, at):
        lost = Sums(*(-amount for amount in less))
        if not _is_more(lost):
            why = f"tenant {tenant_id}, {minute:%Y-%m-%d %H:%M}: signs differ, left to a person"
            acts.append(Act(Check.ROLLUPS, why, is_done=False))
            continue
        request_id = uuid7(int(minute.timestamp() * 1000), random.getrandbits(74))
        UsageAdjustment.objects.create(
            request_id=request_id,
            day=minute.date(),
            tenant_id=tenant_id,
            reason=LOST_ROW,
            note="reconcile: its row is gone, what it charged stays",
            **{name: getattr(lost, name) for name in _AMOUNTS},
        )
        what = f"lost rows of {lost.spend_nanousd} nano-dollars kept as adjustment {request_id}"
        acts.append(_noted(actor, tenant_id, minute, what))
    return acts


def _is_more(sums: Sums) -> bool:
    amounts = [getattr(sums, name) for name in _AMOUNTS]
    return any(amounts) and min(amounts) >= 0


def _raise(booking: Booking, part: Slice, minute: datetime, sums: Sums) -> None:
    start_ms = int(minute.timestamp() * 1000)
    for grain, length_ms in GRAINS_MS.items():
        rollup = booking.rollups.setdefault(
            (grain, start_ms - start_ms % length_ms, part), RollupSums()
        )
        rollup.add(sums)


def _noted(actor: Actor, tenant_id: int, minute: datetime, what: str) -> Act:
    words = f"tenant {tenant_id}, {minute:%Y-%m-%d %H:%M}: {what}"
    record(
        actor=actor,
        act="ledger.repair_minute",
        object_type="tenant",
        object_id=str(tenant_id),
        tenant_id=tenant_id,
        after={"minute": minute, "what": what},
        reason="reconcile",
    )
    return Act(Check.ROLLUPS, words)

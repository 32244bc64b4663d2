"""One bucket's counters and holds against the ledger, exact while traffic runs.

The ledger's row of the bucket is locked, so nothing is booked meanwhile; the store is read in one
script. What is on its way between the two, unread entries and numbered corrections, is known.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import msgspec
from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils import timezone

from console.audit.rules import Actor
from console.audit.services import record
from routing.contracts.usage import decode_hold_info
from routing.decision.lost import lost_event
from routing.store.counters import StoreSession
from routing.store.inspect import (
    SUFFIXES_PER_LOOK,
    BucketKeys,
    HoldSeen,
    Moment,
    end_hold,
    look,
    mend_leases,
)
from routing.store.plans import decode_legs
from routing.store.reservations import LEASE_MS
from tenants.ledger import tables
from tenants.ledger.cursors import Cursor
from tenants.ledger.rules.health import READY, BucketState
from tenants.ledger.rules.lines import Damage, Line, Sums, line_of
from tenants.models import CounterDelta, WindowUsage
from tenants.reconcile.rules import (
    COMPARED_MS,
    OVERDUE_MS,
    Check,
    Counter,
    Drift,
    Report,
    corrections,
    drifts,
)

MOST_UNREAD = 2_000  # entries or holds of a bucket in one look; more: the ledger is far behind
HOUR_MS = 3_600_000
NO_ENTRIES = f"{2**64 - 1}-0"  # a position behind every entry


@dataclass(slots=True)
class Act:
    """One repair, or why one could not be made."""

    check: Check
    what: str
    is_done: bool = True


def check_bucket(
    session: StoreSession, bucket: int, names: BucketKeys, report: Report, actor: Actor | None
) -> list[Act]:
    """Add what is wrong with a bucket to the report; with an actor, correct it in the same breath.

    Raises `StoreLost`.
    """
    with transaction.atomic(), connection.cursor() as raw:
        cursor = cast(Cursor, raw)
        state = tables.lock_buckets(cursor, [bucket]).get(bucket)
        if state is None:
            if names.counters or names.holds:
                report.lines[Check.UNCHECKED].add(f"bucket {bucket}: not in the ledger")
            return []
        # Before the look: the writer forgets a correction once it is applied, lock or not.
        waiting = list(CounterDelta.objects.filter(bucket=bucket, epoch=state.epoch))
        found: list[Drift] = []
        for number, part in enumerate(_parts(bucket, names, state.epoch)):
            moment = look(
                session,
                bucket,
                pos=state.pos,
                hold_ids=names.holds if number == 0 else [],
                suffixes=part,
                most=MOST_UNREAD,
            )
            if trouble := _trouble(moment, state, session.run_id):
                report.lines[Check.UNCHECKED].add(f"bucket {bucket}: {trouble}")
                return []
            if number == 0:
                _note_holds(bucket, moment, report)
            found += _compare(bucket, part, moment, waiting)
        for drift in found:
            report.lines[drift.check].add(drift.words, drift.counter - drift.expected)
        if actor is None or not found:
            return []
        return [_correct(cursor, bucket, state, found, actor)]


def booked_buckets() -> set[int]:
    """Buckets with sums of windows that counters must still agree with."""
    return set(_booked().values_list("bucket", flat=True).distinct())


def _booked() -> QuerySet[WindowUsage]:
    since = timezone.now() - timedelta(milliseconds=COMPARED_MS)
    return WindowUsage.objects.filter(window_end_at__gt=since)


def _parts(bucket: int, names: BucketKeys, epoch: int) -> Iterator[list[str]]:
    """Counters of this epoch and windows of the ledger, a look's worth at a time; at least one."""
    suffixes = {suffix for of, suffix in names.counters if of == epoch}
    suffixes |= set(_booked().filter(bucket=bucket).values_list("suffix", flat=True))
    listed = sorted(suffixes)
    for at in range(0, max(len(listed), 1), SUFFIXES_PER_LOOK):
        yield listed[at : at + SUFFIXES_PER_LOOK]


def _trouble(moment: Moment, state: BucketState, run_id: str) -> str:
    if state.state != READY or moment.state != READY:
        return "rebuilding"
    if moment.epoch != state.epoch or moment.run_id != run_id or state.run_id != run_id:
        return "between two epochs"
    return "too much on its way to compare" if moment.is_cut else ""


def _note_holds(bucket: int, moment: Moment, report: Report) -> None:
    for hold in moment.holds:
        if hold.epoch is None and hold.lease_ms is None:
            continue  # ended since its name was read
        if hold.epoch is None:
            report.lines[Check.NO_END].add(f"{hold.request_id}: a lease without hold")
        elif hold.lease_ms is None:
            report.lines[Check.NO_END].add(f"{hold.request_id}: a hold without lease")
        elif is_overdue(hold, moment.now_ms):
            late_s = (moment.now_ms - hold.expiry_ms) // 1000
            report.lines[Check.OVERDUE].add(
                f"{hold.request_id} (bucket {bucket}): {late_s} s after its lease"
            )


def is_overdue(hold: HoldSeen, now_ms: int) -> bool:
    """Should a sweep have ended this hold by now?"""
    return hold.epoch is not None and hold.expiry_ms + OVERDUE_MS < now_ms


def _compare(
    bucket: int, suffixes: Sequence[str], moment: Moment, waiting: Sequence[CounterDelta]
) -> list[Drift]:
    rows = WindowUsage.objects.filter(bucket=bucket, suffix__in=suffixes)
    booked: dict[str, Sums] = {}
    ends_ms: dict[str, int] = {}
    for row in rows:
        ends_ms[row.suffix] = int(row.window_end_at.timestamp() * 1000)
        booked[row.suffix] = Sums(
            row.requests, row.input_tokens, 0, row.output_tokens, row.spend_nanousd
        )
    counters = {}
    for suffix, seen in moment.counters.items():
        end_ms = ends_ms.get(suffix, seen.end_ms or moment.now_ms)
        if suffix.startswith("g:"):
            end_ms = max(end_ms, moment.now_ms - 2 * HOUR_MS)  # a gauge lives a day from now
        elif end_ms <= moment.now_ms - COMPARED_MS:
            continue
        counters[suffix] = Counter(seen.fields, end_ms)
    return drifts(
        counters,
        booked=booked,
        unread=_readable(moment),
        pending=[row for delta in waiting if delta.seq > moment.seq for row in delta.rows],
        held=held_by(moment),
        epoch=moment.epoch,
    )


def _readable(moment: Moment) -> Iterator[Line]:
    for entry in moment.entries:
        try:
            yield line_of(entry.id, entry.fields)
        except Damage:
            continue  # about to be parked


def held_by(moment: Moment) -> dict[tuple[str, str], int]:
    """Sums of the legs of the holds that count in this epoch, by (suffix, dimension)."""
    sums: dict[tuple[str, str], int] = defaultdict(int)
    for hold in moment.holds:
        if hold.epoch != moment.epoch:
            continue
        try:
            legs = decode_legs(hold.legs)
        except msgspec.MsgspecError:
            continue
        for _, suffix, _, taken in legs:
            for dimension, amount in zip(taken[::2], taken[1::2], strict=True):
                sums[suffix, str(dimension)] += int(amount)
    return sums


def _correct(
    cursor: Cursor, bucket: int, state: BucketState, found: list[Drift], actor: Actor
) -> Act:
    """A numbered correction by the difference: right whatever traffic does until it is applied."""
    seq = tables.insert_delta(cursor, bucket, state, corrections(found))
    tables.move_bucket(cursor, bucket, state.pos, seq)
    words = [drift.words for drift in found]
    record(
        actor=actor,
        act="ledger.correct_counters",
        object_type="bucket",
        object_id=str(bucket),
        before={f"{d.suffix} {d.dimension}": d.counter for d in found},
        after={f"{d.suffix} {d.dimension}": d.expected for d in found},
        reason=f"reconcile, correction {seq}",
    )
    return Act(found[0].check, f"bucket {bucket}: corrected {'; '.join(words)[:500]}")


# -- holds -----------------------------------------------------------------------------------------


def repair_holds(session: StoreSession, bucket: int, names: BucketKeys, actor: Actor) -> list[Act]:
    """Mend leases and end what should have been swept. Raises `StoreLost`."""
    if names.is_empty:
        return []
    moment = look(
        session, bucket, pos=NO_ENTRIES, hold_ids=names.holds, suffixes=[], most=MOST_UNREAD
    )
    acts = _mend(session, bucket, moment, actor)
    if moment.state != READY or moment.run_id != session.run_id:
        return acts
    for hold in moment.holds:
        if is_overdue(hold, moment.now_ms):
            acts += _sweep(session, bucket, hold, moment.now_ms, actor)
    return acts


def _mend(session: StoreSession, bucket: int, moment: Moment, actor: Actor) -> list[Act]:
    torn = [
        hold.request_id for hold in moment.holds if (hold.epoch is None) != (hold.lease_ms is None)
    ]
    if not torn:
        return []
    given, dropped = mend_leases(session, bucket, torn)
    if not given + dropped:
        return []
    what = f"bucket {bucket}: {given} holds got a lease, {dropped} leases without hold dropped"
    _record(actor, "ledger.mend_leases", "bucket", str(bucket), {"ids": torn[:100]}, what)
    return [Act(Check.NO_END, what)]


def _sweep(
    session: StoreSession, bucket: int, hold: HoldSeen, now_ms: int, actor: Actor
) -> list[Act]:
    try:
        legs: Any = decode_legs(hold.legs)
        event = lost_event(
            decode_hold_info(hold.info),
            out_so_far=hold.out_so_far,
            elapsed_s=max(now_ms - hold.expiry_ms + LEASE_MS, 0) / 1000,
            ended_at_ms=now_ms,
        )
    except (msgspec.MsgspecError, ValueError) as error:
        why = f"{hold.request_id}: its description cannot be read ({error}); it stays"
        return [Act(Check.OVERDUE, why, is_done=False)]
    event = msgspec.structs.replace(event, legs=[list(leg) for leg in legs])
    if not end_hold(session, bucket, event, hold.legs):
        return []
    what = f"{hold.request_id}: swept, charged {event.spend_nanousd} nano-dollars"
    after = {"spend_nanousd": event.spend_nanousd, "output_tokens": event.output_tokens}
    _record(actor, "ledger.sweep_hold", "reservation", hold.request_id, after, what)
    return [Act(Check.OVERDUE, what)]


@transaction.atomic
def _record(actor: Actor, act: str, kind: str, name: str, after: object, reason: str) -> None:
    record(actor=actor, act=act, object_type=kind, object_id=name, after=after, reason=reason[:500])

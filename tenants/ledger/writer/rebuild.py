"""New epochs: counters of a store that restarted or lost its memory are filled from the ledger.

All sick buckets go together, so the wait for the gateways is paid once. Killed anywhere, the next
writer starts at step 1 with a higher epoch; calls of the old one then answer `OLD`.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from routing.contracts.enums import Dimension
from routing.store import keys
from routing.store.counters import Answer, CounterRow, Meta, StoreSession
from tenants.ledger import tables
from tenants.ledger.cursors import Cursor
from tenants.ledger.rules.gaps import Gap, gap_of
from tenants.ledger.rules.health import (
    REBUILDING,
    REGISTER_WAIT_MS,
    BucketState,
    needs_rebuild,
    next_epoch,
)
from tenants.ledger.rules.lines import Sums, instant
from tenants.ledger.writer.database import Database
from tenants.ledger.writer.ingest import Batch, Known, ingest

logger = logging.getLogger(__name__)

GROUP_BUCKETS = 64  # buckets in one closing transaction: bounds the sums held in memory
DRAIN_ENTRIES = 256  # entries of a bucket in one batch, as in normal work
COUNTER_KEPT = timedelta(hours=26)  # counters live this long after their window's end
_DIMENSIONS = (
    Dimension.REQUESTS.value,
    Dimension.INPUT_TOKENS.value,
    Dimension.OUTPUT_TOKENS.value,
    Dimension.SPEND_NANOUSD.value,
)


@dataclass(slots=True)
class Rebuild:
    """A rebuild between `begin` and `open`: bucket -> epoch, and when the gateways had their say.

    `ready_at_ms` is on the store's clock.
    """

    run_id: str
    epochs: dict[int, int]
    ready_at_ms: int
    registered: int = 0
    opened: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Health:
    """Both sides of every bucket compared.

    `sick` names each bucket whose counters cannot be trusted, with the reason; `unpublished` are
    sound ones whose committed position the store does not know yet.
    """

    sick: dict[int, str]
    rows: dict[int, BucketState]
    unpublished: dict[int, BucketState]


def check_health(database: Database, session: StoreSession) -> Health:
    """Compare the row of every bucket that this server holds with its meta."""
    metas = session.metas(session.buckets)  # before the rows: see `needs_rebuild`
    with database.transaction() as cursor:
        rows = {b: row for b, row in tables.read_buckets(cursor).items() if b in metas}
    sick, unpublished = {}, {}
    for bucket, meta in metas.items():
        reason = needs_rebuild(rows.get(bucket), _state(meta), session.run_id)
        if reason:
            sick[bucket] = reason
        elif meta is not None and meta.pos != rows[bucket].pos:
            unpublished[bucket] = rows[bucket]
    return Health(sick, rows, unpublished)


def begin_rebuild(database: Database, session: StoreSession, buckets: Sequence[int]) -> Rebuild:
    """Steps 1 and 2, and the start of 3. Buckets that another epoch overtook are left out."""
    is_virgin = _is_virgin(database, session, buckets)
    metas = session.metas(buckets)
    with database.transaction() as cursor:
        known = tables.read_buckets(cursor)
        tables.create_buckets(cursor, buckets)
        rows = tables.lock_buckets(cursor, buckets)
        gaps = [gap_of(b, known.get(b), _state(metas[b])) for b in buckets]
        _record([gap for gap in gaps if gap is not None], cursor)
        epochs = {b: next_epoch(rows.get(b), _state(metas[b])) for b in buckets}
        tables.start_epochs(cursor, epochs, session.run_id)
    answers = session.begin(epochs)
    begun_at_ms = session.now_ms()
    begun = {bucket: epochs[bucket] for bucket, answer in answers.items() if answer is Answer.OK}
    registered = session.register_holds(list(begun))
    wait_ms = 0 if is_virgin else REGISTER_WAIT_MS
    return Rebuild(session.run_id, begun, begun_at_ms + wait_ms, registered)


def _record(gaps: Sequence[Gap], cursor: Cursor) -> None:
    """Keep what is missing with the damaged entries, for people, before the new epoch hides it."""
    for gap in gaps:
        stream = keys.bucket_usage(gap.bucket)
        tables.park(cursor, stream, [(gap.until, gap.reason, b"")])
        logger.error("bucket %s: %s up to %s", gap.bucket, gap.reason, gap.until)


def _is_virgin(database: Database, session: StoreSession, buckets: Sequence[int]) -> bool:
    """Has no epoch ever been open here?

    The wait lets gateways register holds of earlier epochs. Without a row in the ledger and without
    meta, leases or entries in the store there was no epoch, hence no hold: reserve had answered
    `REBUILD` ever since. Requests admitted degraded may be in flight; they hold a local share,
    which the protocol allows beyond the limit, and register at their next heartbeat.
    """
    names = [
        name(bucket)
        for bucket in buckets
        for name in (keys.bucket_meta, keys.bucket_leases, keys.bucket_usage)
    ]
    if session.count_present(names):
        return False
    with database.transaction() as cursor:
        return not tables.read_buckets(cursor).keys() & set(buckets)


def finish_rebuild(
    database: Database, session: StoreSession, rebuild: Rebuild, known: Known
) -> int:
    """Steps 4 and 5, when the wait is over; returns the rows booked on the way.

    A bucket whose epoch has moved on is left to the next round.
    """
    buckets, rows = sorted(rebuild.epochs), 0
    for at in range(0, len(buckets), GROUP_BUCKETS):
        group = buckets[at : at + GROUP_BUCKETS]
        rows += _drain(database, session, rebuild, group, known)
        closed, sums = _close(database, session, rebuild, group)
        rebuild.opened |= _open(session, closed, sums)
    return rows


def _drain(
    database: Database,
    session: StoreSession,
    rebuild: Rebuild,
    group: Sequence[int],
    known: Known,
) -> int:
    """Read the streams to their ends. While a bucket rebuilds nothing is added to its stream."""
    rows, left = 0, set(group)
    while left:
        with database.transaction() as cursor:
            states = {
                bucket: state
                for bucket, state in tables.read_buckets(cursor).items()
                if bucket in left and state.epoch == rebuild.epochs[bucket]
            }
        if not states:
            return rows
        names = {keys.bucket_usage(b): state.pos for b, state in states.items()}
        found = session.read(names, DRAIN_ENTRIES)
        left = {bucket for bucket in states if keys.bucket_usage(bucket) in found}
        for bucket in left:
            entries = found[keys.bucket_usage(bucket)]
            batch = Batch(bucket, session.run_id, states[bucket], entries)
            rows += ingest(database, batch, known).rows
    return rows


Fill = dict[int, list[CounterRow]]


def _close(
    database: Database, session: StoreSession, rebuild: Rebuild, group: Sequence[int]
) -> tuple[dict[int, BucketState], Fill]:
    """One transaction: the sums, without the corrections they already hold, and the state."""
    ended_after = instant(session.now_ms()) - COUNTER_KEPT
    with database.transaction() as cursor:
        rows = tables.lock_buckets(cursor, group)
        states = {b: s for b, s in rows.items() if _is_ours(s, rebuild, b)}
        sums = tables.window_sums(cursor, states, ended_after)
        tables.make_ready(cursor, states)
    fill: Fill = {}
    for bucket, suffix, end_at, amounts in sums:
        end_ms = int(end_at.timestamp() * 1000)
        fill.setdefault(bucket, []).extend(_counters(suffix, end_ms, amounts))
    return states, fill


def _is_ours(state: BucketState, rebuild: Rebuild, bucket: int) -> bool:
    return (
        state.epoch == rebuild.epochs[bucket]
        and state.run_id == rebuild.run_id
        and state.state == REBUILDING
    )


def _counters(suffix: str, end_ms: int, sums: Sums) -> Iterator[CounterRow]:
    for dimension in _DIMENSIONS:
        amount = sums.counted(dimension)
        if amount:
            yield CounterRow(suffix, dimension, amount, end_ms)


def _open(session: StoreSession, closed: Mapping[int, BucketState], fill: Fill) -> set[int]:
    """Fill, and open what is filled. An `OLD` here means the next epoch has begun elsewhere."""
    filled = {
        bucket: (state.epoch, state.seq)
        for bucket, state in closed.items()
        if session.fill(bucket, state.epoch, fill.get(bucket, [])) is Answer.OK
    }
    answers = session.ready(filled)
    return {bucket for bucket, answer in answers.items() if answer is Answer.OK}


def _state(meta: Meta | None) -> BucketState | None:
    if meta is None:
        return None
    return BucketState(meta.epoch, meta.run_id, meta.state, meta.pos, meta.seq)

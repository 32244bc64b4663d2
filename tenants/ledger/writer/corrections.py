"""What follows a commit, repeatable at any time: numbered corrections, then positions.

Corrections of a bucket are applied in the order of their numbers, one at a time: the script skips
numbers at or below the last one, so a later one must never overtake an earlier.
"""

from collections.abc import Mapping

from routing.store.counters import Answer, CounterRow, StoreSession
from tenants.ledger import tables
from tenants.ledger.rules.health import READY, BucketState
from tenants.ledger.writer.database import Database

MAX_DELTAS = 500  # in one go: a batch makes at most one, so this is far above a round's worth


def apply_corrections(database: Database, session: StoreSession) -> set[int]:
    """Apply what is pending to the counters and forget it; returns buckets in another epoch.

    Those are left alone: their rebuild deletes these corrections.
    """
    with database.transaction() as cursor:
        pending = tables.pending_deltas(cursor, session.buckets, MAX_DELTAS)
    done: dict[int, int] = {}
    stale: set[int] = set()
    for bucket, seq, epoch, rows in pending:
        if bucket in stale:
            continue
        answer = session.delta(bucket, epoch, seq, [CounterRow(*row) for row in rows])
        if answer is Answer.OLD:
            stale.add(bucket)
        else:
            done[bucket] = seq
    for bucket, seq in done.items():
        with database.transaction() as cursor:
            tables.delete_deltas(cursor, bucket, seq)
    return stale


def publish_positions(session: StoreSession, states: Mapping[int, BucketState]) -> set[int]:
    """Acknowledge what is committed and trim the streams; returns buckets in another epoch."""
    positions = {
        bucket: (state.epoch, state.pos)
        for bucket, state in states.items()
        if state.state == READY and state.run_id == session.run_id
    }
    answers = session.publish(positions)
    return {bucket for bucket, answer in answers.items() if answer is Answer.OLD}

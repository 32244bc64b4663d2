"""The ledger writer's loop: watch the buckets, book what is new, correct, acknowledge."""

import logging
import threading
import time

import psycopg

from routing.store import keys
from routing.store.counters import StoreLost, StoreSession, StreamEntry
from tenants.ledger import tables
from tenants.ledger.rules.gaps import summary
from tenants.ledger.rules.health import BucketState, entry_order
from tenants.ledger.writer.corrections import apply_corrections, publish_positions
from tenants.ledger.writer.database import Database
from tenants.ledger.writer.heartbeat import Progress
from tenants.ledger.writer.ingest import Batch, Known, Outcome, ingest
from tenants.ledger.writer.rebuild import Rebuild, begin_rebuild, check_health, finish_rebuild
from tenants.ledger.writer.shapes import ingest_shapes

logger = logging.getLogger(__name__)

BATCH_ENTRIES = 256  # of a bucket in one transaction: with 256 buckets at most 24 MB in one answer
BUSY_WAIT_S = 0.1  # between rounds that found work: gathers rows into batches, bounds the lag
IDLE_WAIT_S = 0.5
IDLE_GROWTH = 1.5
CHECK_S = 5.0  # full comparison of both sides; catches what the presence check cannot
PRESENCE_S = 0.5  # are all metas there: one cheap command sees an emptied store at once
OWNED_CHECK_S = 1.0  # while another writer rebuilds
CORRECT_S = 1.0  # operators' adjustments wait at most this long
BACKOFF_MIN_S = 0.2
BACKOFF_MAX_S = 5.0

_BUCKET_OF = {keys.bucket_usage(bucket): bucket for bucket in range(keys.BUCKETS)}


class LedgerWriter:
    """One writer of one server, a cluster's master or the only one (`store_url`).

    Any number may run: the bucket's row decides whose batch it is.
    """

    def __init__(
        self, *, store_url: str, database: Database, stop: threading.Event, progress: Progress
    ) -> None:
        self._url = store_url
        self._database = database
        self._stop = stop
        self._progress = progress
        self._session: StoreSession | None = None
        self._states: dict[int, BucketState] = {}
        self._known = Known()
        self._rebuild: Rebuild | None = None
        self._next_check_s = self._next_presence_s = self._next_correct_s = 0.0

    def run(self) -> None:
        """Work until stopped; a store or a PostgreSQL that is away is waited for, with back-off.

        The batch in hand is finished first. Nothing is lost by a kill either: position and rows
        commit together.
        """
        self._progress.round_at_ms = time.time_ns() // 1_000_000
        backoff_s, idle_s = BACKOFF_MIN_S, BUSY_WAIT_S
        while not self._stop.is_set():
            try:
                wait_s = idle_s = self._round(idle_s)
                backoff_s = BACKOFF_MIN_S
                self._progress.trouble = ""
            except (StoreLost, psycopg.Error) as error:
                self._give_up(error)
                wait_s, backoff_s = backoff_s, min(2 * backoff_s, BACKOFF_MAX_S)
            if wait_s:
                self._stop.wait(wait_s)
        self.close()

    def close(self) -> None:
        """Drop both connections; a rebuild in hand is left to the next writer."""
        if self._session is not None:
            self._session.close()
        self._session, self._rebuild = None, None
        self._database.close()

    def _round(self, idle_s: float) -> float:
        """One cycle; returns how long to wait before the next."""
        read = self.cycle()
        self._progress.round_at_ms = time.time_ns() // 1_000_000
        if read >= BATCH_ENTRIES:
            return 0.0
        return BUSY_WAIT_S if read else min(max(idle_s, BUSY_WAIT_S) * IDLE_GROWTH, IDLE_WAIT_S)

    def _give_up(self, error: Exception) -> None:
        what = "the store" if isinstance(error, StoreLost) else "PostgreSQL"
        self._progress.trouble = f"waiting for {what}"
        logger.warning("%s failed, starting again: %s", what, error)
        self._known.forget()
        self.close()

    def cycle(self) -> int:
        """Do what is due once; returns the most entries read from one stream.

        Raises `StoreLost` or `psycopg.Error`; call `close` then and start again.
        """
        session = self._open()
        self._watch(session)
        read = self._ingest(session)
        lists = 0
        if session.owns(keys.SHAPES):
            rows, lists = ingest_shapes(self._database, session, self._known)
            self._progress.shapes += rows
        if time.monotonic() >= self._next_correct_s:
            self._correct(session)
        return max(read, lists)

    def _open(self) -> StoreSession:
        if self._session is None:
            self._session = StoreSession.open(self._url)
            self._next_check_s = 0.0
            self._note_gaps()
        return self._session

    # -- watching and rebuilding ------------------------------------------------------------

    def _watch(self, session: StoreSession) -> None:
        if self._rebuild is not None:
            if session.now_ms() >= self._rebuild.ready_at_ms:
                self._finish(session, self._rebuild)
            return
        now_s = time.monotonic()
        if now_s >= self._next_presence_s:
            self._next_presence_s = now_s + PRESENCE_S
            metas = [keys.bucket_meta(bucket) for bucket in session.buckets]
            if metas and session.count_present(metas) < len(metas):
                self._next_check_s = 0.0
        if now_s >= self._next_check_s:
            self._check(session)

    def _check(self, session: StoreSession) -> None:
        session.learn_buckets()
        health = check_health(self._database, session)
        # A row that went back is not read from: moving on would hide what it lacks.
        self._states = {b: row for b, row in health.rows.items() if b not in health.sick}
        self._next_check_s = time.monotonic() + CHECK_S
        if health.unpublished:
            publish_positions(session, health.unpublished)
        if not health.sick:
            return
        if not self._database.try_lock_rebuild():
            self._next_check_s = time.monotonic() + OWNED_CHECK_S
            return
        # Its owner may have finished between the look and the lock: look again.
        sick = check_health(self._database, session).sick
        if not sick:
            self._database.unlock_rebuild()
            return
        logger.warning("rebuilding %s buckets: %s", len(sick), ", ".join(sorted({*sick.values()})))
        self._rebuild = begin_rebuild(self._database, session, sorted(sick))
        self._note_gaps()
        self._progress.rebuilding = len(self._rebuild.epochs)
        if session.now_ms() >= self._rebuild.ready_at_ms:
            self._finish(session, self._rebuild)

    def _finish(self, session: StoreSession, rebuild: Rebuild) -> None:
        self._progress.rows += finish_rebuild(self._database, session, rebuild, self._known)
        self._rebuild = None
        self._progress.rebuilding = 0
        self._database.unlock_rebuild()
        logger.info("opened %s of %s buckets", len(rebuild.opened), len(rebuild.epochs))
        self._next_check_s = 0.0
        self._check(session)

    # -- booking ----------------------------------------------------------------------------

    def _ingest(self, session: StoreSession) -> int:
        positions = {
            keys.bucket_usage(bucket): state.pos
            for bucket, state in self._states.items()
            if state.run_id == session.run_id
        }
        if not positions:
            return 0
        found = session.read(positions, BATCH_ENTRIES)
        self._progress.oldest_unread_ms = min(
            (entry_order(entries[0].id)[0] for entries in found.values()), default=None
        )
        done: dict[int, BucketState] = {}
        has_correction = False
        for name, entries in found.items():
            has_correction |= self._ingest_one(session, _BUCKET_OF[name], entries, done)
            if self._stop.is_set():
                break
        if publish_positions(session, done):
            self._next_check_s = 0.0
        if has_correction:
            self._correct(session)
        self._note_backlog(found)
        return max((len(entries) for entries in found.values()), default=0)

    def _ingest_one(
        self,
        session: StoreSession,
        bucket: int,
        entries: list[StreamEntry],
        done: dict[int, BucketState],
    ) -> bool:
        batch = Batch(bucket, session.run_id, self._states[bucket], entries)
        result = ingest(self._database, batch, self._known)
        self._progress.rows += result.rows
        self._progress.parked += result.parked
        if result.outcome is Outcome.DONE and result.state is not None:
            self._states[bucket] = done[bucket] = result.state
        elif result.outcome is Outcome.MOVED:
            # Another writer's rebuild, or a database gone back under us: both sides decide.
            self._next_check_s = 0.0
        return result.has_correction

    def _note_backlog(self, found: dict[str, list[StreamEntry]]) -> None:
        """What a full batch leaves behind is at least as old as its last entry."""
        full = [entries[-1].id for entries in found.values() if len(entries) >= BATCH_ENTRIES]
        self._progress.oldest_unread_ms = min(
            (entry_order(entry_id)[0] for entry_id in full), default=None
        )

    def _note_gaps(self) -> None:
        with self._database.transaction() as cursor:
            self._progress.gaps = summary(tables.read_gaps(cursor))

    def _correct(self, session: StoreSession) -> None:
        self._next_correct_s = time.monotonic() + CORRECT_S
        if apply_corrections(self._database, session):
            self._next_check_s = min(self._next_check_s, time.monotonic() + CORRECT_S)

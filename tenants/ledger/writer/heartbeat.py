"""What the writer says of itself, from a thread of its own: a batch may take longer than a beat."""

import logging
import os
import threading
import time
from dataclasses import dataclass

import msgspec

from routing.contracts.process import ProcessStatus, decode_process_status, encode_status
from routing.store import keys
from routing.store.counters import StoreLost, StoreSession

logger = logging.getLogger(__name__)

NAME = "ledger"
EVERY_S = 1.0
FORGET_AFTER_MS = 3_600_000
STALLED_MS = 2_000  # a round takes well under a second; one that takes longer waits for somebody


@dataclass(slots=True)
class Progress:
    """Written by the writer, read by the heartbeat: single values, so no lock.

    `oldest_unread_ms` is when the oldest entry seen and not yet committed was appended (None: all
    is read); it stays while PostgreSQL is away, so the lag grows. `round_at_ms` is when the last
    round ended well: what came since may be unread too, although nobody could look.
    """

    rows: int = 0
    shapes: int = 0
    parked: int = 0
    rebuilding: int = 0
    trouble: str = ""
    oldest_unread_ms: int | None = None
    round_at_ms: int | None = None

    def lag_s(self, now_ms: int) -> float:
        """Age of the oldest entry that is not in the ledger, or may not be."""
        since = [now_ms] if self.oldest_unread_ms is None else [self.oldest_unread_ms]
        if self.round_at_ms is not None and now_ms - self.round_at_ms > STALLED_MS:
            since.append(self.round_at_ms)
        return max(0, now_ms - min(since)) / 1000

    def note(self) -> str:
        """One line for people."""
        parts = [f"{self.rows} rows, {self.shapes} shapes written"]
        if self.parked:
            parts.append(f"{self.parked} damaged entries parked")
        if self.rebuilding:
            parts.append(f"rebuilding {self.rebuilding} buckets")
        if self.trouble:
            parts.append(self.trouble)
        return "; ".join(parts)


class Heartbeat:
    """Writes a `ProcessStatus` every second until stopped, then removes it."""

    def __init__(self, store_url: str, progress: Progress) -> None:
        self._url = store_url
        self._progress = progress
        self._field = f"{NAME}:{os.getpid()}"
        self._started_at_ms = _now_ms()
        self._stop = threading.Event()
        self._session: StoreSession | None = None
        self._thread = threading.Thread(target=self._loop, name="ledger-heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and remove the entry; a store that is away is no error."""
        self._stop.set()
        self._thread.join(timeout=10)
        try:
            self._open().call("HDEL", keys.PROCESSES, self._field)
        except StoreLost as error:
            logger.info("process entry not removed: %s", error)

    def _loop(self) -> None:
        while not self._stop.is_set():
            try:
                self._write()
            except StoreLost as error:
                self._session = None
                logger.debug("process status not written: %s", error)
            self._stop.wait(EVERY_S)

    def _open(self) -> StoreSession:
        if self._session is None:
            self._session = StoreSession.open(self._url)
            _forget_old(self._session)
        return self._session

    def _write(self) -> None:
        now_ms = _now_ms()
        status = ProcessStatus(
            name=NAME,
            pid=os.getpid(),
            started_at_ms=self._started_at_ms,
            at_ms=now_ms,
            lag_s=self._progress.lag_s(now_ms),
            note=self._progress.note(),
            trouble=self._progress.trouble,
            counts={"parked": self._progress.parked, "rebuilding": self._progress.rebuilding},
        )
        self._open().call("HSET", keys.PROCESSES, self._field, encode_status(status))


def _forget_old(session: StoreSession) -> None:
    flat = session.call("HGETALL", keys.PROCESSES)
    if not isinstance(flat, list):
        return
    for name, raw in zip(flat[::2], flat[1::2], strict=True):
        try:
            at_ms = decode_process_status(raw).at_ms
        except msgspec.MsgspecError:
            at_ms = 0
        if at_ms < _now_ms() - FORGET_AFTER_MS:
            session.call("HDEL", keys.PROCESSES, name)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

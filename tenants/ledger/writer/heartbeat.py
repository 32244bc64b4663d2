"""What the writer says of itself, from a thread of its own: a batch may take longer than a beat."""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import msgspec
from redis import Redis
from redis.exceptions import RedisError

from routing.contracts.process import ProcessStatus, decode_process_status, encode_status
from routing.store import keys
from routing.store.pooled import sync_client
from tenants.ledger.rules.gaps import GapSummary

logger = logging.getLogger(__name__)

NAME = "ledger"
EVERY_S = 1.0
ANSWER_TIMEOUT_S = 5.0
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
    gaps: GapSummary = field(default_factory=GapSummary)

    def lag_s(self, now_ms: int) -> float:
        """Age of the oldest entry that is not in the ledger, or may not be."""
        since = [now_ms] if self.oldest_unread_ms is None else [self.oldest_unread_ms]
        if self.round_at_ms is not None and now_ms - self.round_at_ms > STALLED_MS:
            since.append(self.round_at_ms)
        return max(0, now_ms - min(since)) / 1000

    def counts(self) -> dict[str, int]:
        """What conditions are judged by."""
        gaps = self.gaps
        found = {"parked": self.parked, "rebuilding": self.rebuilding, "gaps": gaps.buckets}
        if gaps.buckets:
            found |= {"gap_since_s": gaps.since_s, "gap_until_s": gaps.until_s}
        return found

    def note(self) -> str:
        """One line for people."""
        parts = [f"{self.rows} rows, {self.shapes} shapes written"]
        if self.parked:
            parts.append(f"{self.parked} damaged entries parked")
        if self.gaps.buckets:
            parts.append(f"the database went back in {self.gaps.buckets} buckets")
        if self.rebuilding:
            parts.append(f"rebuilding {self.rebuilding} buckets")
        if self.trouble:
            parts.append(self.trouble)
        return "; ".join(parts)


def together(parts: Sequence[Progress]) -> Progress:
    """What several writers of one process have done: counts added, the slowest one's times."""
    unread = [part.oldest_unread_ms for part in parts if part.oldest_unread_ms is not None]
    rounds = [part.round_at_ms for part in parts if part.round_at_ms is not None]
    return Progress(
        rows=sum(part.rows for part in parts),
        shapes=sum(part.shapes for part in parts),
        parked=sum(part.parked for part in parts),
        rebuilding=sum(part.rebuilding for part in parts),
        trouble="; ".join(sorted({part.trouble for part in parts if part.trouble})),
        oldest_unread_ms=min(unread, default=None),
        round_at_ms=min(rounds, default=None),
        gaps=max((part.gaps for part in parts), key=lambda gaps: gaps.buckets),
    )


class Heartbeat:
    """Writes a `ProcessStatus` every second until stopped, then removes it."""

    def __init__(self, store_url: str, progress: Callable[[], Progress]) -> None:
        self._store = sync_client(store_url, timeout_s=ANSWER_TIMEOUT_S)
        self._progress = progress
        self._field = f"{NAME}:{os.getpid()}"
        self._started_at_ms = _now_ms()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="ledger-heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and remove the entry; a store that is away is no error."""
        self._stop.set()
        self._thread.join(timeout=10)
        try:
            self._store.hdel(keys.PROCESSES, self._field)
        except RedisError as error:
            logger.info("process entry not removed: %s", error)

    def _loop(self) -> None:
        is_swept = False
        while not self._stop.is_set():
            try:
                self._write()
                if not is_swept:
                    _forget_old(self._store)
                    is_swept = True
            except RedisError as error:
                logger.debug("process status not written: %s", error)
            self._stop.wait(EVERY_S)

    def _write(self) -> None:
        now_ms, progress = _now_ms(), self._progress()
        status = ProcessStatus(
            name=NAME,
            pid=os.getpid(),
            started_at_ms=self._started_at_ms,
            at_ms=now_ms,
            lag_s=progress.lag_s(now_ms),
            note=progress.note(),
            trouble=progress.trouble,
            counts=progress.counts(),
        )
        self._store.hset(keys.PROCESSES, self._field, encode_status(status))


def _forget_old(store: Redis) -> None:
    known = cast("dict[bytes, bytes]", store.hgetall(keys.PROCESSES))
    for name, raw in known.items():
        try:
            at_ms = decode_process_status(raw).at_ms
        except msgspec.MsgspecError:
            at_ms = 0
        if at_ms < _now_ms() - FORGET_AFTER_MS:
            store.hdel(keys.PROCESSES, name)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

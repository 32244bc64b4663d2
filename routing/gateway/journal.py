"""The gateway's second memory: an append-only usage journal on its own disk.

The records of one turn of the event loop are written together at its end: a `write()` into the page
cache takes microseconds, far less than waking a thread and being woken by it. A disk that was slow
or full loses that trust for a while; meanwhile a thread writes and the loop never waits. While the
thread is busy, records gather into its next batch: it is woken once a write, not once a turn.
Another thread runs `fdatasync`. `append` never raises for a bad disk: it gives a sequence number,
`written` tells how far `write()` has returned. A full or hung disk shows as `is_behind`. A file is
removed, oldest first, when every id in it is acknowledged.
"""

import asyncio
import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from routing.gateway.journal_file import Unfinished, file_head, frame
from routing.gateway.journal_start import (
    LOCK_WAIT_S,
    Progress,
    adopt_siblings,
    own,
    path_of,
    read_own,
)

log = logging.getLogger(__name__)

FILE_MAX_BYTES: Final = 16 * 1024 * 1024
FILE_MAX_S: Final = 60.0
SYNC_EVERY_S: Final = 0.2  # what a power loss may take
SYNC_EVERY_BYTES: Final = 256 * 1024
BEHIND_AFTER_S: Final = 0.05  # an open record may delay its request by this, not longer
STUCK_AFTER_S: Final = 1.0  # then nobody is admitted whose only memory it would be
SLOW_WRITE_S: Final = 0.01  # a write in the loop that took this long was the last for a while
DISTRUST_FIRST_S: Final = 0.5  # one slow write may have been a preempted process
DISTRUST_MAX_S: Final = 10.0  # doubled up to here while the first write after it is slow again
TRUST_EARNED_S: Final = 1.0  # without a slow write for so long, the doubling starts over
MAX_UNWRITTEN_BYTES: Final = 8 * 1024 * 1024  # queue for a hung disk: about 10,000 requests
RETRY_S: Final = 0.2  # between tries on a full disk
JOIN_S: Final = 2.0  # a hung disk must not keep the process from ending


class Journal:
    """One gateway's journal.

    `directory` is owned through `flock` on it until `close`. Sequence: construct inside the loop,
    `open()` (blocking; returns what earlier runs left), then `append`. `on_written` runs in the
    loop after each batch.
    """

    def __init__(
        self,
        directory: Path,
        *,
        gateway_id: str,
        incarnation: str,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Touch nothing yet; see `open`."""
        self._directory = directory
        self._gateway_id = gateway_id
        self._incarnation = incarnation
        self._monotonic_s = monotonic_s
        self._loop = asyncio.get_running_loop()
        self._batch: list[bytes] = []
        self._batch_since_s = 0.0
        self._is_handed = False  # a batch is on its way to the file
        self._handed_bytes = 0
        self._handed_since_s = 0.0
        self._queue: SimpleQueue[tuple[int, int, bytes] | None] = SimpleQueue()
        self._stop = threading.Event()
        self._dirty = threading.Event()
        self._fd_lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._unsynced_bytes = 0
        self._lock_fd = -1
        self._fd = -1
        self._fd_number = 0
        self._number = 0
        self._file_bytes = 0
        self._file_since_s = 0.0
        self._files: deque[int] = deque()
        self._unacked: Counter[int] = Counter()
        self._unwritten_bytes = 0
        self._trusted_from_s = 0.0
        self._distrust_s = DISTRUST_FIRST_S
        self._appended = 0
        self.written = 0
        self.dropped = 0
        self._error = ""
        self.is_damaged = False
        self.on_written: Callable[[], None] | None = None

    @property
    def is_behind(self) -> bool:
        """True while a record has waited longer than a request may wait for it."""
        return self._waits_s() > BEHIND_AFTER_S

    @property
    def is_stuck(self) -> bool:
        """True once a record has waited for `STUCK_AFTER_S`: a full, hung or read-only disk."""
        return self._waits_s() > STUCK_AFTER_S

    @property
    def trouble(self) -> str:
        """Why records wait, in a few words; empty when none does."""
        if not self.is_behind:
            return ""
        return f"the usage journal cannot be written: {self._error or 'its disk does not answer'}"

    def _waits_s(self) -> float:
        return self._monotonic_s() - self._handed_since_s if self._is_handed else 0.0

    # -- start

    def open(self, *, lock_wait_s: float = LOCK_WAIT_S) -> list[Unfinished]:
        """Lock, read what earlier runs left here or in unowned siblings, start writing.

        Blocks for file reads. Raises `JournalLockedError` when the directory stays owned, `OSError`
        when it cannot be made or written.
        """
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock_fd = own(self._directory, lock_wait_s)
        numbers, found, is_damaged = read_own(self._directory)
        self._files.extend(numbers)
        self._number = (numbers[-1] if numbers else 0) + 1
        self._fd = self._create(self._number)
        self._fd_number = self._number
        self._files.append(self._number)
        self._file_since_s = self._monotonic_s()
        self.is_damaged = adopt_siblings(self._directory, self._fd, self._number, found)
        self.is_damaged = self.is_damaged or is_damaged
        for item in found.values():
            self._unacked[item.file_number] += 1
        self._remove_acked()
        for target in (self._write_loop, self._sync_loop):
            thread = threading.Thread(target=target, name=f"journal-{target.__name__}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return list(found.values())

    # -- appending (event loop)

    def append(self, kind: int, body: tuple[object, ...]) -> int | None:
        """Queue one record; its sequence number, or None when the queue for a bad disk is full."""
        raw = frame(kind, body)
        if self._unwritten_bytes + len(raw) > MAX_UNWRITTEN_BYTES:
            self.dropped += 1
            return None
        if not self._batch:
            self._batch_since_s = self._monotonic_s()
            self._loop.call_soon(self._hand_over)
        self._batch.append(raw)
        self._unwritten_bytes += len(raw)
        self._appended += 1
        return self._appended

    def claim(self) -> int:
        """The file of the record just appended will be kept until it is released."""
        self._unacked[self._number] += 1
        return self._number

    def is_old(self, number: int) -> bool:
        """Whether a claim on file `number` keeps a whole later file besides the present one."""
        return number < self._number - 1

    def release(self, number: int) -> None:
        """One id that claimed file `number` is acknowledged."""
        self._unacked[number] -= 1
        if self._unacked[number] <= 0 and number == self._files[0]:
            self._remove_acked()

    def _hand_over(self) -> None:
        """Write the turn's records or give them to the writer; while it is busy they gather."""
        if self._is_handed or not self._batch:
            return
        raw, sequence, number = self._take_batch()
        is_trusted = self._fd_number == number and self._monotonic_s() >= self._trusted_from_s
        rest = self._write_now(raw) if is_trusted else raw
        self._turn_file()
        if rest:
            self._queue.put((sequence, number, rest))
        else:
            self._wrote(sequence)

    def _take_batch(self) -> tuple[bytes, int, int]:
        """The records that wait, their last sequence number and their file."""
        raw = self._batch[0] if len(self._batch) == 1 else b"".join(self._batch)
        self._batch = []
        self._is_handed = True
        self._handed_bytes += len(raw)
        self._handed_since_s = self._batch_since_s
        self._file_bytes += len(raw)
        return raw, self._appended, self._number

    def _turn_file(self) -> None:
        """The next record may go to a new file; before anyone can claim it for the old one."""
        now_s = self._handed_since_s
        if self._file_bytes >= FILE_MAX_BYTES or now_s - self._file_since_s >= FILE_MAX_S:
            self._number += 1
            self._files.append(self._number)
            self._file_bytes = 0
            self._file_since_s = now_s

    def _write_now(self, raw: bytes) -> bytes:
        """Write in the loop, trusting the disk; what the writer has to do instead.

        Only called while the writer has nothing to do, so the descriptor is ours for the moment.
        """
        began_s = self._monotonic_s()
        try:
            done = os.write(self._fd, raw)
        except OSError:
            done = 0  # the writer tries again, patiently, and says what is wrong
        if done < len(raw) or self._monotonic_s() - began_s > SLOW_WRITE_S:
            self._distrust(began_s)
        self._note_unsynced(done)
        return raw[done:]

    def _distrust(self, now_s: float) -> None:
        if now_s - self._trusted_from_s > TRUST_EARNED_S:
            self._distrust_s = DISTRUST_FIRST_S
        self._trusted_from_s = now_s + self._distrust_s
        self._distrust_s = min(2 * self._distrust_s, DISTRUST_MAX_S)

    def _note_unsynced(self, size: int) -> None:
        self._unsynced_bytes += size
        if self._unsynced_bytes >= SYNC_EVERY_BYTES:
            self._dirty.set()

    def _wrote(self, sequence: int) -> None:
        self.written = sequence
        self._unwritten_bytes -= self._handed_bytes
        self._handed_bytes = 0
        self._is_handed = False
        if self.on_written is not None:
            self.on_written()

    def _writer_wrote(self, sequence: int) -> None:
        self._wrote(sequence)
        self._hand_over()  # what gathered meanwhile

    def _remove_acked(self) -> None:
        while self._files[0] != self._number and self._unacked[self._files[0]] <= 0:
            number = self._files.popleft()
            del self._unacked[number]
            try:
                path_of(self._directory, number).unlink(missing_ok=True)
            except OSError as error:
                log.warning("cannot remove journal file %d: %s", number, error)

    # -- writing, in threads of its own

    def _write_loop(self) -> None:
        while (batch := self._queue.get()) is not None:
            sequence, number, raw = batch
            if number != self._fd_number and not self._patiently(partial(self._turn_to, number)):
                return
            if not self._patiently(partial(Progress(raw).write, self._fd)):
                return
            self._note_unsynced(len(raw))
            try:
                self._loop.call_soon_threadsafe(self._writer_wrote, sequence)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more

    def _patiently(self, attempt: Callable[[], None]) -> bool:
        """Try until the disk takes it; False when the journal closes first."""
        is_told = False
        while True:
            try:
                attempt()
            except OSError as error:
                self._error = error.strerror or str(error)
                if not is_told:
                    log.warning("journal cannot be written: %s", error)
                    is_told = True
                if self._stop.wait(RETRY_S):
                    return False
            else:
                self._error = ""
                return True

    def _turn_to(self, number: int) -> None:
        fresh = self._create(number)
        os.fdatasync(self._fd)
        with self._fd_lock:
            old, self._fd, self._fd_number = self._fd, fresh, number
            os.close(old)

    def _sync_loop(self) -> None:
        while not self._stop.is_set():
            if self._dirty.wait(SYNC_EVERY_S):
                self._dirty.clear()
            if self._unsynced_bytes == 0:
                continue
            self._unsynced_bytes = 0
            with self._fd_lock:  # the writer may be turning to a new file
                fd = os.dup(self._fd)
            try:
                os.fdatasync(fd)
            except OSError as error:
                log.warning("journal cannot be synced: %s", error)
            finally:
                os.close(fd)

    def close(self) -> None:
        """Write what is queued, sync, give the directory up; a hung disk delays it by `JOIN_S`."""
        if self._batch:
            raw, sequence, number = self._take_batch()
            self._queue.put((sequence, number, raw))
        self._queue.put(None)
        if self._threads:
            self._threads[0].join(JOIN_S)
        self._stop.set()
        self._dirty.set()
        for thread in self._threads:
            thread.join(JOIN_S)
        if any(thread.is_alive() for thread in self._threads):
            log.error("journal closed with a hung disk")
            return  # its descriptors stay with the threads that still use them
        if self._fd >= 0:
            os.fdatasync(self._fd)
            os.close(self._fd)
            self._fd = -1
        if sum(self._unacked.values()) == 0:
            for number in self._files:
                path_of(self._directory, number).unlink(missing_ok=True)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def _create(self, number: int) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        fd = os.open(path_of(self._directory, number), flags, 0o600)
        try:
            Progress(file_head(self._gateway_id, self._incarnation, number)).write(fd)
        except OSError:
            os.close(fd)
            raise
        return fd

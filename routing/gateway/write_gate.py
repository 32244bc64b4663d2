"""Lets a request go on when its journal record is written, or when it has waited long enough."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from routing.gateway.journal import BEHIND_AFTER_S, Journal

Passed = Callable[[bool], None]
MAX_WAIT_S: Final = BEHIND_AFTER_S


class WriteGate:
    """Waits for sequence numbers of one journal, in order; one timer for all who wait."""

    def __init__(self, journal: Journal) -> None:
        """Take over the journal's `on_written`."""
        self._journal = journal
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[int, float, Passed]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        journal.on_written = self._written

    @property
    def is_stuck(self) -> bool:
        """The journal has taken nothing for so long that nobody should wait for it."""
        return self._journal.is_stuck

    def wait(self, sequence: int | None, passed: Passed) -> None:
        """Call `passed(is_written)` in the loop: True once written, False after `MAX_WAIT_S`.

        `sequence` None (the journal took no record) passes at once with False.
        """
        if sequence is None:
            passed(False)
            return
        if sequence <= self._journal.written:
            passed(True)
            return
        self._waiting.append((sequence, self._loop.time() + MAX_WAIT_S, passed))
        if self._timer is None:
            self._timer = self._loop.call_later(MAX_WAIT_S, self._check)

    def _written(self) -> None:
        waiting, written = self._waiting, self._journal.written
        while waiting and waiting[0][0] <= written:
            waiting.popleft()[2](True)

    def _check(self) -> None:
        self._timer = None
        waiting, now_s = self._waiting, self._loop.time()
        while waiting and waiting[0][1] <= now_s:
            waiting.popleft()[2](False)
        if waiting and self._timer is None:
            self._timer = self._loop.call_later(waiting[0][1] - now_s, self._check)

"""Does the loop behind a heartbeat still turn? A thread that writes heartbeats outlives it.

A worker can lose its consumer after a broken connection and take no job any more, a beat can hang
in a call: both would look alive for ever. Whoever is stuck falls silent, so that the supervisor
starts it again.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

STUCK_AFTER_S = 60.0  # twice the worker's longest wait between two tries to reach its broker


@dataclass
class ConsumerWatch:
    """A worker with room that takes nothing, though messages wait, is stuck.

    `waiting` is the number of messages in the queue (None: cannot be told now), `has_room` whether
    a thread is free.
    """

    waiting: Callable[[], int | None]
    has_room: Callable[[], bool]
    stuck_after_s: float = STUCK_AFTER_S
    _taken: int = 0
    _seen: int = 0
    _since_s: float | None = None

    def took(self) -> None:
        """A message was received."""
        self._taken += 1

    def why_stuck(self) -> str:
        """One line, or "" while all is well. Asked every second or so."""
        waiting = self.waiting()
        if not waiting or self._taken != self._seen or not self.has_room():
            self._seen, self._since_s = self._taken, None
            return ""
        now_s = time.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s < self.stuck_after_s:
            return ""
        return f"took no job for {now_s - self._since_s:.0f} s while {waiting} wait"


@dataclass
class LoopWatch:
    """A loop that notes each turn and has not for long is stuck.

    Before its first turn it is starting, which has a limit of its own.
    """

    stuck_after_s: float = STUCK_AFTER_S
    _turned: threading.Event = field(default_factory=threading.Event)
    _since_s: float | None = None

    def turned(self) -> None:
        """One more turn."""
        self._turned.set()

    def why_stuck(self) -> str:
        """One line, or "" while all is well. Asked every second or so.

        Time runs only between two questions without a turn, so a process that was stopped as a
        whole and goes on is not blamed.
        """
        now_s = time.monotonic()
        if self._turned.is_set() or self._since_s is None:
            self._turned.clear()
            self._since_s = now_s
            return ""
        if now_s - self._since_s < self.stuck_after_s:
            return ""
        return f"its loop has not turned for {now_s - self._since_s:.0f} s"


beat_loop = LoopWatch()  # of this process's beat, if it is one

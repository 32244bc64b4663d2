"""How often one caller may ask something, held in this process's memory.

It guards this process and its database connections, so each console process counts for itself and
no server is asked. A caller who goes too fast is told when to try again.
"""

import threading

MAX_CALLERS = 10_000  # counted at a time; beyond that the oldest window is forgotten


class Pace:
    """At most `most` calls of one caller in each window of `window_s` seconds."""

    def __init__(self, *, most: int, window_s: float) -> None:
        self._most = most
        self._window_s = window_s
        self._lock = threading.Lock()
        self._counts: dict[int, tuple[int, float]] = {}  # caller -> (calls, end of its window)

    def wait_s(self, caller: int, now_s: float) -> float:
        """Count a call; 0 if it may go on, else the seconds until the caller's next window."""
        with self._lock:
            count, end_s = self._counts.get(caller, (0, 0.0))
            if end_s <= now_s:
                self._counts.pop(caller, None)  # so that the order is by end of window
                while len(self._counts) >= MAX_CALLERS:
                    self._counts.pop(next(iter(self._counts)))
                count, end_s = 0, now_s + self._window_s
            self._counts[caller] = (count + 1, end_s)
            return 0.0 if count < self._most else end_s - now_s

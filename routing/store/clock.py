"""The store's time as a gateway knows it: its own monotonic clock plus a learned offset.

Wall clocks of gateways are not trusted. Each script reply carries the store's time, read before the
reply was received, so `store_ms - local_ms` at receipt is a lower bound of the true offset; the
largest of the last two windows is the best estimate, late by at most the quickest round trip.
"""

from collections.abc import Callable
from typing import Final

WINDOW_MS: Final = 10_000  # a store whose clock steps back is followed within two windows


class StoreClock:
    """Milliseconds since the Unix epoch by the store's clock.

    `monotonic_s` is the local clock (seconds, never steps); `wall_ms` is used only until the first
    reply of a store has been seen.
    """

    __slots__ = ("_monotonic_s", "_offset_ms", "_previous_ms", "_window_end_ms", "_window_ms")

    def __init__(self, monotonic_s: Callable[[], float], wall_ms: int) -> None:
        """Start from the local wall clock."""
        self._monotonic_s = monotonic_s
        local_ms = int(monotonic_s() * 1000)
        self._offset_ms = wall_ms - local_ms
        self._window_ms: int | None = None
        self._previous_ms: int | None = None
        self._window_end_ms = 0

    def now_ms(self) -> int:
        """Estimated store time."""
        return int(self._monotonic_s() * 1000) + self._offset_ms

    def reset(self, store_ms: int) -> None:
        """Start over from this reading: another server, or the first one."""
        local_ms = int(self._monotonic_s() * 1000)
        self._offset_ms = store_ms - local_ms
        self._window_ms = self._offset_ms
        self._previous_ms = None
        self._window_end_ms = local_ms + WINDOW_MS

    def observe(self, store_ms: int) -> None:
        """Take the store's time from a reply received just now."""
        local_ms = int(self._monotonic_s() * 1000)
        offset_ms = store_ms - local_ms
        if local_ms >= self._window_end_ms:
            self._previous_ms, self._window_ms = self._window_ms, offset_ms
            self._window_end_ms = local_ms + WINDOW_MS
        elif self._window_ms is None or offset_ms > self._window_ms:
            self._window_ms = offset_ms
        else:
            return
        self._offset_ms = max(
            self._window_ms, self._window_ms if self._previous_ms is None else self._previous_ms
        )

"""Virtual time: a heap of events with a total order, and the clock that they move.

Events of one instant happen in the order in which they were planned, so a run depends on nothing
but its inputs. There is no cancelling: whoever may change its mind keeps a number and checks it.
"""

import heapq
from collections.abc import Callable
from typing import Any

# `Any` in the act's arguments: each act has its own, and nobody between them looks.
Act = Callable[..., None]


class Events:
    """What is going to happen. `now_s` starts at 0 and never goes back."""

    __slots__ = ("_heap", "_serial", "now_s", "total")

    def __init__(self) -> None:
        """Nothing is planned."""
        self.now_s = 0.0
        self.total = 0
        self._heap: list[tuple[float, int, Act, tuple[Any, ...]]] = []
        self._serial = 0

    def at(self, at_s: float, act: Act, *args: object) -> None:
        """Call `act(*args)` at an instant; one that has passed is now."""
        self._serial = serial = self._serial + 1
        now_s = self.now_s
        heapq.heappush(self._heap, (at_s if at_s > now_s else now_s, serial, act, args))

    def after(self, delay_s: float, act: Act, *args: object) -> None:
        """Call `act(*args)` after a delay."""
        self.at(self.now_s + delay_s, act, *args)

    def run(self, until_s: float, most: int) -> bool:
        """Up to `most` events, none after `until_s`; False when nothing is left before that."""
        heap = self._heap
        for _ in range(most):
            if not heap or heap[0][0] > until_s:
                self.now_s = max(self.now_s, until_s) if until_s < float("inf") else self.now_s
                return False
            self.now_s, _serial, act, args = heapq.heappop(heap)
            self.total += 1
            act(*args)
        return True

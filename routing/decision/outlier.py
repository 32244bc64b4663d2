"""A replica whose tokens come much slower than its pool's: first half the work, then none.

    slow: its median gap between tokens > 3 x the median of the other replicas' medians, over 60 s

Only gaps that the replica made count: a stream that its caller read too slowly is left out by who
feeds this. An ejected replica comes back with half its weight, and is measured anew.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from routing.decision.filters import Candidate

WINDOW_S: Final = 60.0
TIMES_SLOWER: Final = 3.0
MIN_STREAMS: Final = 5  # of a replica in the window, to be judged or compared with
MIN_PEERS: Final = 2  # measured replicas beside it: one peer cannot say which of the two is odd
MIN_TOKENS: Final = 8  # of a stream that says something about the pace
EJECT_S: Final = 60.0
HALF: Final = 0.5
_KEPT: Final = 64  # streams remembered


@dataclass(slots=True)
class Pace:
    """Mean gaps between tokens of a replica's last streams: (ended at, seconds a token)."""

    streams: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    slow_since_s: float | None = None
    ejected_until_s: float = 0.0

    def ended(self, tokens: int, lasted_s: float, now_s: float) -> None:
        """A stream of so many tokens ended, `lasted_s` after its first one."""
        if tokens >= MIN_TOKENS:
            self.streams.append((now_s, lasted_s / (tokens - 1)))

    def median_s(self, now_s: float) -> float | None:
        """Seconds a token over the window; None from too few streams."""
        recent = [gap_s for at_s, gap_s in self.streams if now_s - at_s <= WINDOW_S]
        return median(recent) if len(recent) >= MIN_STREAMS else None


def weigh_pool(members: Sequence[tuple[Candidate, Pace]], now_s: float, most_ejected: int) -> None:
    """Set `pace_ratio` of a pool's replicas: 1, a half while slow, 0 once slow for a window."""
    medians = {
        candidate.id: found
        for candidate, pace in members
        if (found := pace.median_s(now_s)) is not None
    }
    ejected = sum(pace.ejected_until_s > now_s for _, pace in members)
    for candidate, pace in members:
        if pace.ejected_until_s > now_s:
            continue
        if candidate.pace_ratio == 0:  # its time is over: half the work shows how it is now
            candidate.pace_ratio, pace.slow_since_s = HALF, now_s
            pace.streams.clear()
            continue
        own = medians.get(candidate.id)
        if own is None:
            if candidate.pace_ratio == 1:
                pace.slow_since_s = None
            continue
        others = [found for name, found in medians.items() if name != candidate.id]
        if len(others) < MIN_PEERS or own <= TIMES_SLOWER * median(others):
            candidate.pace_ratio, pace.slow_since_s = 1.0, None
            continue
        if pace.slow_since_s is None:
            pace.slow_since_s = now_s
        candidate.pace_ratio = HALF
        if now_s - pace.slow_since_s >= WINDOW_S and ejected < most_ejected:
            ejected += 1
            candidate.pace_ratio, pace.ejected_until_s = 0.0, now_s + EJECT_S

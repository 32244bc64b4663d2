"""A region that fails as a whole: its rest is used only when nothing else can serve.

A region has no breaker of its own to probe: it is open while at least half of its endpoints'
breakers are, two of them or more, and closes as their probes succeed.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Final

LEAST_OPEN: Final = 2
OPEN_RATIO: Final = 0.5


def failing_regions(endpoints: Iterable[tuple[str, bool]]) -> frozenset[str]:
    """Names of failing regions; `endpoints` are (region, whether its breaker is open)."""
    total: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    for region, is_open in endpoints:
        total[region] += 1
        broken[region] += is_open
    return frozenset(
        region
        for region, count in broken.items()
        if region and count >= LEAST_OPEN and count >= OPEN_RATIO * total[region]
    )

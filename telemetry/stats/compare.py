"""Is one group of requests worse than another over the same time? One-sided, with a margin.

`Z_99` is for one look: of a hundred comparisons of equals about one is called worse. `Z_999` is for
who looks again and again. Sources: Wilson (1927) for the bound on a share; Mann and Whitney (1947)
for ranks, with the correction for ties.
"""

import math
from collections.abc import Mapping
from typing import Final

from telemetry.stats.sketch import GAMMA, count_of

Z_99: Final = 2.326  # one-sided 99 %
Z_999: Final = 3.09  # one-sided 99.9 %


def least_share(hits: int, total: int, z: float) -> float:
    """Lower bound of the share behind `hits` of `total` (Wilson); 0 without any."""
    if total <= 0 or hits <= 0:
        return 0.0
    share, zz = hits / total, z * z
    middle = share + zz / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + zz / (4 * total * total))
    return max(0.0, (middle - spread) / (1 + zz / total))


def slower_z(new: Mapping[int, int], old: Mapping[int, int], ratio: float) -> float | None:
    """Standard score of `new` being more than `ratio` times as slow as `old` (sketch bins).

    Above `Z_99` it is. The old durations are stretched by `ratio` (bins are logarithmic, so that is
    a shift), then ranks are summed. None when one of the two is empty.
    """
    shift = round(math.log(ratio) / math.log(GAMMA))
    stretched = {index + shift: count for index, count in old.items()}
    n, m = count_of(new), count_of(old)
    if not n or not m:
        return None
    above = ties = 0.0
    below = 0
    for index in sorted({*new, *stretched}):
        a, b = new.get(index, 0), stretched.get(index, 0)
        above += a * (below + b / 2)
        below += b
        ties += (a + b) ** 3 - (a + b)
    total = n + m
    variance = n * m / 12 * (total + 1 - ties / (total * (total - 1)))
    return (above - n * m / 2) / math.sqrt(variance) if variance > 0 else 0.0

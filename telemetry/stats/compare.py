"""Is one group of requests worse than another over the same time? One-sided, with a margin.

`Z_99` is for one look: of a hundred comparisons of equals about one is called worse. `Z_999` is for
who looks again and again. Sources: Wilson (1927) for the bound on a share; Mann and Whitney (1947)
for ranks, with the correction for ties; van Elteren (1960) for ranks within strata.
"""

import math
from collections.abc import Mapping
from typing import Final

from telemetry.stats.sketch import GAMMA, count_of, quantile
from telemetry.stats.tries import Sizes

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


def slower_z(new: Sizes, old: Sizes, ratio: float) -> float | None:
    """Standard score of `new` being more than `ratio` times as slow as `old`.

    Above `Z_99` it is. Each side is sketch bins by stratum, and only like is compared with like:
    within each stratum the old durations are stretched by `ratio` (bins are logarithmic, so that is
    a shift) and ranks are summed; the sums are weighted by `1 / (n + m + 1)` (van Elteren). With
    one stratum this is the plain rank-sum test. None when no stratum has both sides.
    """
    shift = round(math.log(ratio) / math.log(GAMMA))
    above = variance = 0.0
    shared = [name for name in new if count_of(new[name]) and count_of(old.get(name, {}))]
    if not shared:
        return None
    for name in shared:
        stretched = {index + shift: count for index, count in old[name].items()}
        excess, spread = _ranked(new[name], stretched)
        weight = 1 / (count_of(new[name]) + count_of(stretched) + 1)
        above += weight * excess
        variance += weight * weight * spread
    return above / math.sqrt(variance) if variance > 0 else 0.0


def comparable(new: Sizes, old: Sizes) -> tuple[int, int]:
    """How many samples of each side lie in strata that both sides have."""
    shared = [name for name in new if count_of(new[name]) and count_of(old.get(name, {}))]
    return sum(count_of(new[name]) for name in shared), sum(count_of(old[name]) for name in shared)


def like_ratio(new: Sizes, old: Sizes) -> float | None:
    """How many times as slow `new` is within like strata.

    The geometric mean of the ratios of medians, weighted by `n m / (n + m)`. None when no stratum
    has both sides.
    """
    logs = weights = 0.0
    for name, bins in new.items():
        ours, theirs = quantile(bins, 0.5), quantile(old.get(name, {}), 0.5)
        if ours is None or theirs is None:
            continue
        n, m = count_of(bins), count_of(old[name])
        logs += n * m / (n + m) * math.log(ours / theirs)
        weights += n * m / (n + m)
    return math.exp(logs / weights) if weights else None


def _ranked(new: Mapping[int, int], old: Mapping[int, int]) -> tuple[float, float]:
    """Mann and Whitney's U of `new` above what chance gives, and its variance with ties."""
    n, m = count_of(new), count_of(old)
    above = ties = 0.0
    below = 0
    for index in sorted({*new, *old}):
        a, b = new.get(index, 0), old.get(index, 0)
        above += a * (below + b / 2)
        below += b
        ties += (a + b) ** 3 - (a + b)
    total = n + m
    return above - n * m / 2, n * m / 12 * (total + 1 - ties / (total * (total - 1)))

"""Demand bands, and the two floors that every model has to beat.

A band says for each coming hour what is exceeded 19 times in 20 (p5), every second time (p50) and
once in 20 (p95). The floors need nothing but the series: *flat* says that the next hours are as the
last one, *seasonal* that they are as the same hour of the day before. Their width is what that rule
has been wrong by so far: quantiles of its own past errors at the same distance.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor, isfinite

DAY_H = 24
LOW, HIGH = 0.05, 0.95
FLAT, SEASONAL = "flat", "seasonal"


@dataclass(frozen=True, slots=True)
class Band:
    """One hour: sums that it is expected to lie below 1 time in 20, 10, and 19 in 20."""

    p5: float
    p50: float
    p95: float

    def holds(self, value: float) -> bool:
        """Whether a value lies inside."""
        return self.p5 <= value <= self.p95


# Bands for the next `horizon` hours of a series (oldest first), or None where the method has none.
Method = Callable[[Sequence[float], int], "list[Band] | None"]


def quantile(values: Sequence[float], share: float) -> float:
    """Linear between the two values next to it. `values` are sorted and not empty."""
    at = share * (len(values) - 1)
    low = floor(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def flat(values: Sequence[float], horizon: int) -> list[Band] | None:
    """As the last hour; None below two hours more than the horizon."""
    if len(values) < horizon + 2:
        return None
    bands = []
    for ahead in range(1, horizon + 1):
        errors = sorted(values[at] - values[at - ahead] for at in range(ahead, len(values)))
        bands.append(_around(values[-1], errors))
    return bands


def seasonal(values: Sequence[float], horizon: int) -> list[Band] | None:
    """As the same hour of the last whole day that is known; None below two days."""
    if len(values) < 2 * DAY_H:
        return None
    bands = []
    for ahead in range(1, horizon + 1):
        back = DAY_H * (1 + (ahead - 1) // DAY_H)
        errors = sorted(values[at] - values[at - back] for at in range(back, len(values)))
        bands.append(_around(values[len(values) - back + ahead - 1], errors))
    return bands


FLOORS: dict[str, Method] = {FLAT: flat, SEASONAL: seasonal}


def sane(bands: Sequence[Band]) -> list[Band] | None:
    """Bands that are numbers, in order and not negative; None when one is not a number.

    Demand is never below zero, whatever a model says.
    """
    found = []
    for band in bands:
        if not all(isfinite(value) for value in (band.p5, band.p50, band.p95)):
            return None
        p50 = max(0.0, band.p50)
        found.append(Band(min(max(0.0, band.p5), p50), p50, max(band.p95, p50)))
    return found


def _around(value: float, errors: Sequence[float]) -> Band:
    """A value with the quantiles of past errors around it; its middle stays the rule's own word."""
    low, high = min(0.0, quantile(errors, LOW)), max(0.0, quantile(errors, HIGH))
    return Band(max(0.0, value + low), value, value + high)

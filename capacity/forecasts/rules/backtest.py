"""Which method is believed: the one that would have been least wrong so far.

Every method forecasts from the same moments of the past with what was known then, and what came is
compared with it. The loss is the pinball loss of the three quantiles over the mean of what came: a
band that is too wide loses as well as one that misses. Ties go to the simpler method.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from capacity.forecasts.rules.bands import HIGH, LOW, Band, Method

HOUR_AHEAD, DAY_AHEAD = 1, 24


@dataclass(frozen=True, slots=True)
class Horizon:
    """How far ahead, from how many past moments it is tried, `step_h` apart, and the least history.

    `train_h` is what the first of those moments has behind it.
    """

    hours: int
    windows: int
    step_h: int
    train_h: int

    @property
    def needs_h(self) -> int:
        """Hours of history without which nothing is said."""
        return self.train_h + (self.windows - 1) * self.step_h + self.hours


# One hour ahead: tried at each hour of the last half day, a day at most.
# A day ahead: tried twice a day, at least three times, six at most; behind the first lie two days.
HORIZONS = {
    HOUR_AHEAD: Horizon(HOUR_AHEAD, windows=12, step_h=1, train_h=12),
    DAY_AHEAD: Horizon(DAY_AHEAD, windows=3, step_h=12, train_h=48),
}
WINDOWS_MAX = {HOUR_AHEAD: 24, DAY_AHEAD: 6}


@dataclass(frozen=True, slots=True)
class Score:
    """How a method did. `error_ratio` and `loss_ratio` are None where nothing came at all."""

    method: str
    windows: int
    loss_ratio: float | None
    error_ratio: float | None
    coverage_ratio: float


@dataclass(frozen=True, slots=True)
class Chosen:
    """The best method's band from the end of the series, with every method's score, best first."""

    method: str
    bands: list[Band]
    scores: tuple[Score, ...]

    @property
    def score(self) -> Score:
        """Of the chosen method."""
        return self.scores[0]


def short_by_h(history_h: int, horizon_h: int) -> int:
    """Hours of history that are missing; 0 when there are enough."""
    return max(0, HORIZONS[horizon_h].needs_h - history_h)


def origins(history_h: int, horizon_h: int) -> list[int]:
    """Past moments to forecast from, as numbers of known hours, newest last; [] when too short."""
    horizon = HORIZONS[horizon_h]
    room = history_h - horizon.hours - horizon.train_h
    if room < (horizon.windows - 1) * horizon.step_h:
        return []
    count = min(WINDOWS_MAX[horizon_h], 1 + room // horizon.step_h)
    newest = history_h - horizon.hours
    return [newest - horizon.step_h * back for back in reversed(range(count))]


def choose(
    values: Sequence[float],
    horizon_h: int,
    methods: Mapping[str, Method],
    go_on: Callable[[], bool] = lambda: True,
) -> Chosen | None:
    """The method with the least loss and its band; None when the series is too short.

    `methods` come simplest first. One that has no answer at some moment is left out. Once `go_on`
    is false no further method is begun; the first is always tried.
    """
    starts = origins(len(values), horizon_h)
    if not starts:
        return None
    tried: list[tuple[Score, list[Band]]] = []
    for name, method in methods.items():
        if tried and not go_on():
            break
        score = _score(name, method, values, horizon_h, starts)
        ahead = method(values, horizon_h) if score else None
        if score and ahead:
            tried.append((score, ahead))
    if not tried:
        return None
    # sorted() keeps the order of equals: the simpler one first
    ranked = sorted(tried, key=lambda pair: pair[0].loss_ratio or 0.0)
    return Chosen(ranked[0][0].method, ranked[0][1], tuple(score for score, _ in ranked))


def _score(
    name: str, method: Method, values: Sequence[float], horizon_h: int, starts: Sequence[int]
) -> Score | None:
    pairs: list[tuple[Band, float]] = []
    for start in starts:
        bands = method(values[:start], horizon_h)
        if bands is None:
            return None
        pairs += zip(bands, values[start : start + horizon_h], strict=True)
    return scored(name, len(starts), pairs)


def scored(name: str, windows: int, pairs: Sequence[tuple[Band, float]]) -> Score:
    """Error, coverage and loss of bands against what came. `pairs` are not empty."""
    came = sum(value for _, value in pairs)
    missed = sum(abs(band.p50 - value) for band, value in pairs)
    lost = sum(
        _pinball(band.p5, value, LOW)
        + _pinball(band.p50, value, 0.5)
        + _pinball(band.p95, value, HIGH)
        for band, value in pairs
    )
    return Score(
        method=name,
        windows=windows,
        loss_ratio=lost / came if came else None,
        error_ratio=missed / came if came else None,
        coverage_ratio=sum(band.holds(value) for band, value in pairs) / len(pairs),
    )


def _pinball(said: float, came: float, share: float) -> float:
    return share * (came - said) if came >= said else (1 - share) * (said - came)

"""Least squares with no negative coefficient, for a handful of columns: how step times are fitted.

Written out because a handful is all there is: every set of columns that may be zero is small enough
to be walked by the active set method on normal equations, without a numeric library.
"""

from collections.abc import Sequence
from typing import Final

PIVOT_LEAST: Final = 1e-12  # of normal equations scaled to ones: below it a column says nothing new
ROUNDS: Final = 8  # of reweighting; the fit moves by less than 0.1 % after five
RESIDUAL_LEAST: Final = 0.01  # a row nearer than 1 % weighs no more than one at 1 %

Row = Sequence[float]


def relative_fit(
    rows: Sequence[Row],
    seconds: Sequence[float],
    *,
    prior: Sequence[float] = (),
    prior_rows: float = 0.0,
    is_robust: bool = False,
) -> list[float]:
    """Coefficients at least 0 that bring `rows @ x` near `seconds`, by relative error.

    `prior` draws each coefficient to a known one with the weight of `prior_rows` rows in which it
    alone makes up its mean share. `is_robust` minimises mean absolute instead of mean square error.
    """
    scaled = [[cell / y for cell in row] for row, y in zip(rows, seconds, strict=True)]
    width = len(scaled[0])
    scales = [sum(row[at] for row in scaled) / len(scaled) or 1.0 for at in range(width)]
    scaled = [[cell / scale for cell, scale in zip(row, scales, strict=True)] for row in scaled]
    targets = [1.0] * len(scaled)
    pulls = [one * scale for one, scale in zip(prior, scales, strict=True)] if prior else []
    weights = [1.0] * len(scaled)
    found: list[float] = []
    for _ in range(ROUNDS if is_robust else 1):
        gram, moment = _normal(scaled, targets, weights)
        for at, pull in enumerate(pulls):
            gram[at][at] += prior_rows
            moment[at] += prior_rows * pull
        found = _nonnegative(gram, moment)
        weights = [1 / max(RESIDUAL_LEAST, abs(_dot(row, found) - 1.0)) for row in scaled]
    return [one / scale for one, scale in zip(found, scales, strict=True)]


def relative_errors(
    rows: Sequence[Row], seconds: Sequence[float], found: Sequence[float]
) -> list[float]:
    """`prediction / measured - 1` of each row."""
    return [_dot(row, found) / y - 1 for row, y in zip(rows, seconds, strict=True)]


def _dot(left: Row, right: Row) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _normal(
    rows: Sequence[Row], targets: Sequence[float], weights: Sequence[float]
) -> tuple[list[list[float]], list[float]]:
    width = len(rows[0])
    gram = [[0.0] * width for _ in range(width)]
    moment = [0.0] * width
    for row, target, weight in zip(rows, targets, weights, strict=True):
        for at in range(width):
            part = weight * row[at]
            moment[at] += part * target
            line = gram[at]
            for other in range(at, width):
                line[other] += part * row[other]
    for at in range(width):
        for other in range(at):
            gram[at][other] = gram[other][at]
    return gram, moment


def _nonnegative(gram: list[list[float]], moment: list[float]) -> list[float]:
    """Lawson and Hanson's active set method on normal equations."""
    width = len(moment)
    found = [0.0] * width
    free: list[int] = []
    for _ in range(3 * width + 1):
        slopes = [moment[at] - _dot(gram[at], found) for at in range(width)]
        best = max((at for at in range(width) if at not in free), key=slopes.__getitem__, default=0)
        if best in free or slopes[best] <= PIVOT_LEAST * max(1.0, abs(moment[best])):
            break
        free.append(best)
        while free:
            trial = _solved(gram, moment, free)
            if min(trial) > 0:
                found = [0.0] * width
                for at, value in zip(free, trial, strict=True):
                    found[at] = value
                break
            step = min(
                found[at] / max(found[at] - value, PIVOT_LEAST)
                for at, value in zip(free, trial, strict=True)
                if value <= 0
            )
            for at, value in zip(free, trial, strict=True):
                found[at] += step * (value - found[at])
            free = [at for at in free if found[at] > PIVOT_LEAST]
            found = [value if at in free else 0.0 for at, value in enumerate(found)]
    return found


def _solved(gram: list[list[float]], moment: list[float], free: list[int]) -> list[float]:
    """The free coefficients alone; one whose column says nothing new is 0."""
    table = [[gram[at][other] for other in free] + [moment[at]] for at in free]
    size = len(free)
    for at in range(size):
        pivot = table[at][at]
        if pivot <= PIVOT_LEAST * gram[free[at]][free[at]]:
            table[at] = [0.0] * (size + 1)
            table[at][at] = 1.0
            continue
        for below in range(at + 1, size):
            factor = table[below][at] / pivot
            if factor:
                table[below] = [
                    a - factor * b for a, b in zip(table[below], table[at], strict=True)
                ]
    found = [0.0] * size
    for at in reversed(range(size)):
        rest = sum(table[at][other] * found[other] for other in range(at + 1, size))
        found[at] = (table[at][size] - rest) / table[at][at]
    return found

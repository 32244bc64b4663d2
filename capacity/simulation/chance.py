"""Chance that a seed fixes: the same on every machine and in every version of Python.

SplitMix64: the state is a counter, so `fork` gives each purpose a stream of its own, and one more
draw for one purpose changes none of the others.
"""

import zlib
from math import cos, exp, log, pi, sqrt

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_UNIT = 1.0 / (1 << 53)


class Chance:
    """A stream of draws. Not for secrets."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        """Any integer."""
        self._state = seed & _MASK

    def fork(self, name: str) -> "Chance":
        """A stream of its own for one purpose; does not move this one."""
        return Chance(self._state ^ (zlib.crc32(name.encode()) * _GOLDEN))

    def bits(self) -> int:
        """64 random bits."""
        self._state = state = (self._state + _GOLDEN) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        return state ^ (state >> 31)

    def unit(self) -> float:
        """Uniform in (0, 1]: its logarithm exists."""
        return ((self.bits() >> 11) + 1) * _UNIT

    def below(self, count: int) -> int:
        """Uniform in 0..count-1."""
        return self.bits() % count

    def exponential(self, mean: float) -> float:
        """Exponential of a mean."""
        return -mean * log(self.unit())

    def normal(self) -> float:
        """Standard normal (Box-Muller, one of the two)."""
        return sqrt(-2 * log(self.unit())) * cos(2 * pi * self.unit())

    def lognormal(self, mean: float, cv: float) -> float:
        """Lognormal of a mean and a coefficient of variation."""
        variance = log(1 + cv * cv)
        return mean * exp(sqrt(variance) * self.normal() - variance / 2)

    def gamma(self, shape: float) -> float:
        """Gamma of a shape and scale 1 (Marsaglia and Tsang 2000)."""
        if shape < 1:
            return float(self.gamma(shape + 1) * self.unit() ** (1 / shape))
        d = shape - 1 / 3
        c = 1 / sqrt(9 * d)
        while True:
            x = self.normal()
            v = (1 + c * x) ** 3
            if v > 0 and log(self.unit()) < 0.5 * x * x + d - d * v + d * log(v):
                return d * v

    def weibull(self, shape: float, scale: float) -> float:
        """Weibull of a shape and a scale."""
        return float(scale * (-log(self.unit())) ** (1 / shape))

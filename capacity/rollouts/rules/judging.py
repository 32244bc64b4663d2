"""Does a new replica do worse than the old ones of its pool did over the same time?

Errors are judged over the whole time since it takes work, and all the time: a replica that fails is
taken back at once. Times to first output are judged once, at the end, over the second half of its
slow start: its first requests find empty caches. They are compared within octaves of prompt size,
so that a replica that happened to get long prompts is not blamed for them. Both tests leave a
margin and want confidence, 99.9 % of the many looks at errors and 99 % of the one at times
(`telemetry.stats.compare`), so that chance turns hardly any rollout back.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from telemetry.stats.compare import (
    Z_99,
    Z_999,
    comparable,
    least_share,
    like_ratio,
    slower_z,
)
from telemetry.stats.sketch import count_of, quantile
from telemetry.stats.tries import Tries

DEFAULT_REQUESTS: Final = 50
DEFAULT_LIMIT_S: Final = 60
DEFAULT_TTFT_RATIO: Final = 1.25
DEFAULT_ERROR_EXCESS_RATIO: Final = 0.02
MOST_REQUESTS: Final = 10_000
MOST_TTFT_RATIO: Final = 10.0
LEAST_LIKE_RATIO: Final = 0.5  # of the needed first outputs, those whose prompts both sides had
LEAST_FAILED: Final = 5  # fewer failures say nothing yet, whatever their share


class Finding(StrEnum):
    """What a comparison came to."""

    FIT = "fit"
    FAILING = "failing"
    SLOWER = "slower"
    TOO_FEW = "too_few"


@dataclass(frozen=True, slots=True)
class Bar:
    """What a new replica is judged by. `requests` 0: not at all.

    `requests` are needed of the new one and of the old ones together, and as many first outputs
    where calls are streamed. `limit_s` is how long after
    the slow start they are waited for; then `holds_on_too_few` says whether a person decides.
    `ttft_ratio`: its times to first output are at most so many times those of the old ones.
    `error_excess_ratio`: its error share is at most so much above theirs.
    """

    requests: int = DEFAULT_REQUESTS
    limit_s: float = DEFAULT_LIMIT_S
    holds_on_too_few: bool = False
    ttft_ratio: float = DEFAULT_TTFT_RATIO
    error_excess_ratio: float = DEFAULT_ERROR_EXCESS_RATIO


@dataclass(frozen=True, slots=True)
class Side:
    """One side's figures. `ttft_*` in seconds, None without streams."""

    requests: int = 0
    failed: int = 0
    ttft_count: int = 0
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None

    @property
    def error_ratio(self) -> float | None:
        """Share that failed; None without requests."""
        return self.failed / self.requests if self.requests else None


@dataclass(frozen=True, slots=True)
class Judgement:
    """A comparison in figures and words."""

    finding: Finding
    words: str
    new: Side = Side()
    old: Side = Side()


NOT_JUDGED = Bar(requests=0)
UNKNOWN = Judgement(Finding.TOO_FEW, "nobody counts requests now: the store is away")


def summed(tries: Mapping[str, Tries], names: Collection[str]) -> Tries:
    """The tries of several replicas together."""
    total = Tries()
    for name in names:
        if name in tries:
            total.merge(tries[name])
    return total


def judge(
    new: tuple[Tries, Tries], old: tuple[Tries, Tries], bar: Bar, ejected: str = ""
) -> Judgement:
    """Compare; each side is (since it takes work, since the second half of its slow start).

    `ejected` is why gateways send it nothing while they send the old ones: a breaker opens after a
    few failures, so that no share of many would ever show them.
    """
    sides = _side(*new), _side(*old)
    if ejected:
        words = f"gateways stopped sending it work, it is {ejected}: {_error_words(*sides)}"
        return Judgement(Finding.FAILING, words, *sides)
    if words := _failing(*sides, bar):
        return Judgement(Finding.FAILING, words, *sides)
    if words := _too_few(new, old, bar):
        return Judgement(Finding.TOO_FEW, words, *sides)
    z = slower_z(new[1].ttft_by_octave_s, old[1].ttft_by_octave_s, bar.ttft_ratio)
    like = like_ratio(new[1].ttft_by_octave_s, old[1].ttft_by_octave_s)
    if z is not None and z > Z_99:
        words = f"{_ttft_words(*sides, like)}: above the {bar.ttft_ratio:g} times that are allowed"
        return Judgement(Finding.SLOWER, words, *sides)
    words = f"{_error_words(*sides)}; {_ttft_words(*sides, like)}"
    return Judgement(Finding.FIT, words, *sides)


def _too_few(new: tuple[Tries, Tries], old: tuple[Tries, Tries], bar: Bar) -> str:
    """What is missing. Where calls are streamed, as many first outputs are needed as requests."""
    ours, theirs = new[0].requests, old[0].requests
    words = "{} requests reached it and {} the old ones"
    needed = bar.requests
    if min(ours, theirs) >= needed and new[0].ttft_s and old[0].ttft_s:
        ours, theirs = count_of(new[1].ttft_s), count_of(old[1].ttft_s)
        words = "{} first outputs came from it and {} from the old ones of late"
        if min(ours, theirs) >= needed:
            ours, theirs = comparable(new[1].ttft_by_octave_s, old[1].ttft_by_octave_s)
            words = "{} first outputs of it and {} of the old ones had prompts of like size"
            needed = math.ceil(needed * LEAST_LIKE_RATIO)
    if min(ours, theirs) >= needed:
        return ""
    return f"{words.format(ours, theirs)}, {needed} of each are needed"


def _failing(new: Side, old: Side, bar: Bar) -> str:
    if new.failed < LEAST_FAILED:
        return ""
    excess = least_share(new.failed, new.requests, Z_999) - (old.error_ratio or 0.0)
    if excess <= bar.error_excess_ratio:
        return ""
    points = bar.error_excess_ratio * 100
    return f"{_error_words(new, old)}: at most {points:g} points above theirs are allowed"


def _error_words(new: Side, old: Side) -> str:
    theirs = f"{old.failed} of {old.requests} ({_share(old)})" if old.requests else "had none"
    return (
        f"it failed {new.failed} of {new.requests} requests ({_share(new)}), the old ones {theirs}"
    )


def _share(side: Side) -> str:
    return "—" if side.error_ratio is None else f"{side.error_ratio:.1%}"


def _ttft_words(new: Side, old: Side, like: float | None) -> str:
    if new.ttft_p50_s is None or old.ttft_p50_s is None:
        return "no times to first output to compare"
    times = new.ttft_p50_s / old.ttft_p50_s
    return (
        f"its TTFT p50 is {new.ttft_p50_s * 1000:.0f} ms, the old ones' "
        f"{old.ttft_p50_s * 1000:.0f} ms ({times:.1f} times{_like_words(like)})"
    )


def _like_words(like: float | None) -> str:
    return "" if like is None else f", {like:.1f} times for prompts of like size"


def _side(whole: Tries, late: Tries) -> Side:
    return Side(
        requests=whole.requests,
        failed=whole.failed,
        ttft_count=count_of(late.ttft_s),
        ttft_p50_s=quantile(late.ttft_s, 0.5),
        ttft_p95_s=quantile(late.ttft_s, 0.95),
    )

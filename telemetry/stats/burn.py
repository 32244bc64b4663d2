"""Burn of an error budget over several windows (SRE workbook; decision core, section 6).

Burn 1 spends exactly the budget of 30 days in 30 days. Two windows must agree: the long one says
that it matters, the short one that it still goes on.
"""

from collections.abc import Mapping
from dataclasses import dataclass

BUDGET_MIN = 30 * 24 * 60  # the window of the budget that a burn of 1 spends evenly
MIN_BAD = 50  # fewer bad events than this never page: one bad request of ten is no trend


@dataclass(frozen=True, slots=True)
class Judged:
    """Requests judged in a window, and how many of them kept their objective."""

    total: int = 0
    good: int = 0

    @property
    def bad(self) -> int:
        """Requests that did not."""
        return self.total - self.good

    @property
    def good_ratio(self) -> float | None:
        """Goodput in SLO (0..1); None without requests."""
        return self.good / self.total if self.total else None


@dataclass(frozen=True, slots=True)
class Rule:
    """Fires when both windows (minutes) burn at least `burn` times the budget's even pace."""

    severity: str
    burn: float
    long_min: int
    short_min: int


RULES = (
    Rule("page", 14.4, 60, 5),
    Rule("page", 6.0, 360, 30),
    Rule("ticket", 1.0, 4_320, 360),
)
WINDOWS_MIN = tuple(sorted({rule.long_min for rule in RULES} | {rule.short_min for rule in RULES}))


@dataclass(frozen=True, slots=True)
class Alarm:
    """The worst rule that fires, with both burns."""

    rule: Rule
    long_burn: float
    short_burn: float


def burn(judged: Judged, target_ratio: float) -> float | None:
    """How many times faster than evenly the budget is spent; None without requests."""
    if not judged.total:
        return None
    return (judged.bad / judged.total) / (1 - target_ratio)


def budget_left(judged: Judged, target_ratio: float) -> float | None:
    """Share (1 and below) of the budget of a whole window that is left; None without requests.

    Below 0 more was spent than there was. The budget is of the requests so far: a window that is
    not yet full has as much less.
    """
    spent = burn(judged, target_ratio)
    return None if spent is None else 1 - spent


def lasts_min(left_ratio: float | None, burn_now: float | None) -> float | None:
    """Minutes until what is left of a 30-day budget is spent at the present burn.

    0 where nothing is left; None where nothing is spent now, or either is unknown.
    """
    if left_ratio is None or burn_now is None:
        return None
    if left_ratio <= 0:
        return 0.0
    return left_ratio * BUDGET_MIN / burn_now if burn_now > 0 else None


def alarm(windows: Mapping[int, Judged], target_ratio: float) -> Alarm | None:
    """The first of `RULES` that fires on sums by window length in minutes."""
    for rule in RULES:
        longer, shorter = windows.get(rule.long_min), windows.get(rule.short_min)
        if longer is None or shorter is None or longer.bad < MIN_BAD:
            continue
        long_burn, short_burn = burn(longer, target_ratio), burn(shorter, target_ratio)
        if long_burn is None or short_burn is None:
            continue
        if min(long_burn, short_burn) >= rule.burn:
            return Alarm(rule, long_burn, short_burn)
    return None

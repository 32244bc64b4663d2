"""Slow start: a new or recovered endpoint gets a share of the work that rises with its age.

Its weight is `max(0.1, age / slow_start_s)` of a full endpoint's (the policy's `slow_start_s`, 60 s
unless it says otherwise; 0 switches it off). By a draw from the request's id it is
open to `weight / sum of weights` of all requests and closed to the others, so its share never
passes that, whatever the load; of those it takes each that nobody else would serve sooner. The
tokens that it may hold rise likewise. The ids that are open to it only become more as it ages.

The oldest are never held back: no request is refused for it, and a pool that has just started works
as any other.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from routing.decision.draw import draw
from routing.decision.filters import SLOW_START_S, Candidate, Need

LEAST_WEIGHT: Final = 0.1
EVEN_RATIO: Final = 0.75  # of the oldest one's weight: those of one start differ by seconds


class Turn(NamedTuple):
    """Who of the young is closed to a request, and which one it is open to (empty for none)."""

    closed: frozenset[str] = frozenset()
    young_id: str = ""


def weight_of(age_s: float, slow_start_s: float = SLOW_START_S) -> float:
    """Share of a full endpoint's work that one of this age may get."""
    if slow_start_s <= 0:
        return 1.0
    return min(1.0, max(LEAST_WEIGHT, age_s / slow_start_s))


def shares(weights: Sequence[float]) -> list[float]:
    """What part of all requests each of these weights stands for."""
    total = sum(weights)
    return [weight / total for weight in weights] if total > 0 else [0.0 for _ in weights]


def turn(able: Sequence[tuple[Candidate, float]], need: Need, now_s: float) -> Turn:
    """Whose turn this request is; each endpoint comes with its target's weight."""
    grown = [weight_of(now_s - candidate.ready_at_s, need.slow_start_s) for candidate, _ in able]
    full = max(grown, default=1.0) * EVEN_RATIO
    parts = shares([ratio * weight for ratio, (_, weight) in zip(grown, able, strict=True)])
    drawn = draw(need.request_id, need.attempt, "slow start")
    closed, young_id, begin = set(), "", 0.0
    for (candidate, _), ratio, part in zip(able, grown, parts, strict=True):
        if ratio >= full:
            continue
        is_open = begin <= drawn < begin + part and _has_room(candidate, need, ratio)
        begin += part
        if is_open:
            young_id = candidate.id
        else:
            closed.add(candidate.id)
    return Turn(frozenset(closed), young_id)


def _has_room(candidate: Candidate, need: Need, ratio: float) -> bool:
    room = candidate.kv_capacity_tokens * ratio
    return not room or candidate.held_tokens + need.kv_tokens <= room

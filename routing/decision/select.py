"""Filter, score, pick: which endpoint serves a request. Keeps every term for explanation."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from routing.decision.affinity import held_tokens
from routing.decision.breaker import Phase
from routing.decision.draw import draw
from routing.decision.filters import Candidate, Load, Need, Why, load_of, why_not
from routing.decision.scorers import Terms, terms_of
from routing.decision.slow_start import turn

EJECT_MAX_RATIO = 0.34  # share of a pool that breakers may keep away, at least one replica
Score = Callable[[Candidate, Load, Need, float], Terms]
_SOFT = (Why.LOST, Why.REGION, Why.SLOW, Why.KV_FULL)
_LAST_RESORT = (Why.BREAKER, Why.PAUSED)


class Group(NamedTuple):
    """A target of the model: a pool's endpoints, its place in the policy's order, its weight.

    With an `adapter` only the endpoints that list it as loaded can serve.
    """

    order: int
    weight: float
    candidates: Sequence[Candidate]
    adapter: str = ""


class Looked(NamedTuple):
    """One endpoint as the choice saw it; `why` is None for those that could serve."""

    candidate: Candidate
    weight: float
    load: Load
    why: Why | None


class Choice(NamedTuple):
    """The pick, the terms of all that were compared, and every endpoint that was looked at."""

    candidate: Candidate
    compared: list[tuple[Candidate, Terms]]
    looked: list[Looked]


def select(
    groups: Sequence[Group], need: Need, now_s: float, score: Score = terms_of
) -> Choice | None:
    """The best endpoint by `score`, or None when none may be tried.

    `groups` come in the policy's order: a later order opens only when nothing of an earlier one
    can serve. A young one is open to its share of the requests only (`slow_start`). When load alone
    rules all out, the least bad is kept; when only breakers and pauses do, the last ones are never
    ejected.
    """
    looked: list[Looked] = []
    able: list[Looked] = []
    order = None
    for group in groups:
        if able and group.order != order:
            break
        order = group.order
        for one in _look(group, need, now_s):
            looked.append(one)
            if one.why is None:
                able.append(one)
    if not able:
        able = [one for one in looked if one.why in _SOFT]
        able = able or [one for one in looked if one.why in _LAST_RESORT]
        return _pick((able, looked), need, now_s, score) if able else None
    young_id = ""
    young_s = now_s - need.slow_start_s
    if len(able) > 1 and any(one.candidate.ready_at_s > young_s for one in able):
        closed, young_id = turn([(one.candidate, one.weight) for one in able], need, now_s)
        able = [one for one in able if one.candidate.id not in closed]
        looked = [
            one._replace(why=Why.SLOW_START) if one.candidate.id in closed else one
            for one in looked
        ]
    return _pick((able, looked), need, now_s, score, young_id)


def _look(group: Group, need: Need, now_s: float) -> list[Looked]:
    """Each endpoint with its reason; breakers beyond the ejection limit are overruled."""
    weight = group.weight
    found = []
    broken = []
    for candidate in group.candidates:
        load = load_of(candidate, need, now_s)
        why = why_not(candidate, weight, need, load, now_s)
        if group.adapter and group.adapter not in (candidate.adapters or ()):
            why = Why.NO_ADAPTER
        elif why is None and group.adapter and _is_broken(candidate, group.adapter):
            why = Why.BREAKER
        one = Looked(candidate, weight, load, why)
        if one.why is Why.BREAKER:
            broken.append(candidate)
        found.append(one)
    if not broken:
        return found
    ejected = max(1, int(EJECT_MAX_RATIO * len(found)))
    broken.sort(key=lambda c: (c.breaker.opened_at_s, c.id))
    back = {candidate.id for candidate in broken[ejected:]}
    return [
        one._replace(why=Why.REGION if one.candidate.in_failing_region else None)
        if one.candidate.id in back
        else one
        for one in found
    ]


def _is_broken(candidate: Candidate, adapter: str) -> bool:
    breaker = candidate.adapter_breakers.get(adapter)
    return breaker is not None and breaker.phase is Phase.OPEN


def _pick(
    found: tuple[list[Looked], list[Looked]],
    need: Need,
    now_s: float,
    score: Score,
    young_id: str = "",
) -> Choice:
    """Fresh reports first, then least seconds over weight.

    A tie goes to the young one whose turn it is, else by a draw from the request id.
    """
    able, looked = found
    if len(able) == 1:
        return Choice(able[0].candidate, [], looked)
    held: dict[str, int] = {}
    if need.affinity is not None:
        held = held_tokens(need.affinity, [one.candidate for one in able], need.input_tokens)
    compared = []
    tied: list[Candidate] = []
    best = (True, float("inf"))
    for candidate, weight, load, _ in able:
        terms = score(candidate, load, need, now_s)
        if candidate.id in held:
            left = 1 - held[candidate.id] / need.input_tokens
            terms = terms._replace(prefill_s=terms.prefill_s * left)
        compared.append((candidate, terms))
        rank = (load.is_stale, sum(terms) / ((weight or 1.0) * (candidate.pace_ratio or 1.0)))
        if rank < best:
            best, tied = rank, [candidate]
        elif rank == best:
            tied.append(candidate)
    if young_id:
        for candidate in tied:
            if candidate.id == young_id:
                return Choice(candidate, compared, looked)
    at = int(draw(need.request_id, need.attempt, "tie") * len(tied)) if len(tied) > 1 else 0
    return Choice(tied[at], compared, looked)

"""Fallbacks of a policy: may one model stand in for another, and what changed, in words.

One that may is evaluated, elsewhere and at least as able, and room is kept for it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from routing.policies.rules.document import Document, FallbackRule, ModelRule
from routing.policies.rules.findings import Finding, Level

_KEYS = ("place", "when", "evaluation", "headroom_ratio")
Evaluated = tuple[str, str, str]  # (evaluation, model asked for, model that stands in)


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """Where a pool is, as `region/domain`, and what its engines can do."""

    domain: str
    capabilities: frozenset[str]
    has_limits: bool = True


@dataclass(frozen=True, slots=True)
class FallbackFacts:
    """What fallbacks are held against: context by model, pools by name, evaluations that stand."""

    context_tokens: Mapping[str, int] = field(default_factory=dict)
    pools: Mapping[str, PoolFacts] = field(default_factory=dict)
    evaluations: frozenset[Evaluated] = frozenset()


def fallback_findings(document: Document, facts: FallbackFacts) -> list[Finding]:
    """Every finding about fallbacks: one that refuses for each that may not be, and warnings."""
    findings: list[Finding] = []
    for model, rule in document.models.items():
        seen = {model}
        for at, one in enumerate(rule.fallbacks):
            path = f"models.{model}.fallbacks[{at}]"
            if one.model in seen:
                again = "is the model itself" if one.model == model else "is said twice"
                findings.append(_refuse(path, f"{one.model} {again}.", "Choose another."))
            elif one.model not in document.models:
                reason = f"{one.model} is not served by this policy."
                findings.append(_refuse(path, reason, "Give it targets, or choose another."))
            else:
                findings += _judged(path, model, one, (document, facts))
            seen.add(one.model)
    return findings


def _judged(
    path: str, model: str, one: FallbackRule, known: tuple[Document, FallbackFacts]
) -> list[Finding]:
    document, facts = known
    rule, other = document.models[model], document.models[one.model]
    faults = [
        *_shared_domains(rule, other, facts),
        *_less_context((model, rule), (one.model, other), facts),
    ]
    if (one.evaluation, model, one.model) not in facts.evaluations:
        faults.append("no evaluation")
    if faults:
        first, *more = faults
        text = f"{first} ({'; '.join(more)})." if more else f"{first}."
        fix = "Choose another."
        if faults == ["no evaluation"]:
            fix = f"Record how {one.model} does in place of {model}, and name that record."
        return [_refuse(path, text, fix)]
    return [*_lacking(path, rule, other, facts), *_unlimited(path, other, facts)]


def _pools(rule: ModelRule, facts: FallbackFacts) -> list[tuple[str, PoolFacts]]:
    """Pools that take work for a model."""
    return [
        (target.pool, facts.pools[target.pool])
        for target in rule.targets
        if target.weight > 0 and target.pool in facts.pools
    ]


def _shared_domains(rule: ModelRule, other: ModelRule, facts: FallbackFacts) -> list[str]:
    mine = {pool.domain for _, pool in _pools(rule, facts)}
    shared = sorted(mine & {pool.domain for _, pool in _pools(other, facts)})
    return [f"shares zone {', '.join(shared)}"] if shared else []


def _less_context(
    asked: tuple[str, ModelRule], other: tuple[str, ModelRule], facts: FallbackFacts
) -> list[str]:
    need, has = (_context(*one, facts) for one in (asked, other))
    return (
        [f"context {has} < {need}"] if need is not None and has is not None and has < need else []
    )


def _context(model: str, rule: ModelRule, facts: FallbackFacts) -> int | None:
    bounds = (facts.context_tokens.get(model), rule.context_tokens)
    return min((one for one in bounds if one is not None), default=None)


def _lacking(path: str, rule: ModelRule, other: ModelRule, facts: FallbackFacts) -> list[Finding]:
    """What every target of the model can do and some target of the fallback cannot."""
    mine, theirs = ([pool.capabilities for _, pool in _pools(one, facts)] for one in (rule, other))
    if not mine or not theirs:
        return []
    lacks = sorted(frozenset.intersection(*mine) - frozenset.union(*theirs))
    if not lacks:
        return []
    reason = f"lacks {', '.join(lacks)}."
    return [Finding(Level.WARN, path, "capability", reason, "Requests that ask for it stay.")]


def _unlimited(path: str, other: ModelRule, facts: FallbackFacts) -> list[Finding]:
    """Room can be kept of limits only."""
    return [
        Finding(
            Level.WARN,
            f"{path}.headroom_ratio",
            "unlimited",
            f"{name} has no limit: there is nothing to keep free.",
            "Set its concurrency or KV tokens on the pool's limits page.",
        )
        for name, pool in _pools(other, facts)
        if not pool.has_limits
    ]


def _refuse(path: str, reason: str, fix: str) -> Finding:
    return Finding(Level.REFUSE, path, "fallback", reason, fix)


# -- in words -------------------------------------------------------------------------------------


class FallbackChange(NamedTuple):
    """One change in words, the paths that it covers, and whether somebody may get less."""

    text: str
    paths: Sequence[str]
    takes: bool = False


def flat_fallbacks(rules: Iterable[Mapping[str, Any]], path: str) -> dict[str, object]:
    """Values by path, each fallback by its model; `place` is its turn, from 1."""
    found: dict[str, object] = {}
    for place, one in enumerate(rules, 1):
        values = (place, tuple(sorted(set(one["when"]))), one["evaluation"], one["headroom_ratio"])
        found |= dict(zip(_paths(path, one["model"]), values, strict=True))
    return found


def fallback_changes(
    before: Mapping[str, Any], after: Mapping[str, Any], name: str, changed: Sequence[str]
) -> list[FallbackChange]:
    """What changed for a model of this `name`; `changed` are paths inside its fallbacks."""
    start = f"models[{name}].fallbacks"
    has_some = any(path.startswith(f"{start}[") for path in after)
    found = []
    for other in sorted({path[len(start) + 1 : path.rindex("]")] for path in changed}):
        paths = _paths(start, other)
        place, when, evaluation, headroom = paths
        if place not in before:
            text = (
                f"{name} falls back to {other} ({after[evaluation]}) on {_conditions(after[when])};"
                f" {after[headroom]:g} of its pools is kept for that."
            )
            found.append(FallbackChange(text, paths))
        elif place not in after:
            end = "" if has_some else "; no capacity is 503"
            text = f"{name} no longer falls back to {other}{end}."
            found.append(FallbackChange(text, paths, takes=True))
        else:
            found += _changed(before, after, f"{name} falls back to {other}", paths)
    return [one for one in found if not set(one.paths).isdisjoint(changed)]


def _paths(start: str, other: str) -> list[str]:
    return [f"{start}[{other}].{key}" for key in _KEYS]


def _changed(
    old: Mapping[str, Any], new: Mapping[str, Any], start: str, paths: Sequence[str]
) -> list[FallbackChange]:
    place, when, evaluation, headroom = paths
    turn = f"{start} as choice {new[place]} (was {old[place]})."
    causes = f"{start} on {_conditions(new[when])} (was {_conditions(old[when])})."
    record = f"{start} by {new[evaluation]} (was {old[evaluation]})."
    kept = f"{start}, {new[headroom]:g} of its pools is kept for that (was {old[headroom]:g})."
    return [
        FallbackChange(turn, [place]),
        FallbackChange(causes, [when], takes=bool(set(old[when]) - set(new[when]))),
        FallbackChange(record, [evaluation]),
        FallbackChange(kept, [headroom], takes=new[headroom] < old[headroom]),
    ]


def _conditions(words: Sequence[str]) -> str:
    return ", ".join(words) or "nothing"

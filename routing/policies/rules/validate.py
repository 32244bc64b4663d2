"""Is a document a policy, and does it fit the catalogue, pools and prices that exist?"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from routing.contracts.snapshot import DEFAULT_KIND
from routing.policies.rules.document import Document, ModelRule, WorkflowRule, from_plain
from routing.policies.rules.fallbacks import FallbackFacts, fallback_findings
from routing.policies.rules.findings import Finding, Level
from routing.policies.rules.hooks import hook_findings
from routing.policies.rules.reader import Reader
from routing.policies.rules.schema import SCHEMA

MOST_RESERVED = 0.9
_ROUNDING = 1e-9  # of sums of decimal ratios


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a policy may name: models of the catalogue, pool -> model served, models priced now.

    `limited` are the pools with limits of their own, `hooks` the hooks that exist; None where
    nobody knows. `fallbacks` is what those are held against.
    """

    models: frozenset[str]
    pools: Mapping[str, str]
    priced: frozenset[str]
    limited: frozenset[str] | None = None
    hooks: frozenset[str] | None = None
    fallbacks: FallbackFacts = field(default_factory=FallbackFacts)


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of a check. `document` is there when nothing refuses its form."""

    document: Document | None
    findings: tuple[Finding, ...]

    @property
    def is_refused(self) -> bool:
        """Whether any finding stops it."""
        return any(finding.level is Level.REFUSE for finding in self.findings)


def check(plain: object, around: Surroundings) -> Checked:
    """Every finding about a document, form first; references are checked once the form holds."""
    reader = Reader()
    read = reader.read(SCHEMA, plain, "")
    if reader.findings:
        return Checked(None, tuple(reader.findings))
    document = from_plain(read)
    findings = [
        *_aliases(document),
        *_references(document, around),
        *fallback_findings(document, around.fallbacks),
        *_shares(document, around),
        *_workflows(document),
        *hook_findings(document.hooks, around.hooks),
    ]
    return Checked(document, tuple(findings))


def _aliases(document: Document) -> list[Finding]:
    counts = Counter(alias for rule in document.models.values() for alias in rule.aliases)
    findings = []
    for model, rule in document.models.items():
        for at, alias in enumerate(rule.aliases):
            path = f"models.{model}.aliases[{at}]"
            if alias in document.models:
                findings.append(_refuse(path, "alias", f"{alias} names a model.", "Rename."))
            elif counts[alias] > 1:
                findings.append(_refuse(path, "alias", f"{alias} is said twice.", "Rename one."))
    return findings


def _references(document: Document, around: Surroundings) -> list[Finding]:
    findings = []
    for model, rule in document.models.items():
        path = f"models.{model}"
        if model not in around.models:
            findings.append(
                _refuse(path, "model", "is not in the catalogue.", "Add the model first.")
            )
        elif model not in around.priced:
            findings.append(_refuse(path, "price", "no price.", "Add one; 0 must be said."))
        findings += _targets(path, model, rule, around)
    return findings


def _targets(path: str, model: str, rule: ModelRule, around: Surroundings) -> list[Finding]:
    findings = []
    if not rule.targets:
        findings.append(_refuse(f"{path}.targets", "count", "has no target.", "Name a pool."))
    elif all(target.weight == 0 for target in rule.targets):
        findings.append(
            Finding(
                Level.WARN,
                f"{path}.targets",
                "drained",
                "every target has weight 0: nothing serves it.",
                "Give one a weight.",
            )
        )
    seen: set[str] = set()
    for at, target in enumerate(rule.targets):
        place = f"{path}.targets[{at}]"
        served = around.pools.get(target.pool)
        if served is None:
            findings.append(_refuse(place, "pool", f"no pool {target.pool}.", "Name a pool."))
        elif target.adapter and served == model:
            reason = f"{target.pool} serves {model} itself, not an adapter of that name."
            findings.append(_refuse(f"{place}.adapter", "adapter", reason, "Drop it."))
        elif served != model and not target.adapter:
            fix = "Choose another, or name the adapter."
            findings.append(_refuse(place, "pool", f"{target.pool} serves {served}.", fix))
        if target.pool in seen:
            findings.append(_refuse(place, "pool", f"{target.pool} is said twice.", "Drop one."))
        seen.add(target.pool)
    return findings


def _shares(document: Document, around: Surroundings) -> list[Finding]:
    """Shares that leave something for all, of limits that exist."""
    rules = document.classes.by_name().values()
    reserved = sum(rule.reserve_ratio for rule in rules)
    if reserved == 0:
        return []
    kept = sum(max(rule.reserve_ratio, rule.floor_ratio) for rule in rules)
    if reserved > MOST_RESERVED + _ROUNDING:
        reason = f"reserves sum to {reserved:g}."
        return [_refuse("classes", "sum", reason, f"At most {MOST_RESERVED}.")]
    if kept > 1 + _ROUNDING:
        reason = f"reserves and floors sum to {kept:g}."
        return [_refuse("classes", "sum", reason, "At most 1: lower one of them.")]
    if too_wide := _headrooms(document, kept):
        return too_wide
    if around.limited is None:
        return []
    named = {target.pool for rule in document.models.values() for target in rule.targets}
    return [
        Finding(
            Level.WARN,
            "classes",
            "unlimited",
            f"{pool} has no limit: there is nothing to reserve a share of.",
            "Set its concurrency or KV tokens on the pool's limits page.",
        )
        for pool in sorted((named & around.pools.keys()) - around.limited)
    ]


def _workflows(document: Document) -> list[Finding]:
    """Caps that leave tasks out, or say nothing."""
    findings = []
    if document.workflows and DEFAULT_KIND not in document.workflows:
        findings.append(
            Finding(
                Level.WARN,
                "workflows",
                "default",
                "tasks of other kinds, or of none, have no caps.",
                f"Add `{DEFAULT_KIND}`.",
            )
        )
    findings += [
        _refuse(f"workflows.{kind}", "empty", "names no cap.", "Say one, or remove it.")
        for kind, rule in document.workflows.items()
        if rule == WorkflowRule(note=rule.note)
    ]
    return findings


def _headrooms(document: Document, kept: float) -> list[Finding]:
    """What a pool keeps for fallbacks comes beside what it keeps for classes."""
    return [
        _refuse(
            f"models.{model}.fallbacks[{at}].headroom_ratio",
            "sum",
            f"with reserves and floors of {kept:g} it is {kept + one.headroom_ratio:g} of a pool.",
            "At most 1: lower one of them.",
        )
        for model, rule in document.models.items()
        for at, one in enumerate(rule.fallbacks)
        if kept + one.headroom_ratio > 1 + _ROUNDING
    ]


def _refuse(path: str, rule: str, reason: str, fix: str) -> Finding:
    return Finding(Level.REFUSE, path, rule, reason, fix)

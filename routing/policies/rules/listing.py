"""The checks of a document as a list: each with what it found, and those that could not run yet."""

from collections.abc import Sequence
from dataclasses import dataclass

from routing.policies.rules.findings import Finding, Level
from routing.policies.rules.validate import Checked

FORM = "Known keys, right types, values in range"
# What is looked at once the form holds, with the rules that each check may break.
CHECKS: tuple[tuple[str, frozenset[str]], ...] = (
    ("Aliases are unique and name no model", frozenset({"alias"})),
    ("Models are in the catalogue", frozenset({"model"})),
    ("Models have a price", frozenset({"price"})),
    ("Targets are pools that serve the model", frozenset({"pool", "count", "drained"})),
    ("Hooks exist and see every answer", frozenset({"hook", "hook_gap"})),
    ("Fallbacks are evaluated, elsewhere and as able", frozenset({"fallback", "capability"})),
)
OTHER = "Shares and bounds fit together"


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One check. `state` is `ok`, `warn`, `refused`, or `waiting` until the form holds."""

    name: str
    state: str
    count: int = 0


def listed(checked: Checked) -> tuple[CheckRow, ...]:
    """Every check in the order in which it runs."""
    if checked.document is None:
        later = (*(name for name, _ in CHECKS), OTHER)
        waiting = (CheckRow(name, "waiting") for name in later)
        return (_row(FORM, checked.findings), *waiting)
    known = frozenset[str]().union(*(rules for _, rules in CHECKS))
    rest = [one for one in checked.findings if one.rule not in known]
    by_rule = (
        _row(name, [one for one in checked.findings if one.rule in rules]) for name, rules in CHECKS
    )
    return (_row(FORM, ()), *by_rule, _row(OTHER, rest))


def _row(name: str, findings: Sequence[Finding]) -> CheckRow:
    is_refused = any(one.level is Level.REFUSE for one in findings)
    state = "refused" if is_refused else "warn" if findings else "ok"
    return CheckRow(name, state, len(findings))

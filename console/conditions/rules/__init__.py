"""Which parts are degraded, with which bound: one answer for pages, REST, metrics and `status`.

A rule is one small function from `Facts` to conditions, listed in its part's `RULES`. To add one,
write it in the file of its part, or add a file and name its `RULES` in `_PARTS`.
"""

from console.conditions.rules import database, gateways, host, ledger, processes, store
from console.conditions.rules.condition import TONES, Condition
from console.conditions.rules.facts import Facts

MAX_SHOWN = 50  # a page and a message stay readable; the worst come first
_PARTS = (store, database, gateways, ledger, processes, host)
RULES = tuple(rule for part in _PARTS for rule in part.RULES)


def conditions_of(facts: Facts) -> tuple[Condition, ...]:
    """What is not as it should be, worst first, in the parts' order; each part and word once."""
    found: dict[tuple[str, str], Condition] = {}
    for rule in RULES:
        for condition in rule(facts):
            found.setdefault((condition.part, condition.word), condition)
    worst_first = sorted(found.values(), key=lambda condition: TONES.index(condition.tone))
    return tuple(worst_first[:MAX_SHOWN])

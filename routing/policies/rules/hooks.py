"""The `hooks` block of a policy: what is wrong with it, and what changed in it, in words."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from routing.contracts.hooks import HookPoint
from routing.policies.rules.document import HookRule
from routing.policies.rules.findings import Finding, Level

ORDER = "hooks.order"
_WHEN = {
    "before": "each request before it is admitted",
    "after": "each whole answer",
    "stream": "each stream as it comes",
}
_FAILS = {"refuse": "refuses the call", "pass": "lets the call pass"}


class HookChange(NamedTuple):
    """One change in words, the paths that it covers, and whether somebody may get less."""

    text: str
    paths: Sequence[str]
    takes: bool


def hook_findings(rules: Sequence[HookRule], known: Collection[str] | None) -> list[Finding]:
    """Findings about the block; `known` are the hooks that exist, None where nobody knows."""
    findings = []
    seen: set[tuple[str, str]] = set()
    for at, rule in enumerate(rules):
        path = f"hooks[{at}]"
        if known is not None and rule.hook not in known:
            fix = "Add it on the hooks page, or drop the line."
            findings.append(_refuse(f"{path}.hook", f"no hook {rule.hook}.", fix))
        if (rule.hook, rule.at) in seen:
            reason = f"{rule.hook} is asked {rule.at} twice."
            findings.append(_refuse(path, reason, "Drop one."))
        seen.add((rule.hook, rule.at))
        if rule.classes is not None and not rule.classes:
            fix = "Leave it out for all classes, or drop the hook."
            findings.append(_refuse(f"{path}.classes", "names no class.", fix))
    return findings + _gaps(rules, seen)


def _gaps(rules: Sequence[HookRule], seen: Collection[tuple[str, str]]) -> list[Finding]:
    """A caller chooses whether to stream: who is asked about one kind of answer only, misses."""
    other = {HookPoint.STREAM.value: HookPoint.AFTER.value}
    other |= {after: stream for stream, after in other.items()}
    words = {HookPoint.STREAM.value: "streams", HookPoint.AFTER.value: "whole answers"}
    return [
        Finding(
            Level.WARN,
            f"hooks[{at}].at",
            "hook_gap",
            f"{rule.hook} sees {words[rule.at]} only, and callers choose which they ask for.",
            f"Name it at {other[rule.at]} too.",
        )
        for at, rule in enumerate(rules)
        if rule.at in other and (rule.hook, other[rule.at]) not in seen
    ]


def flat_hooks(rules: Iterable[Mapping[str, Any]]) -> dict[str, object]:
    """Values by path; a line is named by its hook and point, so that moving it changes no value."""
    found: dict[str, object] = {}
    order = []
    for rule in rules:
        name = f"{rule['hook']} {rule['at']}"
        order.append(name)
        for key in ("deadline_ms", "on_failure"):
            found[f"hooks[{name}].{key}"] = rule[key]
        classes = rule.get("classes")
        found[f"hooks[{name}].classes"] = None if classes is None else tuple(classes)
    if order:
        found[ORDER] = tuple(order)
    return found


def hook_changes(
    before: Mapping[str, object], after: Mapping[str, object], changed: Sequence[str]
) -> list[HookChange]:
    """What the changed paths of the block mean; each path is in one change."""
    names = sorted({path[len("hooks[") : path.index("]")] for path in changed if "[" in path})
    said: list[HookChange] = []
    for name in names:
        paths = [path for path in changed if path.startswith(f"hooks[{name}]")]
        is_old, is_new = (f"hooks[{name}].deadline_ms" in flat for flat in (before, after))
        if is_old and is_new:
            said.append(_changed(name, before, after, paths))
            continue
        hook, _, at = name.rpartition(" ")
        if is_new:
            text = f"{hook} is asked about {_WHEN[at]}{_of(name, after)}."
        else:
            text = f"{hook} is no longer asked about {_WHEN[at]}."
        said.append(HookChange(text, paths, is_new))
    if ORDER in changed:
        moved = any(("[" in path and path.endswith(".deadline_ms")) for path in changed)
        order = after.get(ORDER, ())
        listed = ", ".join(order) if isinstance(order, tuple) and order else "none"
        if said and moved:
            last = said[-1]
            said[-1] = last._replace(paths=[*last.paths, ORDER])
        else:
            said.append(HookChange(f"Hooks are asked in the order {listed}.", [ORDER], takes=False))
    return said


def _changed(
    name: str, before: Mapping[str, object], after: Mapping[str, object], paths: Sequence[str]
) -> HookChange:
    hook, _, at = name.rpartition(" ")
    base = f"hooks[{name}]."
    parts, takes = [], False
    if f"{base}deadline_ms" in paths:
        old, new = before[f"{base}deadline_ms"], after[f"{base}deadline_ms"]
        parts.append(f"may take {new} ms (was {old})")
    if f"{base}on_failure" in paths:
        old, new = (str(flat[f"{base}on_failure"]) for flat in (before, after))
        parts.append(f"{_FAILS[new]} when it fails (was: {_FAILS[old]})")
        takes = new == "refuse"
    if f"{base}classes" in paths:
        old, new = (_classes(flat[f"{base}classes"]) for flat in (before, after))
        parts.append(f"is asked for {new} (was {old})")
        takes = True
    return HookChange(f"{hook}, {at}: {'; '.join(parts)}.", paths, takes)


def _of(name: str, values: Mapping[str, object]) -> str:
    base = f"hooks[{name}]."
    classes = values[f"{base}classes"]
    whose = "" if classes is None else f", for {_classes(classes)}"
    fails = _FAILS[str(values[f"{base}on_failure"])]
    return f"{whose}, {values[f'{base}deadline_ms']} ms at most; a failure {fails}"


def _classes(value: object) -> str:
    return ", ".join(str(one) for one in value) if isinstance(value, tuple) else "all classes"


def _refuse(path: str, reason: str, fix: str) -> Finding:
    return Finding(Level.REFUSE, path, "hook", reason, fix)

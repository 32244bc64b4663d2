"""What changed between two policies, in sentences that a person can agree or object to.

Both documents are flattened to paths, a model's targets by their pool and its fallbacks by their
model. Each changed path is said in
exactly one sentence; a path that no sentence knows is still said, by its name.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from routing.contracts.snapshot import DEFAULT_KIND
from routing.decision.filters import SLOW_START_S
from routing.policies.rules.document import (
    BACKOFF_BASE_S,
    BACKOFF_MAX_S,
    UNSAID,
    Document,
    to_plain,
)
from routing.policies.rules.fallbacks import fallback_changes, flat_fallbacks
from routing.policies.rules.hooks import flat_hooks, hook_changes

CLASSES = ("interactive", "standard", "batch")
_ABSENT = object()
_TARGET_KEYS = ("order", "weight", "adapter")
Flat = dict[str, object]


@dataclass(frozen=True, slots=True)
class Sentence:
    """One change, the paths that it covers, and whether somebody may get less than before."""

    text: str
    paths: tuple[str, ...]
    takes: bool = False


@dataclass(slots=True)
class _Change:
    """Two flat documents, and which of their changed paths nobody has said yet."""

    before: Flat
    after: Flat
    left: set[str]
    said: list[Sentence]

    def say(self, paths: Iterable[str], text: str, *, takes: bool = False) -> None:
        covered = tuple(sorted(path for path in paths if path in self.left))
        self.left.difference_update(covered)
        if covered:
            self.said.append(Sentence(text, covered, takes))

    def below(self, prefix: str) -> list[str]:
        return sorted(path for path in self.left if path.startswith(prefix))


def words(before: Document | None, after: Document) -> tuple[Sentence, ...]:
    """Every change of effect, models first; notes have none. `before` None: all of it is new."""
    old = flat(before) if before is not None else {}
    new = flat(after)
    changed = {path for path in {*old, *new} if old.get(path, _ABSENT) != new.get(path, _ABSENT)}
    if before is None:
        return (_first(after, changed),)
    change = _Change(old, new, changed, [])
    for name in sorted({*before.models, *after.models}):
        _model(change, name, in_before=name in before.models, in_after=name in after.models)
    for group in CLASSES:
        _class(change, group)
    for path, said in _PLAIN.items():
        if path in change.left:
            change.say([path], said(old.get(path), new.get(path)), takes=_takes(path, old, new))
    _outage(change)
    for one in hook_changes(old, new, change.below("hooks")):
        change.say(one.paths, one.text, takes=one.takes)
    for kind in sorted({*before.workflows, *after.workflows}):
        _workflow(change, kind)
    for path in sorted(change.left):
        change.say([path], f"{path} is {_value(new.get(path))} (was {_value(old.get(path))}).")
    return tuple(change.said)


def flat(document: Document) -> Flat:
    """Values by path; targets are named by their pool, notes and names are left out."""
    plain = to_plain(document)
    plain.pop("name")
    found: Flat = {}
    _flatten(plain, "", found)
    return found


def _flatten(value: object, path: str, found: Flat) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key != "note":
                _flatten(item, _below(path, str(key)), found)
    elif isinstance(value, list):
        _flatten_list(value, path, found)
    else:
        found[path] = value


def _flatten_list(value: list[Any], path: str, found: Flat) -> None:
    if path.endswith(".targets"):
        for target in value:
            for key in _TARGET_KEYS:
                found[f"{path}[{target['pool']}].{key}"] = target.get(key, "")
    elif path.endswith(".fallbacks"):
        found.update(flat_fallbacks(value, path))
    elif path == "hooks":
        found.update(flat_hooks(value))
    else:
        found[path] = tuple(value)


def _below(path: str, key: str) -> str:
    """Names of models and kinds hold points: brackets keep `a` apart from `a.b`."""
    if path in ("models", "workflows"):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


def _first(after: Document, changed: Iterable[str]) -> Sentence:
    names = ", ".join(sorted(after.models)) or "no model"
    return Sentence(f"First version: serves {names}.", tuple(sorted(changed)))


# -- models ---------------------------------------------------------------------------------------


def _model(change: _Change, name: str, *, in_before: bool, in_after: bool) -> None:
    prefix = f"models[{name}]."
    if not change.below(prefix):
        return
    if not in_before:
        text = f"{name} is served from now on, by {_pools(change.after, prefix)}."
        change.say(change.below(prefix), text)
    elif not in_after:
        text = f"{name} is no longer served: its callers get 404."
        change.say(change.below(prefix), text, takes=True)
    else:
        _aliases(change, name, f"{prefix}aliases")
        _targets(change, name, f"{prefix}targets[")
        _context(change, name, f"{prefix}context_tokens")
        inside = change.below(f"{prefix}fallbacks[")
        for found in fallback_changes(change.before, change.after, name, inside):
            change.say(found.paths, found.text, takes=found.takes)


def _aliases(change: _Change, name: str, path: str) -> None:
    if path not in change.left:
        return
    old, new = (_names(flat_.get(path)) for flat_ in (change.before, change.after))
    parts = []
    if fresh := sorted(new - old):
        parts.append(f"also answers to {', '.join(fresh)}")
    if gone := sorted(old - new):
        parts.append(f"no longer answers to {', '.join(gone)}")
    change.say(
        [path], f"{name} {' and '.join(parts) or 'lists its aliases anew'}.", takes=bool(gone)
    )


def _targets(change: _Change, name: str, prefix: str) -> None:
    pools = sorted(
        {path[len(prefix) : path.index("]", len(prefix))] for path in change.below(prefix)}
    )
    for pool in pools:
        order, weight, adapter = (f"{prefix}{pool}].{key}" for key in _TARGET_KEYS)
        paths = [order, weight, adapter]
        if order not in change.before:
            place = _place(change.after, order, weight)
            kind = f" as its adapter {change.after[adapter]}" if change.after[adapter] else ""
            change.say(paths, f"{name} may also be served by {pool}{kind}{place}.")
        elif order not in change.after:
            change.say(paths, f"{name} is no longer served by {pool}.", takes=True)
        else:
            _moved(change, name, pool, order, weight)
            new = change.after[adapter]
            change.say([adapter], f"{pool} answers for {name} with adapter {new or 'none'}.")


def _moved(change: _Change, name: str, pool: str, order: str, weight: str) -> None:
    if order in change.left:
        old, new = change.before[order], change.after[order]
        text = f"{name} tries {pool} in order {new} (was {old})."
        change.say([order], text)
    if weight in change.left:
        new = _value(change.after[weight])
        effect = "takes no new work" if new == "0" else f"holds work by weight {new}"
        text = f"{pool} {effect} for {name} (was weight {_value(change.before[weight])})."
        change.say([weight], text, takes=new == "0")


def _place(values: Flat, order: str, weight: str) -> str:
    parts = []
    if values[order] != 1:
        parts.append(f"in order {values[order]}")
    if values[weight] == 0:
        parts.append("but takes no work yet")
    elif values[weight] != 1:
        parts.append(f"with weight {_value(values[weight])}")
    return f", {', '.join(parts)}" if parts else ""


def _context(change: _Change, name: str, path: str) -> None:
    if path in change.left:
        old, new = (
            _tokens(flat_[path], "all that it can") for flat_ in (change.before, change.after)
        )
        is_less = _tighter(change.after[path], change.before[path])
        change.say([path], f"{name} takes {new} of context (was {old}).", takes=is_less)


def _pools(values: Flat, prefix: str) -> str:
    start = f"{prefix}targets["
    pools = {
        path[len(start) : path.index("]", len(start))] for path in values if path.startswith(start)
    }
    return ", ".join(sorted(pools)) or "nothing yet"


# -- classes and the rest -------------------------------------------------------------------------


def _class(change: _Change, group: str) -> None:
    base = f"classes.{group}."
    for field, said in _CLASS.items():
        path = base + field
        if path in change.left:
            unsaid = UNSAID.get(field)
            old, new = change.before.get(path, unsaid), change.after.get(path, unsaid)
            change.say([path], f"{group} {said(old, new)}", takes=_tighter(new, old))


def _seconds(what: str) -> Callable[[object, object], str]:
    return lambda old, new: f"{what} {_value(new)} s (was {_value(old)})."


def _cap(old: object, new: object) -> str:
    to, was = (_tokens(value, "the cap of all") for value in (new, old))
    return f"ends at {to} of output (was {was})."


def _reserve(old: object, new: object) -> str:
    more = isinstance(new, int | float) and isinstance(old, int | float) and new > old
    effect = "less" if more else "more"
    return f"keeps {_value(new)} of each pool (was {_value(old)}); others borrow {effect}."


def _floor(old: object, new: object) -> str:
    return f"lends all but {_value(new)} of each pool while idle (was {_value(old)})."


_CLASS: dict[str, Callable[[object, object], str]] = {
    "deadlines.first_token_s": _seconds("waits for its first token at most"),
    "deadlines.between_tokens_s": _seconds("waits between tokens at most"),
    "deadlines.total_s": _seconds("ends after at most"),
    "caps.output_tokens": _cap,
    "reserve_ratio": _reserve,
    "floor_ratio": _floor,
}


def _said(text: str) -> Callable[[object, object], str]:
    return lambda old, new: f"{text.format(new=_value(new))} (was {_value(old)})."


def _backoff(text: str, unsaid: float) -> Callable[[object, object], str]:
    """Values that a document leaves out are the default."""

    def said(old: object, new: object) -> str:
        was, now = (_value(unsaid if value is None else value) for value in (old, new))
        return f"{text.format(new=now)} (was {was})."

    return said


_PLAIN: dict[str, Callable[[object, object], str]] = {
    "schema_version": _said("The document is of schema {new}"),
    "admission.default_class": _said("Requests that name no class are {new}"),
    "admission.caps.output_tokens": _said("A request ends at {new} output tokens"),
    "admission.caps.choices": _said("A request may ask for {new} choices"),
    "admission.estimate.bytes_per_token": lambda old, new: (
        f"Input is counted at {_bytes(new)} a token (was {_bytes(old)})."
    ),
    "routing.stale_after_s": _said("A replica silent for {new} s gets no work"),
    "routing.slow_start_s": lambda old, new: (
        f"A new replica gets its full share after {_value(_or(new, SLOW_START_S))} s"
        f" (was {_value(_or(old, SLOW_START_S))})."
    ),
    "failures.attempts": _said("A request is sent at most {new} times in all"),
    "failures.retry_budget.per_success": _said("Each success earns {new} of a resend"),
    "failures.retry_budget.burst": _said("At most {new} resends are saved up"),
    "failures.resend_before_output": lambda _old, new: (
        "A request lost before its first token is sent again (was: its caller gets an error)."
        if new
        else "A request lost before its first token is an error (was: sent again)."
    ),
    "failures.backoff.base_s": _backoff("A first resend waits up to {new} s", BACKOFF_BASE_S),
    "failures.backoff.max_s": _backoff("No resend waits longer than {new} s", BACKOFF_MAX_S),
    "failures.on_stream_loss": lambda _old, new: (
        "A lost stream goes on elsewhere from the text sent (was: ends with an error)."
        if new == "continue"
        else "A lost stream ends with an error (was: goes on elsewhere)."
    ),
}


def _takes(path: str, before: Flat, after: Flat) -> bool:
    if path in ("admission.caps.output_tokens", "admission.caps.choices", "failures.attempts"):
        return _tighter(after[path], before[path])
    if path == "failures.on_stream_loss":
        return after.get(path, "error") == "error"
    return path == "failures.resend_before_output" and not after[path]


def _outage(change: _Change) -> None:
    paths = change.below("outage.")
    if paths:
        old, new = (_outage_words(flat_) for flat_ in (change.before, change.after))
        is_closed = change.after.get("outage.store_away") == "closed"
        change.say(paths, f"Store away: {new} (was: {old}).", takes=is_closed)


def _outage_words(values: Flat) -> str:
    if values["outage.store_away"] == "closed":
        return "everything is refused"
    share, longest = values["outage.share_ratio"], values["outage.max_s"]
    return f"{_value(share)} of each limit for {_value(longest)} s"


def _workflow(change: _Change, kind: str) -> None:
    whose = "Tasks of other kinds" if kind == DEFAULT_KIND else f"{kind} tasks"
    otherwise = "no cap" if kind == DEFAULT_KIND else "as other kinds"
    for field, (may, unit) in _CAPS.items():
        path = f"workflows[{kind}].{field}"
        if path in change.left:
            old, new = change.before.get(path), change.after.get(path)
            said, was = (
                otherwise if one is None else f"{_value(one)} {unit}" for one in (new, old)
            )
            is_less = _tighter(_amount(new), _amount(old))
            change.say([path], f"{whose} {may} {said} (was {was}).", takes=is_less)


_CAPS = {
    "max_steps": ("may take", "calls"),
    "max_spend_usd": ("may spend", "USD"),
    "max_wall_s": ("may last", "s"),
    "max_repeats": ("may make the same call", "times"),
}


def _amount(value: object) -> object:
    return float(value) if isinstance(value, str) else value


def _or(value: object, unsaid: object) -> object:
    return unsaid if value is None else value


# -- values ---------------------------------------------------------------------------------------


def _tighter(new: object, old: object) -> bool:
    """Whether a bound went down; None is no bound of its own."""
    if not isinstance(new, int | float):
        return False
    return not isinstance(old, int | float) or new < old


def _names(value: object) -> set[str]:
    return set(value) if isinstance(value, tuple) else set()


def _tokens(value: object, none: str) -> str:
    return none if value is None else f"{value:,} tokens"


def _bytes(value: object) -> str:
    return "each model's own bytes" if value is None else f"{_value(value)} bytes"


def _value(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float) and value.is_integer():
        return f"{int(value):,}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)

"""Read a policy's plain values against its closed schema: every finding at once, defaults filled.

Unknown, misplaced and mistyped keys are refused with their path, the reason and the fix.
"""

import difflib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from routing.contracts.enums import FallbackWhen, WorkClass
from routing.contracts.hooks import MAX_DEADLINE_MS, MAX_USES, HookPoint
from routing.contracts.snapshot import MAX_TASK_S
from routing.decision.filters import SLOW_START_S
from routing.decision.workflow import MAX_REPEATS
from routing.policies.rules.document import (
    BACKOFF_BASE_S,
    BACKOFF_MAX_S,
    FLOOR_RATIO,
    SCHEMA_VERSION,
)

MAX_FINDINGS = 100  # a document that is wrong everywhere is not a policy; a person reads this
MAX_MODELS = 1000
MAX_ALIASES = 50
MAX_TARGETS = 50
MAX_WORKFLOWS = 100  # kinds of tasks
TASK_KIND = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,63}")
USD = re.compile(r"(?=.*[1-9])[0-9]{1,6}(\.[0-9]{1,9})?")  # above 0, exact in nano-dollars
MAX_FALLBACKS = 4  # each is estimated for every request of the model
MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}")
EVALUATION = re.compile(r"ev-[1-9][0-9]{0,17}")
SLUG = re.compile(r"[-a-zA-Z0-9_]{1,120}")
_REQUIRED = object()


class Level(StrEnum):
    """Whether a finding stops the document."""

    REFUSE = "refuse"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong where, and what to do. `rule` is stable and machine-readable."""

    level: Level
    path: str
    rule: str
    reason: str
    fix: str


@dataclass(frozen=True, slots=True)
class Number:
    """A number of a range."""

    least: float
    most: float
    is_integer: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """A text of a form; without a pattern, any of at most `longest` characters."""

    pattern: re.Pattern[str] | None = None
    longest: int = 400


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A list of like items."""

    item: "Node"
    most: int


@dataclass(frozen=True, slots=True)
class Named:
    """A map from names to like items."""

    item: "Node"
    pattern: re.Pattern[str]
    most: int
    least: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """A map with a closed set of keys. `note` is understood in every one."""

    fields: "Mapping[str, tuple[Node, object]]"
    note: Text = field(default_factory=Text)


Node = Number | Text | Choice | Flag | Listed | Named | Group


def _class_group(first_token_s: float, between_tokens_s: float) -> Group:
    deadlines = Group(
        {
            "first_token_s": (Number(0.1, 86_400), first_token_s),
            "between_tokens_s": (Number(0.1, 3600), between_tokens_s),
            "total_s": (Number(1, 86_400), 600.0),
        }
    )
    caps = Group({"output_tokens": (Number(1, 10_000_000, is_integer=True), None)})
    return Group(
        {
            "deadlines": (deadlines, {}),
            "caps": (caps, {}),
            "reserve_ratio": (Number(0, 0.9), 0.0),
            "floor_ratio": (Number(0.01, 0.3), FLOOR_RATIO),
        }
    )


_TARGET = Group(
    {
        "pool": (Text(SLUG), _REQUIRED),
        "order": (Number(1, 9, is_integer=True), 1),
        "weight": (Number(0, 10), 1.0),
        "adapter": (Text(MODEL_NAME), ""),
    }
)
_FALLBACK = Group(
    {
        "model": (Text(MODEL_NAME), _REQUIRED),
        "when": (Listed(Choice(tuple(FallbackWhen)), len(FallbackWhen)), list(FallbackWhen)),
        "evaluation": (Text(EVALUATION), _REQUIRED),
        "headroom_ratio": (Number(0.01, 0.5), _REQUIRED),
    }
)
_MODEL = Group(
    {
        "aliases": (Listed(Text(MODEL_NAME), MAX_ALIASES), []),
        "targets": (Listed(_TARGET, MAX_TARGETS), _REQUIRED),
        "context_tokens": (Number(1, 100_000_000, is_integer=True), None),
        "fallbacks": (Listed(_FALLBACK, MAX_FALLBACKS), []),
    }
)
# First-token deadlines: ten times the default objective of the class, 600 s for batch.
_CLASSES = Group(
    {
        WorkClass.INTERACTIVE.value: (_class_group(5.0, 5.0), {}),
        WorkClass.STANDARD.value: (_class_group(20.0, 5.0), {}),
        WorkClass.BATCH.value: (_class_group(600.0, 60.0), {}),
    }
)
_ADMISSION = Group(
    {
        "default_class": (Choice(tuple(WorkClass)), WorkClass.STANDARD.value),
        "caps": (
            Group(
                {
                    "output_tokens": (Number(1, 10_000_000, is_integer=True), 4096),
                    "choices": (Number(1, 128, is_integer=True), 4),
                }
            ),
            {},
        ),
        "estimate": (Group({"bytes_per_token": (Number(1, 8), None)}), {}),
    }
)
_FAILURES = Group(
    {
        "attempts": (Number(1, 3, is_integer=True), 2),
        "retry_budget": (
            Group({"per_success": (Number(0, 1), 0.1), "burst": (Number(0, 1000), 10.0)}),
            {},
        ),
        "resend_before_output": (Flag(), False),
        "on_stream_loss": (Choice(("error", "continue")), "error"),
        "backoff": (
            Group(
                {"base_s": (Number(0, 5), BACKOFF_BASE_S), "max_s": (Number(0, 30), BACKOFF_MAX_S)}
            ),
            {},
        ),
    }
)
_ROUTING = Group(
    {"stale_after_s": (Number(1, 30), 3.0), "slow_start_s": (Number(0, 600), SLOW_START_S)}
)
_OUTAGE = Group(
    {
        "store_away": (Choice(("degraded", "closed")), "degraded"),
        "share_ratio": (Number(0, 1), 0.8),
        "max_s": (Number(5, 900), 300.0),
    }
)
_HOOK = Group(
    {
        "hook": (Text(SLUG), _REQUIRED),
        "at": (Choice(tuple(HookPoint)), _REQUIRED),
        "deadline_ms": (Number(1, MAX_DEADLINE_MS, is_integer=True), 200),
        "on_failure": (Choice(("refuse", "pass")), "refuse"),
        "classes": (Listed(Choice(tuple(WorkClass)), len(WorkClass)), None),
    }
)
_WORKFLOW = Group(
    {
        "max_steps": (Number(1, 1_000_000, is_integer=True), None),
        "max_spend_usd": (Text(USD), None),
        "max_wall_s": (Number(1, MAX_TASK_S, is_integer=True), None),
        "max_repeats": (Number(1, MAX_REPEATS, is_integer=True), None),
    }
)
SCHEMA = Group(
    {
        "schema_version": (
            Number(SCHEMA_VERSION, SCHEMA_VERSION, is_integer=True),
            SCHEMA_VERSION,
        ),
        "name": (Text(re.compile(r"[-a-zA-Z0-9_]{1,63}")), _REQUIRED),
        "models": (Named(_MODEL, MODEL_NAME, MAX_MODELS, least=1), _REQUIRED),
        "classes": (_CLASSES, {}),
        "admission": (_ADMISSION, {}),
        "routing": (_ROUTING, {}),
        "failures": (_FAILURES, {}),
        "outage": (_OUTAGE, {}),
        "hooks": (Listed(_HOOK, MAX_USES), []),
        "workflows": (Named(_WORKFLOW, TASK_KIND, MAX_WORKFLOWS), {}),
    }
)
# Words of other products, and what says the same here.
_KNOWN_ELSEWHERE = {
    "num_retries": "Here `attempts` = retries + 1.",
    "max_retries": "Here `attempts` = retries + 1.",
    "timeout": "Say which: classes.<class>.deadlines.{first_token_s, between_tokens_s, total_s}.",
    "rpm": "Limits are not in the policy: set them for a tenant or key.",
    "tpm": "Limits are not in the policy: set them for a tenant or key.",
    "price": "Prices are not in the policy: add a row to the price book.",
}


class Reader:
    """Collects findings while it reads; stops noting them after `MAX_FINDINGS`."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def refuse(self, path: str, rule: str, reason: str, fix: str) -> None:
        """Note a finding that stops the document."""
        if len(self.findings) < MAX_FINDINGS:
            self.findings.append(Finding(Level.REFUSE, path, rule, reason, fix))

    def read(self, node: Node, value: object, path: str) -> object:
        """The value with defaults, as far as it can be read."""
        match node:
            case Group():
                return self._group(node, value, path)
            case Named():
                return self._named(node, value, path)
            case Listed():
                return self._listed(node, value, path)
            case _:
                self._scalar(node, value, path)
                return value

    def _group(self, node: Group, value: object, path: str) -> object:
        if not isinstance(value, dict):
            self._wrong_type(path, value, "a map")
            return {}
        for key in value:
            if key not in node.fields and key != "note":
                self._unknown(node, str(key), path)
        found: dict[str, object] = {}
        note = value.get("note", "")
        self._scalar(node.note, note, join(path, "note"))
        found["note"] = note
        for key, (child, default) in node.fields.items():
            place = join(path, key)
            if key in value and not (value[key] is None and default is None):
                found[key] = self.read(child, value[key], place)
            elif default is _REQUIRED:
                self.refuse(place, "required", "is missing.", "Say it.")
            elif isinstance(child, Group):
                found[key] = self.read(child, default, place)
            else:
                found[key] = default
        return found

    def _named(self, node: Named, value: object, path: str) -> object:
        if not isinstance(value, dict):
            self._wrong_type(path, value, "a map from names")
            return {}
        if not node.least <= len(value) <= node.most:
            self.refuse(
                path, "count", f"has {len(value)} entries.", f"Use {node.least} to {node.most}."
            )
        found = {}
        for key, item in list(value.items())[: node.most]:
            place = join(path, str(key))
            if not node.pattern.fullmatch(str(key)):
                self.refuse(place, "name", f"{key!r} is not a name.", _name_fix(node.pattern))
            found[str(key)] = self.read(node.item, item, place)
        return found

    def _listed(self, node: Listed, value: object, path: str) -> object:
        if not isinstance(value, list):
            self._wrong_type(path, value, "a list")
            return []
        if len(value) > node.most:
            self.refuse(path, "count", f"has {len(value)} items.", f"At most {node.most}.")
        return [
            self.read(node.item, item, f"{path}[{at}]")
            for at, item in enumerate(value[: node.most])
        ]

    def _scalar(self, node: Node, value: object, path: str) -> None:
        match node:
            case Number():
                self._number(node, value, path)
            case Choice():
                if not isinstance(value, str) or value not in node.words:
                    self.refuse(
                        path,
                        "choice",
                        f"{value!r} is none of the words.",
                        f"Use one of {', '.join(node.words)}.",
                    )
            case Flag():
                if not isinstance(value, bool):
                    self._wrong_type(path, value, "true or false")
            case Text():
                self._text(node, value, path)

    def _number(self, node: Number, value: object, path: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._wrong_type(path, value, "a number")
        elif not math.isfinite(value) or not node.least <= value <= node.most:
            side = "below" if value < node.least else "above"
            bound = node.least if value < node.least else node.most
            self.refuse(
                path,
                "range",
                f"{value:g} is {side} {bound:g}.",
                f"Use {node.least:g}-{node.most:g}.",
            )
        elif node.is_integer and not isinstance(value, int):
            self.refuse(path, "type", f"{value!r} is not whole.", "Use a whole number.")

    def _text(self, node: Text, value: object, path: str) -> None:
        if not isinstance(value, str):
            self._wrong_type(path, value, "text")
        elif node.pattern is not None and not node.pattern.fullmatch(value):
            what = "an amount" if node.pattern is USD else "a name"
            self.refuse(path, "name", f"{value!r} is not {what}.", _name_fix(node.pattern))
        elif len(value) > node.longest:
            self.refuse(path, "length", "is too long.", f"At most {node.longest} characters.")

    def _wrong_type(self, path: str, value: object, wanted: str) -> None:
        shown = "nothing" if value is None else type(value).__name__
        self.refuse(path or "(document)", "type", f"is {shown}.", f"Use {wanted}.")

    def _unknown(self, node: Group, key: str, path: str) -> None:
        place = join(path, key)
        homes = [home for home in _homes(SCHEMA, "", key) if home != path]
        if key in _KNOWN_ELSEWHERE:
            self.refuse(place, "unknown", "unknown.", _KNOWN_ELSEWHERE[key])
        elif homes:
            where = homes[0] or "the top level"
            self.refuse(place, "misplaced", f"belongs to {where}.", "Move it.")
        else:
            near = difflib.get_close_matches(key, list(node.fields), n=1)
            fix = f"Did you mean {near[0]}?" if near else "Remove it."
            self.refuse(place, "unknown", "unknown.", fix)


def join(path: str, key: str) -> str:
    """The path of a key below a path."""
    return f"{path}.{key}" if path else key


def _homes(node: Node, path: str, key: str) -> Iterator[str]:
    """Paths of the groups that know a key; names of a map are shown as `<name>`."""
    if isinstance(node, Group):
        if key in node.fields:
            yield path
        for name, (child, _) in node.fields.items():
            yield from _homes(child, join(path, name), key)
    elif isinstance(node, Named):
        yield from _homes(node.item, join(path, "<name>"), key)
    elif isinstance(node, Listed):
        yield from _homes(node.item, f"{path}[]", key)


def _name_fix(pattern: re.Pattern[str]) -> str:
    if pattern is USD:
        return 'Dollars above 0 as text, such as "2.00"; at most 6 digits, then 9 after the point.'
    if pattern in (MODEL_NAME, TASK_KIND):
        return "Letters, digits and . _ : / @ + - only, starting with a letter or digit."
    if pattern is EVALUATION:
        return "Name a record of the evaluations page, such as ev-12."
    return "Letters, digits, - and _ only."

"""Read plain values against the policy's closed schema: every finding at once, defaults filled.

Unknown, misplaced and mistyped keys are refused with their path, the reason and the fix.
"""

import difflib
import math
import re
from collections.abc import Iterator

from routing.policies.rules.findings import Finding, Level
from routing.policies.rules.nodes import (
    REQUIRED,
    Choice,
    Flag,
    Group,
    Listed,
    Named,
    Node,
    Number,
    Text,
)
from routing.policies.rules.schema import EVALUATION, MODEL_NAME, SCHEMA, TASK_KIND, USD

MAX_FINDINGS = 100  # a document that is wrong everywhere is not a policy; a person reads this
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
            elif default is REQUIRED:
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

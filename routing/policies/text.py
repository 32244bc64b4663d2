"""A policy document as text: reading what a person typed, and showing what changed."""

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from console.characters import first_refused, said_of
from console.errors import InvalidInput
from routing.policies.rules.document import from_plain, in_order
from routing.policies.rules.words import Sentence, words

MAX_CHARS = 256 * 1024
MAX_DIFF_LINES = 2000  # more is not read by a person; the rest is counted
CONTEXT_LINES = 2


@dataclass(frozen=True, slots=True)
class DiffLine:
    """A line of a diff. `kind` is `add`, `remove`, `same` or `skip` (hidden lines, counted)."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """What changed: in sentences of effect, and line by line, notes included."""

    words: tuple[Sentence, ...]
    lines: list[DiffLine]


def compare(before: dict[str, object] | None, after: dict[str, object]) -> Comparison:
    """From one complete document to another; without the first, no lines are shown."""
    sentences = words(from_plain(before) if before else None, from_plain(after))
    return Comparison(sentences, diff(in_order(before), in_order(after)) if before else [])


def to_text(document: object) -> str:
    """The document as indented JSON, keys in their own order."""
    return json.dumps(document, indent=2, ensure_ascii=False)


def parse(text: str) -> dict[str, object]:
    """The object in a JSON text; raises `InvalidInput` naming the line, or a repeated key."""
    if len(text) > MAX_CHARS:
        raise InvalidInput(f"A policy has at most {MAX_CHARS:,} characters.", field="document")
    try:
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise InvalidInput(
            f"Not JSON at line {error.lineno}, column {error.colno}: {error.msg}.",
            field="document",
            hint="Documents are JSON; the examples in the documentation are YAML, to be short.",
        ) from error
    except RecursionError as error:
        raise InvalidInput("Nested too deeply.", field="document") from error
    if not isinstance(value, dict):
        raise InvalidInput("A policy is a JSON object.", field="document")
    if refused := first_refused(value):
        where = refused[0] or "a name"
        raise InvalidInput(f"{where}: {said_of(refused[1])}", field="document")
    return value


def parse_any(text: str) -> object:
    """What a saved draft holds: its object, or the text itself where it is no JSON object yet."""
    try:
        return parse(text)
    except InvalidInput:
        return text


def diff(before: object, after: object) -> list[DiffLine]:
    """What changed between two documents, with little context; hidden lines are counted."""
    return diff_texts(to_text(before), to_text(after))


def diff_texts(before: str, after: str) -> list[DiffLine]:
    """The same of two texts, which need not be JSON."""
    old, new = before.splitlines(), after.splitlines()
    matcher = difflib.SequenceMatcher(a=old, b=new, autojunk=False)
    lines: list[DiffLine] = []
    shown_to = 0
    for group in matcher.get_grouped_opcodes(CONTEXT_LINES):
        lines += _hidden(group[0][1] - shown_to)
        for tag, a_from, a_to, b_from, b_to in group:
            if tag == "equal":
                lines += [DiffLine("same", line) for line in old[a_from:a_to]]
            else:
                lines += [DiffLine("remove", line) for line in old[a_from:a_to]]
                lines += [DiffLine("add", line) for line in new[b_from:b_to]]
        shown_to = group[-1][2]
    if lines:
        lines += _hidden(len(old) - shown_to)
    return lines[:MAX_DIFF_LINES] + _hidden(len(lines) - MAX_DIFF_LINES)


def _hidden(count: int) -> list[DiffLine]:
    return [DiffLine("skip", f"{count:,} more lines")] if count > 0 else []


def _once(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise InvalidInput(f"The key {key!r} is said twice.", field="document")
        found[key] = value
    return found


def _no_constant(name: str) -> object:
    raise InvalidInput(f"{name} is not a number of JSON.", field="document")

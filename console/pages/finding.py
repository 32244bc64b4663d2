"""Pages and acts by what somebody types: pure, over what the person may open."""

from collections.abc import Iterable
from dataclasses import dataclass

NOTHING = 9  # the rank of a name that does not match


@dataclass(frozen=True, slots=True)
class Hit:
    """One thing that can be opened; `note` says what kind it is, or which one."""

    label: str
    url: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class HitGroup:
    """Hits of one kind."""

    label: str
    hits: tuple[Hit, ...]


def best(hits: Iterable[Hit], text: str, most: int) -> tuple[Hit, ...]:
    """The hits whose label or note holds every typed word, best first, at most `most`.

    A label that begins with the text is before one with a word that does, that before one that
    holds it anywhere, that before a match of the note; within a rank the given order stays.
    """
    words = text.casefold().split()
    ranked = [(_rank(one, words), at, one) for at, one in enumerate(hits)]
    ranked = sorted((row for row in ranked if row[0] != NOTHING), key=lambda row: row[:2])
    return tuple(one for _, _, one in ranked[:most])


def _rank(hit: Hit, words: list[str]) -> int:
    label, note = hit.label.casefold(), hit.note.casefold()
    if not all(word in label or word in note for word in words):
        return NOTHING
    if label.startswith(" ".join(words)):
        return 0
    if all(any(part.startswith(word) for part in label.split()) for word in words):
        return 1
    return 2 if all(word in label for word in words) else 3

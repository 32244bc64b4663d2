"""Characters that no text people send may hold.

NUL and halves of surrogate pairs, which PostgreSQL cannot store; the other control characters,
which steer terminals and break files (tab and line ends may stay); and those that turn the reading
direction around, by which a name is shown as another one (Unicode TR 36, bidirectional spoofing).
"""

import re
from typing import Any

_REFUSED = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def refused_in(text: str) -> str:
    """The first character that may not stand in `text`, as `U+202E`; empty if all may."""
    found = _REFUSED.search(text)
    return f"U+{ord(found[0]):04X}" if found else ""


def said_of(character: str) -> str:
    """The refusal of a text with that character, to be read by who sent it."""
    return f"Holds the character {character}, which cannot be shown: leave it out."


def first_refused(value: Any) -> tuple[str, str] | None:
    """Path and character of the first such text in a JSON value, names of members included.

    A bad name is told at the object that holds it, since it cannot be shown itself.
    """
    waiting = [("", value)]
    while waiting:
        path, found = waiting.pop()
        if isinstance(found, dict):
            for name in found:
                if character := refused_in(name):
                    return path, character
            waiting += [
                (f"{path}.{name}" if path else name, found[name]) for name in reversed(found)
            ]
        elif isinstance(found, list):
            waiting += [(path, one) for one in reversed(found)]
        elif isinstance(found, str) and (character := refused_in(found)):
            return path, character
    return None

"""On which line of a JSON text each path of a finding stands."""

import re
from json.decoder import scanstring  # type: ignore[attr-defined]  # the parser's own string reader

_BLANK = re.compile(r"\s*")
_SCALAR = re.compile(r"[^\s,\]}]+")
MAX_DEPTH = 100  # of nesting; deeper text is no policy


def lines_of(text: str) -> dict[str, int]:
    """Line (from 1) of each value by its path, such as `models.x.targets[0].pool`.

    `text` is JSON that was parsed before; for anything else the result is what could be followed.
    """
    found: dict[str, int] = {}
    try:
        _Scan(text, found).value(0, "", 0)
    except (ValueError, IndexError):
        return found
    return found


def line_of(path: str, lines: dict[str, int]) -> int | None:
    """Line of a path, or of the nearest value around it; None when nothing of it is there."""
    while path:
        if path in lines:
            return lines[path]
        cut = max(path.rfind("."), path.rfind("["))
        path = path[:cut] if cut > 0 else ""
    return lines.get("")


class _Scan:
    """Walks a text once; `found` gets each value's line."""

    def __init__(self, text: str, found: dict[str, int]) -> None:
        self._text = text
        self._found = found
        self._seen = (0, 1)  # a position, and its line: the walk only goes forward

    def value(self, at: int, path: str, depth: int) -> int:
        """Position behind the value that begins at or after `at`."""
        if depth > MAX_DEPTH:
            raise ValueError("nested too deeply")
        at = self._skip(at)
        self._found.setdefault(path, self._line(at))
        match self._text[at]:
            case "{":
                return self._members(at + 1, path, depth)
            case "[":
                return self._items(at + 1, path, depth)
            case '"':
                return int(scanstring(self._text, at + 1)[1])
            case _:
                scalar = _SCALAR.match(self._text, at)
                if scalar is None:
                    raise ValueError("no value")
                return scalar.end()

    def _members(self, at: int, path: str, depth: int) -> int:
        at = self._skip(at)
        while self._text[at] != "}":
            key, at = scanstring(self._text, at + 1)
            at = self._skip(at)
            at = self._skip(self.value(at + 1, f"{path}.{key}" if path else key, depth + 1))
            if self._text[at] == ",":
                at = self._skip(at + 1)
        return at + 1

    def _items(self, at: int, path: str, depth: int) -> int:
        at, place = self._skip(at), 0
        while self._text[at] != "]":
            at = self._skip(self.value(at, f"{path}[{place}]", depth + 1))
            place += 1
            if self._text[at] == ",":
                at = self._skip(at + 1)
        return at + 1

    def _line(self, at: int) -> int:
        before, line = self._seen
        self._seen = (at, line + self._text.count("\n", before, at))
        return self._seen[1]

    def _skip(self, at: int) -> int:
        blank = _BLANK.match(self._text, at)
        return blank.end() if blank else at

"""The kinds of values that a closed schema is made of."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

REQUIRED = object()  # instead of a default


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

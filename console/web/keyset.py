"""Keyset paging over an index, for pages and REST.

A cursor is the order key of the last row shown, so a page costs the same at any depth and rows that
arrive meanwhile move nothing. Cursors are opaque to callers but not secret: they select inside a
query that is already limited to what the caller may see.
"""

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.core.exceptions import FieldDoesNotExist, ValidationError
from django.db.models import Model, Q, QuerySet

from console.errors import MAX_CURSOR_CHARS, BadCursor, InvalidInput

PAGE_SIZES = (50, 100, 200)
DEFAULT_LIMIT = PAGE_SIZES[0]
MAX_LIMIT = PAGE_SIZES[-1]  # bounds memory and response size of one page
MAX_ID_DIGITS = 18  # below the largest bigint

M = TypeVar("M", bound=Model)
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Rows in order, and the cursor of the next page (None: these are the last)."""

    rows: tuple[T, ...]
    next_after: str | None
    limit: int = DEFAULT_LIMIT

    def map(self, convert: Callable[[T], R]) -> "Page[R]":
        """The same page of converted rows."""
        return Page(tuple(convert(row) for row in self.rows), self.next_after, self.limit)


def parse_limit(text: str | None, *, default: int = DEFAULT_LIMIT, most: int = MAX_LIMIT) -> int:
    """Page size from a query string; raises `InvalidInput` unless it is 1..`most`."""
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= most):
        raise InvalidInput(
            f"limit must be a whole number from 1 to {most}.",
            field="limit",
            hint=f"Use at most {most} rows a page and follow the next cursor.",
        )
    return int(text)


def parse_id(text: str | None, field: str = "after") -> int | None:
    """Row id from a query string, None if absent; raises `InvalidInput` for anything else."""
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_ID_DIGITS):
        raise InvalidInput(f"{field}: this is not a number of ours.", field=field)
    return int(text)


def cut(rows: Sequence[T], limit: int, key: Callable[[T], object]) -> Page[T]:
    """Page of a selector that was asked for `limit + 1` rows; `key` is what it pages by."""
    shown = tuple(rows[:limit])
    return Page(shown, str(key(shown[-1])) if len(rows) > limit else None, limit)


def encode_cursor(values: Iterable[object]) -> str:
    """Opaque text of a row's order key."""
    raw = json.dumps([str(value) for value in values], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def decode_cursor(text: str, parts: int) -> list[str]:
    """Inverse of `encode_cursor`; raises `InvalidInput` for anything it did not make."""
    if len(text) > MAX_CURSOR_CHARS:
        raise BadCursor()
    try:
        values = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, binascii.Error, UnicodeError) as error:
        raise BadCursor() from error
    is_ours = isinstance(values, list) and len(values) == parts
    if not is_ours or not all(isinstance(value, str) for value in values):
        raise BadCursor()
    return [str(value) for value in values]


def take(
    queryset: QuerySet[M, M], *, order: Sequence[str], after: str | None, limit: int
) -> Page[M]:
    """One page of `queryset` by `order`: field names, all ascending or all with `-`.

    The last field makes the order total (an id), and an index has these fields in this order.
    One query; raises `InvalidInput` for a cursor that was not made for this order.
    """
    names = [name.removeprefix("-") for name in order]
    is_descending = order[0].startswith("-")
    if after:
        values = decode_cursor(after, len(names))
        queryset = queryset.filter(_beyond(queryset.model, names, values, descending=is_descending))
    rows = list(queryset.order_by(*order)[: limit + 1])
    next_after = None
    if len(rows) > limit:
        next_after = encode_cursor(getattr(rows[limit - 1], name) for name in names)
    return Page(tuple(rows[:limit]), next_after, limit)


def _beyond(model: type[Model], names: list[str], texts: list[str], *, descending: bool) -> Q:
    values = [_value(model, name, text) for name, text in zip(names, texts, strict=True)]
    step = "lt" if descending else "gt"
    beyond = Q(**{f"{names[-1]}__{step}": values[-1]})
    for name, value in list(zip(names, values, strict=True))[-2::-1]:
        # the first condition alone bounds the index scan; the rest breaks ties
        beyond = Q(**{f"{name}__{step}e": value}) & (
            Q(**{f"{name}__{step}": value}) | (Q(**{name: value}) & beyond)
        )
    return beyond


def _value(model: type[Model], name: str, text: str) -> Any:
    try:
        field = model._meta.pk if name == "pk" else model._meta.get_field(name)
        value = field.to_python(text) if hasattr(field, "to_python") else None
    except (ValidationError, FieldDoesNotExist, ValueError, OverflowError) as error:
        raise BadCursor() from error
    if value is None:
        raise BadCursor()
    return value


__all__ = [
    "DEFAULT_LIMIT",
    "MAX_LIMIT",
    "PAGE_SIZES",
    "Page",
    "cut",
    "decode_cursor",
    "encode_cursor",
    "parse_id",
    "parse_limit",
    "take",
]

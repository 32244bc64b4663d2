"""The one way in which rows reach the ledger's statements: a cursor and a JSON parameter."""

from collections.abc import Sequence
from typing import Any, LiteralString, Protocol

import msgspec


class Cursor(Protocol):
    """What psycopg's and Django's cursors have in common."""

    def execute(self, query: LiteralString, params: Sequence[Any] | None = None, /) -> object:
        """Run one statement."""

    def fetchall(self) -> list[Any]:
        """All rows of the answer."""

    def fetchone(self) -> Any:
        """The next row, or None."""


def as_json(rows: object) -> str:
    """Rows as one parameter, read by the table's own row type."""
    return msgspec.json.encode(rows).decode()

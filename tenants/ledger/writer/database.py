"""The writer's own PostgreSQL connection: one, outside every pool.

A console whose pool is exhausted cannot hold the ledger up, and a session lock (who rebuilds) lives
exactly as long as this connection.
"""

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Self

import psycopg
from django.db import connections

from tenants.ledger.cursors import Cursor

APPLICATION_NAME = "headrace-ledger"
# One rebuild at a time in all writers together, for economy only: epochs make two of them safe.
_REBUILD_LOCK = 0x4852_4C42  # "HRLB"

# The server ends a statement after 15 s; one that says nothing for longer hangs, or its way does.
ANSWER_LIMIT_S = 20.0


class _BoundedConnection(psycopg.Connection[Any]):
    """No single answer is awaited for longer than `ANSWER_LIMIT_S`."""

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        """As psycopg's. Raises `OperationalError` and closes the connection at the limit."""
        try:
            return super().wait(_until(gen, time.monotonic() + ANSWER_LIMIT_S), *args, **options)
        except _NoAnswer:
            self.close()
            raise


class _NoAnswer(psycopg.OperationalError):
    """What was asked may have been done, or not: position and rows commit together."""


def _until(gen: Generator[Any, Any, Any], end_s: float) -> Generator[Any, Any, Any]:
    """The same steps; psycopg sends 0 when nothing was to be read for 0.1 s."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > end_s:
                raise _NoAnswer(f"no answer within {ANSWER_LIMIT_S:.0f} s")
            wanted = gen.send(ready)
    except StopIteration as stop:
        return stop.value


class Database:
    """A connection opened when first needed and dropped after any failure."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self._parameters = parameters
        self._connection: psycopg.Connection[Any] | None = None

    @classmethod
    def from_settings(cls) -> Self:
        """With Django's database address and time limits, but not its pool."""
        settings = connections["default"].settings_dict
        options = {k: v for k, v in settings["OPTIONS"].items() if k != "pool"}
        return cls(
            {
                **options,
                "dbname": settings["NAME"],
                "user": settings["USER"],
                "password": settings["PASSWORD"],
                "host": settings["HOST"],
                "port": settings["PORT"] or None,
                "application_name": APPLICATION_NAME,
                "autocommit": True,
            }
        )

    @contextmanager
    def transaction(self) -> Iterator[Cursor]:
        """A transaction: committed when the block ends well, else rolled back.

        Raises `psycopg.Error`; after an operational one the next use connects anew.
        """
        connection = self._connect()
        try:
            with connection.transaction(), connection.cursor() as cursor:
                yield cursor
        except (psycopg.OperationalError, psycopg.InterfaceError):
            self.close()
            raise

    def try_lock_rebuild(self) -> bool:
        """Become the one that rebuilds; False when another writer is."""
        with self.transaction() as cursor:
            cursor.execute("SELECT pg_try_advisory_lock(%s)", [_REBUILD_LOCK])
            return bool(cursor.fetchone()[0])

    def unlock_rebuild(self) -> None:
        """Let another writer rebuild."""
        with self.transaction() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [_REBUILD_LOCK])

    def close(self) -> None:
        """Drop the connection, and with it every lock."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connect(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = _BoundedConnection.connect(**self._parameters)
        return self._connection

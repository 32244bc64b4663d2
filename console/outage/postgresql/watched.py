"""Connections to PostgreSQL that nobody waits on for ever.

The server's own time limits do not help against a server that hangs: it cannot send the error. So
a wait for it ends as soon as the watch says that it does not answer; the connection is dropped.
"""

import os
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg

from console.outage.watch import DATABASE_SILENT_AFTER_S, Watch

T = TypeVar("T")

CONNECT_TIMEOUT_S = 3
VANISHED_AFTER_MS = 5000  # a server whose machine is gone: no reply, and no refusal either
_BUSY = ("too many clients", "remaining connection slots")


class _Ping:
    """The shortest question on a connection of its own, kept open."""

    def __init__(self) -> None:
        self._connection: psycopg.Connection | None = None

    def __call__(self) -> None:
        """Return when it has answered. Raises `psycopg.Error`."""
        try:
            if self._connection is None:
                self._connection = psycopg.connect(
                    os.environ["DATABASE_URL"],
                    autocommit=True,
                    connect_timeout=CONNECT_TIMEOUT_S,
                    tcp_user_timeout=VANISHED_AFTER_MS,
                    application_name="headrace-watch",
                )
            self._connection.execute("SELECT 1")
        except psycopg.Error as error:
            self._drop()
            if not any(words in str(error) for words in _BUSY):  # full is not away
                raise

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


database_watch = Watch("PostgreSQL", _Ping(), (psycopg.Error,), DATABASE_SILENT_AFTER_S)


class WatchedConnection(psycopg.Connection[Any]):
    """A connection whose waits end when the database is known not to answer."""

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        """As psycopg's. Raises `OperationalError` and closes the connection then."""
        if not database_watch.is_watching:
            return super().wait(gen, *args, **options)
        try:
            return super().wait(_watched(gen), *args, **options)
        except DatabaseSilent:
            self.close()
            raise


class DatabaseSilent(psycopg.OperationalError):
    """The wait was given up: what was asked may have been done, or not."""


def _watched(gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    """The same steps; psycopg sends 0 when nothing was to be read for 0.1 s."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and (why := database_watch.why_away):
                raise DatabaseSilent(why)
            wanted = gen.send(ready)
    except StopIteration as stop:
        value: T = stop.value
        return value

"""Django's PostgreSQL backend, which asks for no connection while the database is known to be away.

Named by `ENGINE` in the settings: waiting for the pool would take seconds for every request.
"""

from typing import Any

from django.db.backends.postgresql import base
from django.db.utils import OperationalError

from console.outage.postgresql.watched import database_watch


class DatabaseWrapper(base.DatabaseWrapper):
    """One thread's connection."""

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        """A connection of the pool. Raises `OperationalError` at once while it is away."""
        if why := database_watch.why_away:
            raise OperationalError(why)
        return super().get_new_connection(conn_params)

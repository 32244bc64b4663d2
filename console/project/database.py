"""`DATABASE_URL` to Django's settings:

bounded pool, and time limits on every statement, lock and idle transaction.
"""

import os
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

from console.outage.postgresql.watched import (
    CONNECT_TIMEOUT_S,
    VANISHED_AFTER_MS,
    WatchedConnection,
)

# One process may hold this many connections; the supervisor sets it per process so that all of them
# together stay below the server's limit (console.supervisor.processes).
POOL_MAX = int(os.environ.get("HEADRACE_DB_POOL_MAX", "4"))
POOL_WAIT_S = 2.5  # a page answers within 3 s, also that it found no connection
STATEMENT_TIMEOUT_MS = int(os.environ.get("HEADRACE_DB_STATEMENT_TIMEOUT_MS", "15000"))
LOCK_TIMEOUT_MS = 5000
IDLE_IN_TRANSACTION_TIMEOUT_MS = 30000


def databases_from_url(url: str) -> dict[str, dict[str, Any]]:
    """Settings for `postgresql://user:password@host:port/name?option=value`.

    Raises `ImproperlyConfigured` for any other scheme.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("postgres", "postgresql"):
        raise ImproperlyConfigured("DATABASE_URL must start with postgresql://")
    limits = (
        f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c lock_timeout={LOCK_TIMEOUT_MS} "
        f"-c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION_TIMEOUT_MS}"
    )
    return {
        "default": {
            "ENGINE": "console.outage.postgresql",
            "NAME": unquote(parts.path.lstrip("/")),
            "USER": unquote(parts.username or ""),
            "PASSWORD": unquote(parts.password or ""),
            "HOST": parts.hostname or "",
            "PORT": str(parts.port or 5432),
            "CONN_HEALTH_CHECKS": True,
            "OPTIONS": {
                **dict(parse_qsl(parts.query)),
                "options": limits,
                "connect_timeout": CONNECT_TIMEOUT_S,
                "tcp_user_timeout": VANISHED_AFTER_MS,
                "pool": {
                    "connection_class": WatchedConnection,
                    "min_size": 0,
                    "max_size": POOL_MAX,
                    "timeout": POOL_WAIT_S,
                    "max_idle": 120,
                },
            },
        }
    }

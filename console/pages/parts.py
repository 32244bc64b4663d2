"""What PostgreSQL and the store say to this very process, over its own pools.

Each read is short and fails alone: a part that does not answer is None, and the page says so.
"""

import logging
from dataclasses import dataclass

from django.conf import settings
from django.db import DatabaseError, connection
from redis.exceptions import RedisError

from console.web.store import store

logger = logging.getLogger(__name__)

GONE_AFTER_S = 10.0  # reports come every 1 to 2 s

_DATABASE_FACTS = """
SELECT current_setting('server_version'), current_setting('max_connections')::int,
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
       (SELECT count(*) FROM pg_stat_activity
         WHERE state = 'idle in transaction' AND datname = current_database()),
       pg_database_size(current_database()),
       current_setting('statement_timeout'), current_setting('lock_timeout'),
       current_setting('idle_in_transaction_session_timeout')
"""
_DATABASE_NAMES = (
    "version", "max_connections", "connections", "idle_in_transaction", "size_bytes",
    "statement_timeout", "lock_timeout", "idle_in_transaction_timeout",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """PostgreSQL as this process sees it. Time limits are the server's own words (`15s`)."""

    version: str
    max_connections: int
    connections: int
    idle_in_transaction: int
    size_bytes: int
    statement_timeout: str
    lock_timeout: str
    idle_in_transaction_timeout: str
    pool_max: int
    pool_wait_s: float


def database_facts() -> DatabaseFacts | None:
    """One query; None if PostgreSQL does not answer."""
    pool = settings.DATABASES["default"]["OPTIONS"]["pool"]
    try:
        with connection.cursor() as cursor:
            cursor.execute(_DATABASE_FACTS)
            row = cursor.fetchone()
    except DatabaseError as error:
        logger.warning("PostgreSQL did not answer: %s", error)
        return None
    if row is None:
        return None
    facts = dict(zip(_DATABASE_NAMES, row, strict=True))
    return DatabaseFacts(**facts, pool_max=pool["max_size"], pool_wait_s=float(pool["timeout"]))


def is_database_up() -> bool:
    """Whether PostgreSQL answers the shortest question."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except DatabaseError as error:
        logger.warning("PostgreSQL did not answer: %s", error)
        return False
    return True


def is_store_up() -> bool:
    """Whether the store answers a ping."""
    try:
        return bool(store().ping())
    except RedisError as error:
        logger.warning("the store did not answer: %s", error)
        return False

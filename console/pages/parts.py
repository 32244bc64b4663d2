"""What the installation's own parts say: PostgreSQL, the store, and the supervisor's list.

Each read is short and fails alone: a part that does not answer is None, and the page says so.
"""

import json
import logging
import time
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import DatabaseError, connection
from redis.exceptions import RedisError

from capacity.drivers.processes import ProcessRecord, records_in
from console.web.store import store

logger = logging.getLogger(__name__)

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


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """Valkey or Redis. `max_memory_bytes` None: not limited."""

    version: str
    memory_bytes: int
    max_memory_bytes: int | None
    is_persistent: bool
    clients: int
    answer_s: float


@dataclass(frozen=True, slots=True)
class Supervised:
    """A program in the supervisor's list."""

    name: str
    phase: str
    pid: int | None
    restarts: int
    reason: str
    pool_max: int | None


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


def store_facts() -> StoreFacts | None:
    """One round trip; None if the store does not answer."""
    started = time.perf_counter()
    try:
        info: dict[str, Any] = store().info()
    except RedisError as error:
        logger.warning("the store did not answer: %s", error)
        return None
    return StoreFacts(
        version=str(info.get("valkey_version") or info.get("redis_version", "")),
        memory_bytes=int(info.get("used_memory", 0)),
        max_memory_bytes=int(info.get("maxmemory", 0)) or None,
        is_persistent=bool(info.get("aof_enabled")),
        clients=int(info.get("connected_clients", 0)),
        answer_s=time.perf_counter() - started,
    )


def is_store_up() -> bool:
    """Whether the store answers a ping."""
    try:
        return bool(store().ping())
    except RedisError as error:
        logger.warning("the store did not answer: %s", error)
        return False


def engines() -> list[ProcessRecord]:
    """Simulated replicas that the worker started on this machine, alive or not."""
    return records_in(settings.STATE_DIR / "replicas")


def supervised() -> list[Supervised] | None:
    """The supervisor's list; None if nothing on this machine supervises these processes."""
    try:
        content = json.loads((settings.STATE_DIR / "processes.json").read_text())
        return [
            Supervised(
                name=str(entry["name"]),
                phase=str(entry.get("phase", "")),
                pid=entry.get("pid"),
                restarts=int(entry.get("restarts", 0)),
                reason=str(entry.get("last_reason", "")),
                pool_max=entry.get("pool_max"),
            )
            for entry in content["processes"]
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return None

"""PostgreSQL asked once: does it let us in, how full is it, and does its schema fit this code?"""

import time
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import psycopg

from console.conditions.rules.facts import Answer, DatabaseFacts

CONNECT_TIMEOUT_S = 2  # the shortest that libpq takes
STATEMENT_TIMEOUT_MS = 900
ROOT = Path(__file__).resolve().parent.parent.parent
APPS = ("console", "tenants", "routing", "capacity", "telemetry")

_FACTS = """
SELECT current_setting('server_version'),
       (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
       current_setting('max_connections')::int,
       pg_is_in_recovery(),
       to_regclass('django_migrations') IS NOT NULL
"""
_DIFFERENCES = "SELECT count FROM tenants_reconciliation ORDER BY id DESC LIMIT 1"
_APPLIED = "SELECT app || '.' || name FROM django_migrations WHERE app = ANY(%s)"


def ask_database(url: str) -> DatabaseFacts:
    """Two short queries. Never raises: what it cannot do is part of the answer."""
    began_s = time.monotonic()
    try:
        with psycopg.connect(
            url,
            connect_timeout=CONNECT_TIMEOUT_S,
            options=f"-c statement_timeout={STATEMENT_TIMEOUT_MS}",
            application_name="headrace-conditions",
            autocommit=True,
        ) as connection:
            row = connection.execute(_FACTS).fetchone()
            answer_s = time.monotonic() - began_s
            assert row is not None  # noqa: S101 - a SELECT without FROM gives a row
            version, used, most, is_standby, has_schema = row
            applied: set[str] = set()
            if has_schema:
                found = connection.execute(_APPLIED, [list(APPS)]).fetchall()
                applied = {name for (name,) in found}
            differences = None
            if "tenants.0004_reconciliation" in applied:
                last = connection.execute(_DIFFERENCES).fetchone()
                differences = last[0] if last else None
    except psycopg.Error as error:
        return DatabaseFacts(answer=answer_of(error), error=words_of(error))
    return DatabaseFacts(
        answer=Answer.READ_ONLY if is_standby else Answer.OK,
        answer_s=answer_s,
        version=version,
        connections=used,
        max_connections=most,
        differences=differences,
        missing_migrations=tuple(sorted(on_disk() - applied)),
        unknown_migrations=tuple(sorted(applied - on_disk())),
        is_schema_damaged=has_gap(applied, on_disk()),
    )


def silent_database() -> DatabaseFacts:
    """The facts of a database that gave no answer in time."""
    return DatabaseFacts(answer=Answer.HANGING, error="no answer within 1 s")


def answer_of(error: psycopg.Error) -> Answer:
    """Which of the few ways to fail this is."""
    said = str(error)
    if isinstance(error, psycopg.errors.ConnectionTimeout | psycopg.errors.QueryCanceled):
        return Answer.HANGING
    if "starting up" in said or "recovery" in said or "shutting down" in said:
        return Answer.LOADING
    if isinstance(error, psycopg.errors.DiskFull) or "No space left" in said:
        return Answer.FULL
    refusals = ("too many clients", "remaining connection slots", "authentication failed",
                "does not exist", "no pg_hba", "not permitted")  # fmt: skip
    if any(words in said for words in refusals):
        return Answer.REFUSING
    is_lost = isinstance(error, psycopg.OperationalError)
    return Answer.UNREACHABLE if is_lost else Answer.REFUSING


def words_of(error: Exception) -> str:
    """Its last line, which says what went wrong; the others name addresses tried."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in lines:
        if "FATAL:" in line:
            return line.partition("FATAL:")[2].strip()[:160]
    for line in lines:
        if "Connection refused" in line:
            return "Connection refused"
    return (lines[-1] if lines else type(error).__name__)[:160].rstrip(".")


@lru_cache(maxsize=1)
def on_disk() -> frozenset[str]:
    """Migrations that this code knows, as `app.name`."""
    return frozenset(
        f"{app}.{path.stem}" for app in APPS for path in (ROOT / app / "migrations").glob("0*.py")
    )


def has_gap(applied: Iterable[str], known: Iterable[str]) -> bool:
    """Whether one is applied although an earlier one of its app, known here, is not."""
    done = set(applied)
    missing = [name.partition(".") for name in known if name not in done]
    return any(
        other.startswith(f"{app}.") and other > f"{app}.{name}"
        for app, _, name in missing
        for other in done
    )

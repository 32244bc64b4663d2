"""May this code run on that database? Asked before services start, and by each of them again.

Older code may run on a newer schema: every step of an upgrade keeps that possible. The other way
round nothing may start.
"""

import logging

from console.conditions.database_probe import ask_database
from console.conditions.rules.facts import Answer, DatabaseFacts

logger = logging.getLogger(__name__)

NAMED = 3


def why_not_prepare(facts: DatabaseFacts) -> str:
    """Why `up` must not bring this database to its code, in one line; empty when it may."""
    if facts.unknown_migrations:
        return (
            f"the database has {_some(facts.unknown_migrations)}, which this code does not know: "
            "start the newer version again, or restore the backup from before it"
        )
    if facts.is_schema_damaged:
        return (
            f"the database lacks {_some(facts.missing_migrations)} although a later migration is "
            "recorded as applied: restore a backup, or repair it (docs/operate.md, Schema)"
        )
    return ""


def why_not_start(database_url: str) -> str:
    """Why a service must not start, in one line; empty when it may or the database is away."""
    facts = ask_database(database_url)
    if facts.answer is not Answer.OK:
        logger.warning("schema not checked, the database is away: %s", facts.error)
        return ""
    if facts.missing_migrations:
        return (
            f"the database lacks {_some(facts.missing_migrations)} of this code: "
            "run `manage.py up` or `manage.py migrate`"
        )
    return ""


def _some(names: tuple[str, ...]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")

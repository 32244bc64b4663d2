"""Which server is away, when an error says so: in words that hold no data of anybody."""

from dataclasses import dataclass

import psycopg
from django.db import InterfaceError, OperationalError
from psycopg_pool import PoolTimeout, TooManyRequests
from redis.exceptions import RedisError

from console.outage.postgresql.watched import database_watch

RETRY_AFTER_S = 5
AWAY_HEADER = "X-Headrace-Away"


@dataclass(frozen=True, slots=True)
class Lost:
    """Why an answer cannot be given now. `part` as conditions name it."""

    part: str
    title: str
    text: str
    goes_on: str


DATABASE = Lost(
    "postgres",
    "PostgreSQL does not answer",
    "Nobody can be signed in and no page can be shown without it.",
    "Gateways go on serving from their last snapshot. Usage waits in the store, then in the "
    "gateways' journals; nothing of it is lost.",
)
BUSY = Lost(
    "postgres",
    "All database connections of this console are in use",
    "This request waited for one in vain.",
    "Gateways do not use them and go on serving.",
)
RETURNING = Lost(
    "postgres",
    "PostgreSQL was away and answers again",
    "This console is still making its connections anew.",
    "Gateways do not use them and go on serving.",
)
SLOW = Lost(
    "postgres",
    "PostgreSQL took too long",
    "What was asked did not end within its time limit.",
    "Gateways go on serving. A shorter time range or a narrower filter may do.",
)
STORE = Lost(
    "store",
    "The store does not answer",
    "What was asked needs it.",
    "Gateways go on serving from local shares of each limit, by default at most 300 s. Pages that "
    "need only PostgreSQL work.",
)


def lost_by(error: BaseException | None) -> Lost | None:
    """The part that is away, if that is what the error says."""
    if isinstance(error, RedisError):
        return STORE
    if not isinstance(error, OperationalError | InterfaceError | psycopg.OperationalError):
        return None
    if database_watch.why_away:
        return DATABASE
    cause = error.__cause__ or error
    if isinstance(cause, PoolTimeout | TooManyRequests):
        return _without_connection()
    if isinstance(cause, psycopg.errors.QueryCanceled | psycopg.errors.LockNotAvailable):
        return SLOW
    return DATABASE


def _without_connection() -> Lost:
    """Why a pool had none to give, while the server is not known to be away."""
    if not database_watch.is_watching:
        return DATABASE
    return RETURNING if database_watch.is_returning else BUSY


def problem_of(lost: Lost, request_id: str) -> dict[str, object]:
    """The same as a REST body."""
    return {
        "code": "unavailable",
        "title": f"{lost.title}.",
        "status": 503,
        "field": "",
        "hint": f"{lost.goes_on} Try again in {RETRY_AFTER_S} s.",
        "part": lost.part,
        "request_id": request_id,
    }

"""Conditions of PostgreSQL. Absent facts (`None`) mean that it was not asked."""

from collections.abc import Iterator

from console.conditions.rules import servers
from console.conditions.rules.condition import BAD, WARN, Condition, Rule
from console.conditions.rules.facts import Answer, DatabaseFacts, Facts

PART = "postgres"
CONNECTIONS_WARN_RATIO = 0.85
NAMED = 3  # migrations that a sentence names

_WORK_GOES_ON = (
    "Gateways serve from their last snapshot; usage waits in the store. "
    "Pages and REST answer 503, jobs wait."
)
_BOUND = "20,000 usage entries a bucket in the store, then the gateways' journals on disk"
_SAYS = {
    Answer.UNREACHABLE: ("away", "PostgreSQL cannot be reached."),
    Answer.HANGING: ("hanging", "PostgreSQL accepts connections and does not answer."),
    Answer.REFUSING: ("refusing", "PostgreSQL does not let us in."),
    Answer.LOADING: ("recovering", "PostgreSQL is recovering from a crash and lets nobody in yet."),
    Answer.READ_ONLY: ("read-only", "PostgreSQL refuses writes."),
    Answer.FULL: ("full", "PostgreSQL cannot write: its disk is full."),
}
_NEXT = {
    Answer.UNREACHABLE: "Start it, or check DATABASE_URL and the network.",
    Answer.HANGING: "Look at its process and its disk; a stopped one continues with `kill -CONT`.",
    Answer.REFUSING: "Read its message; check DATABASE_URL and `max_connections`.",
    Answer.LOADING: "Wait: it opens by itself.",
    Answer.READ_ONLY: "Point DATABASE_URL at the primary.",
    Answer.FULL: "Free its disk.",
}


def not_serving(facts: Facts) -> Iterator[Condition]:
    """It does not answer as the system of record must."""
    database = facts.database
    if database is None or database.answer is Answer.OK:
        return
    word, text = _SAYS[database.answer]
    said = f" The error: {database.error}." if database.error else ""
    process, step = servers.why(facts, servers.DATABASE)
    yield Condition(
        PART,
        word,
        BAD,
        f"{text}{process or said} {_WORK_GOES_ON}",
        _BOUND,
        step or _NEXT[database.answer],
    )


def connections_near_limit(facts: Facts) -> Iterator[Condition]:
    """Soon somebody is refused; our own pools are bounded, so it is somebody else's too."""
    database = facts.database
    if database is None or database.connections is None or not database.max_connections:
        return
    if database.connections / database.max_connections >= CONNECTIONS_WARN_RATIO:
        yield Condition(
            PART,
            "connections",
            WARN,
            f"{database.connections} of {database.max_connections} connections are in use. "
            "Everything works.",
            "each process of Headrace holds at most its own pool",
            "See who is connected (`pg_stat_activity`), or raise `max_connections`.",
        )


def schema(facts: Facts) -> Iterator[Condition]:
    """Code and schema do not belong together."""
    database = facts.database
    if database is None or database.answer is not Answer.OK:
        return
    yield from _schema(database)


def _schema(database: DatabaseFacts) -> Iterator[Condition]:
    if database.is_schema_damaged:
        yield Condition(
            PART,
            "schema damaged",
            BAD,
            "A migration is recorded as applied whose predecessor is not.",
            "",
            "Restore the backup that was taken before the upgrade, or repair by hand.",
        )
    if database.missing_migrations:
        yield Condition(
            PART,
            "schema behind",
            BAD,
            f"The schema lacks {_some(database.missing_migrations)} of this code. What needs them "
            "fails; gateways do not.",
            "",
            "Run `manage.py migrate`, or `manage.py up` again.",
        )
    if database.unknown_migrations:
        yield Condition(
            PART,
            "schema ahead",
            WARN,
            f"The schema has {_some(database.unknown_migrations)}, which this code does not know. "
            "Old code runs beside each step of an upgrade.",
            "",
            "Finish the upgrade: start the newer version.",
        )


def _some(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:NAMED])
    more = len(names) - NAMED
    return f"{shown} and {more} more" if more > 0 else shown


RULES: tuple[Rule, ...] = (not_serving, schema, connections_near_limit)

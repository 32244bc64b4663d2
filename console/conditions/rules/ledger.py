"""Conditions of the way from an answer to its ledger row, as the writer counts them."""

from collections.abc import Iterator
from datetime import UTC, datetime

from console.conditions.rules.condition import BAD, WARN, Condition, Rule, seconds
from console.conditions.rules.facts import Facts, ProcessFacts

PART = "ledger"
LAG_WARN_S = 10.0
LAG_BAD_S = 300.0


def writer(facts: Facts) -> ProcessFacts | None:
    """The writer's newest word."""
    found = [
        item for item in facts.processes if item.name == PART and item.heartbeat_age_s is not None
    ]
    return min(found, key=lambda item: item.heartbeat_age_s or 0.0, default=None)


def backlog(facts: Facts) -> Iterator[Condition]:
    """Usage waits: spend shown is older than it looks, limits are exact all the same."""
    seen = writer(facts)
    if seen is None or seen.lag_s is None or seen.lag_s <= LAG_WARN_S:
        return
    why = f" It says: {seen.trouble}." if seen.trouble else ""
    yield Condition(
        PART,
        "behind",
        BAD if seen.lag_s > LAG_BAD_S else WARN,
        f"The ledger is {seconds(seen.lag_s)} behind; limits hold, spend on pages is late.{why}",
        "20,000 entries a bucket wait in the store, then the gateways' journals",
        "Look at PostgreSQL first, then at logs/ledger.log.",
    )


def parked(facts: Facts) -> Iterator[Condition]:
    """Entries that cannot be read are set aside, so that the others go on."""
    seen = writer(facts)
    count = seen.counts.get("parked", 0) if seen else 0
    if count:
        yield Condition(
            PART,
            "parked",
            WARN,
            f"{count} usage {'entry' if count == 1 else 'entries'} could not be booked and "
            "lie aside. All others are booked.",
            "",
            "See logs/ledger.log for which; usage on pages lacks them until they are corrected.",
        )


def rebuilding(facts: Facts) -> Iterator[Condition]:
    """Live counters are made again from the ledger after the store was emptied."""
    seen = writer(facts)
    count = seen.counts.get("rebuilding", 0) if seen else 0
    if count:
        yield Condition(
            PART,
            "rebuilding",
            WARN,
            f"Live counters of {count} of 256 buckets are being rebuilt from the ledger. Their "
            "tenants are served from local shares meanwhile.",
            "about 6 s for all of them",
            "",
        )


def went_back(facts: Facts) -> Iterator[Condition]:
    """The database was restored to an older state than the store had acknowledged."""
    seen = writer(facts)
    count = seen.counts.get("gaps", 0) if seen else 0
    if seen is None or not count:
        return
    since_s, until_s = seen.counts.get("gap_since_s", 0), seen.counts.get("gap_until_s", 0)
    after = f"between {_minute(since_s)} and" if since_s else "up to"
    yield Condition(
        PART,
        "went back",
        BAD,
        f"The database went back to an older state: usage {after} {_minute(until_s)} is missing in "
        f"{count} of 256 buckets, except what the store and the journals still held. Live counters "
        "follow the ledger. Keys, limits and policies changed in that time are gone too.",
        "limits admit by what the ledger holds; shown for 90 days",
        "Restore a newer backup, or add adjustments. Revoke again the keys revoked in that time.",
    )


def _minute(at_s: int) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%d %b %H:%M} UTC"


def differing(facts: Facts) -> Iterator[Condition]:
    """Holds, live counters and ledger say different things."""
    count = facts.database.differences if facts.database else None
    if count:
        yield Condition(
            PART,
            "differing",
            WARN,
            f"The last reconciliation left {count} {'thing' if count == 1 else 'things'} that "
            "holds, live counters and ledger do not agree on.",
            "",
            "See /reconciliation/ for which; `manage.py reconcile --repair` corrects them.",
        )


RULES: tuple[Rule, ...] = (backlog, parked, rebuilding, went_back, differing)

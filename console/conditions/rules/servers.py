"""What the supervisor and the kernel know of an embedded server, for the condition of its part."""

from console.conditions.rules.condition import seconds
from console.conditions.rules.facts import Answer, Facts, ProcessFacts

STORE, DATABASE = "valkey", "postgres"


def explains(facts: Facts, name: str) -> bool:
    """Whether the part's own condition tells what its process is in: it need not be said twice."""
    if name == STORE:
        return facts.store.answer is not Answer.OK
    return (
        name == DATABASE and facts.database is not None and facts.database.answer is not Answer.OK
    )


def why(facts: Facts, name: str) -> tuple[str, str]:
    """(sentence, next step) about a server's process; empty when there is nothing to say."""
    item = next((item for item in facts.processes if item.name == name), None)
    if item is None:
        return "", ""
    if item.is_stopped:
        return " Its process is held by a signal.", f"Continue it: `kill -CONT {item.pid}`."
    if item.phase == "backing off":
        return _starts_again(item), f"Wait; if it stays, see {item.log}."
    if item.is_alive is False:
        return " Its process is dead.", f"See {item.log}."
    return "", ""


def _starts_again(item: ProcessFacts) -> str:
    wait_s = item.next_start_s
    when = "" if wait_s is None else f", starts again in {seconds(wait_s)}"
    return f" Its process is down ({item.last_reason or 'no reason known'}){when}."

"""What `status` answers: everything that `console.conditions` saw, as one object and as a table."""

from collections.abc import Iterator, Mapping
from typing import Any

from console.conditions.gather import Sources, gather
from console.conditions.report import as_values
from console.conditions.rules.facts import SupervisorFacts
from console.project.database import (
    IDLE_IN_TRANSACTION_TIMEOUT_MS,
    LOCK_TIMEOUT_MS,
    STATEMENT_TIMEOUT_MS,
)
from console.supervisor.state import StartRefused, State, read_json

NOT_RUNNING = "not running"
READY = "ready"
GONE = "supervisor gone: run `up` again, or `down`"
REASON_CHARS = 60  # of the last reason, in the table


def collect(state: State) -> dict[str, Any]:
    """Everything that `status --json` prints; `is_ready` sums it up.

    Answers also when the supervisor, the store, PostgreSQL or all of it is gone or hangs, and when
    a file of the state cannot be read. Takes about a second at most, then says what did not answer.
    """
    environment, error = _environment(state)
    is_started = state.processes.exists()
    sources = Sources(
        state=state.root,
        redis_url=str(environment.get("REDIS_URL", "")) if is_started else "",
        database_url=str(environment.get("DATABASE_URL", "")) if is_started else "",
    )
    report = gather(sources)
    values = as_values(report)
    supervisor = report.facts.supervisor
    if not is_started:
        values |= {"conditions": [], "is_degraded": False, "store_error": ""}
    if error:
        values["conditions"].insert(0, _unreadable(error))
    rows = values["processes"]
    phase = _phase(supervisor, is_started=is_started)
    return {
        "state": str(state.root),
        "phase": phase,
        "is_ready": phase == READY
        and bool(rows)
        and not values["is_degraded"]
        and not error
        and all(row["readiness"] == READY for row in rows),
        "supervisor_pid": supervisor.pid,
        "console_url": supervisor.console_url or None,
        "gateway_url": supervisor.gateway_url or None,
        **values,
        "database_limits": {
            "statement_timeout_ms": STATEMENT_TIMEOUT_MS,
            "lock_timeout_ms": LOCK_TIMEOUT_MS,
            "idle_in_transaction_timeout_ms": IDLE_IN_TRANSACTION_TIMEOUT_MS,
        },
    }


def _environment(state: State) -> tuple[dict[str, Any], str]:
    try:
        return read_json(state.environment), ""
    except StartRefused as error:
        return {}, error.message


def _unreadable(error: str) -> dict[str, str]:
    return {
        "part": "state",
        "word": "unreadable",
        "tone": "bad",
        "text": f"{error}. What runs goes on; store and database cannot be asked.",
        "bound": "",
        "next_step": "Repair its mode or its content.",
    }


def _phase(supervisor: SupervisorFacts, *, is_started: bool) -> str:
    if not is_started:
        return NOT_RUNNING
    if supervisor.error:
        return "unknown: the supervisor's file cannot be read"
    return supervisor.phase if supervisor.is_alive else GONE


def table(answer: Mapping[str, Any]) -> list[str]:
    """The same as lines for a person: what is wrong first."""
    lines = [
        f"state    {answer['state']}: {answer['phase']}",
        f"console  {answer['console_url'] or '-'}",
        f"gateway  {answer['gateway_url'] or '-'}",
    ]
    for parts in (_conditions, _processes, _engines, _gateways):
        if found := list(parts(answer)):
            lines += ["", *found]
    return lines


def _conditions(answer: Mapping[str, Any]) -> Iterator[str]:
    for condition in answer["conditions"]:
        yield f"{condition['tone'].upper():<5} {condition['part']} {condition['word']}"
        yield f"      {condition['text']}"
        if condition["bound"]:
            yield f"      bound: {condition['bound']}"
        if condition["next_step"]:
            yield f"      next:  {condition['next_step']}"


def _processes(answer: Mapping[str, Any]) -> Iterator[str]:
    if answer["processes"]:
        yield (
            f"{'process':<13}{'pid':>8}{'port':>7}{'age s':>9}{'word s':>8}{'lag s':>7}"
            f"{'restarts':>9}  {'version':<9}readiness"
        )
    for row in answer["processes"]:
        yield (
            f"{row['name']:<13}{row['pid'] or '-':>8}{row['port'] or '-':>7}"
            f"{_or_dash(row['age_s']):>9}{_or_dash(row['heartbeat_age_s']):>8}"
            f"{_or_dash(row['lag_s']):>7}{row['restarts']:>9}  {row['version'] or '-':<9}"
            f"{row['readiness']}{_aside(row)}"
        )


def _aside(row: Mapping[str, Any]) -> str:
    """When it starts again, why it died last, and what it says."""
    parts = []
    if row["next_start_s"] is not None:
        parts.append(f"starts again in {row['next_start_s']} s")
    if row["last_reason"]:
        parts.append(f"last: {row['last_reason'][:REASON_CHARS]}")
    if row["note"]:
        parts.append(row["note"])
    return f"  ({'; '.join(parts)})" if parts else ""


def _or_dash(value: float | None) -> str:
    return "-" if value is None else str(value)


def _engines(answer: Mapping[str, Any]) -> Iterator[str]:
    if answer["engines"]:
        yield f"{'engine':<21}{'pid':>8}{'port':>7}  {'model':<20}{'version':<14}state"
    for row in answer["engines"]:
        cause = f" ({row['cause']})" if row["cause"] else ""
        yield (
            f"{row['name']:<21}{row['pid'] or '-':>8}{row['port'] or '-':>7}  "
            f"{row['model'] or '-':<20}{row['version'] or '-':<14}{row['state']}{cause}"
        )


def _gateways(answer: Mapping[str, Any]) -> Iterator[str]:
    if answer["gateways"] and not answer["store_error"]:
        number = answer["snapshot_number"]
        told = "no policy is published yet: gateways refuse every request"
        yield f"published snapshot {number}" if number else told
    for row in answer["gateways"]:
        left = row["away_left_s"]
        bound = "" if left is None else f" ({left:.0f} s left)"
        yield (
            f"{row['gateway_id']}: snapshot {row['snapshot_number']}, policy "
            f"{row['policy'] or '-'}, {row['state']}, store {row['store_mode']}{bound}, "
            f"{row['in_flight']} in flight, seen {row['age_s']} s ago"
        )

"""A report as plain values for JSON: `status --json` and REST print the same object."""

from dataclasses import asdict
from typing import Any

from console.conditions.gather import Report
from console.conditions.rules.condition import BAD, Condition
from console.conditions.rules.facts import (
    Answer,
    DatabaseFacts,
    EngineFacts,
    Facts,
    GatewayFacts,
    ProcessFacts,
    StoreFacts,
)

MAX_ENGINES = 500
SILENT_AFTER_S = 10.0
_READY = "ready"
UP = "up"


def as_values(report: Report) -> dict[str, Any]:
    """Everything that a report says; ages in seconds, unknown is null."""
    facts = report.facts
    return {
        "at": round(report.at, 3),
        "is_degraded": any(condition.tone == BAD for condition in report.conditions),
        "conditions": [condition_values(condition) for condition in report.conditions],
        "code_version": facts.code_version,
        "processes": [process_values(process, facts) for process in facts.processes],
        "engines": [_engine(engine) for engine in facts.engines[:MAX_ENGINES]],
        "gateways": [_gateway(gateway) for gateway in facts.gateways],
        "store": _store(facts.store),
        "database": _database(facts.database) if facts.database else None,
        "disks": [asdict(disk) for disk in facts.disks],
        "store_error": "" if facts.store.answer is Answer.OK else facts.store.error or "away",
        "snapshot_number": facts.store.snapshot_number,
    }


def condition_values(condition: Condition) -> dict[str, str]:
    """One condition."""
    return asdict(condition)


def readiness_of(process: ProcessFacts, facts: Facts) -> str:
    """`ready`, what it says against it, or the word of `state_of`."""
    word = state_of(process, facts)
    if word == UP:
        return _READY
    return process.not_ready or (process.phase if word == "down" else word.replace("_", " "))


def state_of(process: ProcessFacts, facts: Facts) -> str:
    """One word: `up`, the supervisor's phase, or what is wrong now."""
    if process.is_alive is False:
        return "dead"
    if process.is_stopped:
        return "held"
    if process.phase not in ("", _READY):
        return "down" if process.phase == "backing off" else process.phase
    if process.not_ready:
        return "not_ready"
    says_nothing = process.expects_heartbeat and _is_silent(process)
    if says_nothing and not process.phase:
        return "gone"
    return "silent" if says_nothing and facts.store.answer is Answer.OK else UP


def _is_silent(process: ProcessFacts) -> bool:
    age_s = process.heartbeat_age_s
    return age_s is None or age_s > SILENT_AFTER_S


def process_values(process: ProcessFacts, facts: Facts) -> dict[str, Any]:
    """One row; `age_s` is since its start, `heartbeat_age_s` since its last word."""
    return {
        "name": process.name,
        "pid": process.pid,
        "port": process.port,
        "readiness": readiness_of(process, facts),
        "age_s": _rounded(process.up_s),
        "heartbeat_age_s": _rounded(process.heartbeat_age_s),
        "lag_s": _rounded(process.lag_s),
        "version": process.version,
        "restarts": process.restarts,
        "last_reason": process.last_reason,
        "next_start_s": _rounded(process.next_start_s),
        "note": process.note,
        "trouble": process.trouble,
        "pool_max": process.pool_max,
        "log": process.log,
    }


def _engine(engine: EngineFacts) -> dict[str, Any]:
    return {**asdict(engine), "state": engine_state(engine)}


def engine_state(engine: EngineFacts) -> str:
    """`dead`, its health when that is known, else `running`."""
    if engine.is_alive is False:
        return "dead"
    if engine.health and engine.health != "ok":
        return engine.health
    return "running"


def _gateway(gateway: GatewayFacts) -> dict[str, Any]:
    values = asdict(gateway)
    for name in ("age_s", "up_s", "away_s"):
        values[name] = _rounded(values[name])
    return {**values, "away_left_s": _rounded(gateway.away_left_s)}


def _store(store: StoreFacts) -> dict[str, Any]:
    values = asdict(store)
    values.pop("snapshot_number")
    return {**values, "answer": store.answer.value}


def _database(database: DatabaseFacts) -> dict[str, Any]:
    return {**asdict(database), "answer": database.answer.value}


def _rounded(value_s: float | None) -> float | None:
    return None if value_s is None else round(value_s, 1)

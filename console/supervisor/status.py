"""What runs: the file that the supervisor writes, and the table that `status` makes of it."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis

from capacity.drivers.processes import records_in
from console.project.database import (
    IDLE_IN_TRANSACTION_TIMEOUT_MS,
    LOCK_TIMEOUT_MS,
    STATEMENT_TIMEOUT_MS,
)
from console.supervisor import proc
from console.supervisor.probes import GatewayProbe, HttpProbe, store_client
from console.supervisor.program import Child, Phase
from console.supervisor.state import StartRefused, State, read_json, write_json
from routing.contracts.process import GatewayStatus
from routing.store.state import (
    read_gateway_statuses,
    read_process_statuses,
    read_snapshot_number,
)

NOT_RUNNING = "not running"


@dataclass(slots=True)
class Board:
    """Writes `processes.json` and the pid files after each change.

    A disk that takes no writes stops nobody: the last content stays, and the next round of the
    supervisor tries again (`is_behind`).
    """

    state: State
    header: Mapping[str, Any]
    phase: str = "starting"
    is_behind: bool = False

    def write(self, children: Sequence[Child]) -> None:
        """Describe every child as it is now."""
        try:
            self._write(children)
        except (StartRefused, OSError):
            self.is_behind = True
        else:
            self.is_behind = False

    def catch_up(self, children: Sequence[Child]) -> None:
        """Try again what could not be written."""
        if self.is_behind:
            self.write(children)

    def _write(self, children: Sequence[Child]) -> None:
        rows = [_row(child) for child in children]
        write_json(self.state.processes, {**self.header, "phase": self.phase, "processes": rows})
        for child in children:
            path = self.state.pids / f"{child.program.name}.pid"
            if child.identity is None:
                path.unlink(missing_ok=True)
            else:
                path.write_text(f"{child.identity.pid}\n")

    def remove(self) -> None:
        """Nothing runs any more."""
        with contextlib.suppress(OSError):  # read-only by now: the next `up` sees that all is gone
            self.state.processes.unlink(missing_ok=True)
            for path in self.state.pids.glob("*.pid"):
                path.unlink(missing_ok=True)


def _row(child: Child) -> dict[str, Any]:
    program = child.program
    probe = program.probe
    return {
        "name": program.name,
        "pid": child.identity.pid if child.identity else None,
        "ticks": child.identity.ticks if child.identity else None,
        "port": program.port,
        "stage": program.stage,
        "ready_port": probe.port if isinstance(probe, HttpProbe | GatewayProbe) else None,
        "is_gateway": isinstance(probe, GatewayProbe),
        "phase": child.phase.value,
        "started_at": child.started_at,
        "next_start_at": _next_start_at(child),
        "restarts": child.restarts,
        "last_reason": child.last_reason,
        "pool_max": int(program.environment.get("HEADRACE_DB_POOL_MAX", 0)) or None,
        "stop_signal": int(program.stop_signal),
        "log": f"logs/{program.name}.log",
    }


def _next_start_at(child: Child) -> float | None:
    """Unix seconds of the next try of a program that is down."""
    if child.phase is not Phase.BACKING_OFF:
        return None
    return round(time.time() + child.next_s - time.monotonic(), 1)


def read_board(state: State) -> dict[str, Any]:
    """The file; without the supervisor and the pids of a boot that is over."""
    file = read_json(state.processes)
    if file and file.get("boot") != proc.boot_id():
        file["supervisor"] = {}
        file["processes"] = [{**row, "pid": None} for row in file.get("processes", [])]
    return file


def identity_of(row: Mapping[str, Any]) -> proc.Identity | None:
    """The process that a row of the file means, alive or not."""
    if not row.get("pid") or not row.get("ticks"):
        return None
    return proc.Identity(int(row["pid"]), int(row["ticks"]))


def collect(state: State, now: float) -> dict[str, Any]:
    """Everything that `status --json` prints; `is_ready` sums it up.

    Answers also when the supervisor, the store or all of it is gone.
    """
    file = read_board(state)
    environment = read_json(state.environment)
    supervisor = identity_of(file.get("supervisor", {}))
    is_supervised = supervisor is not None and supervisor.is_alive
    store = _from_store(str(environment.get("REDIS_URL", "")), now) if file else _no_store("")
    beats = {(beat["name"], beat["pid"]) for beat in store["heartbeats"]}
    # Before the first policy a gateway that lives is as ready as it can be.
    is_empty = not store["store_error"] and store["snapshot_number"] is None
    rows = [
        _live(row, beats, now, is_empty=is_empty and row["is_gateway"])
        for row in file.get("processes", [])
    ]
    return {
        "state": str(state.root),
        "phase": _phase(file, is_supervised=is_supervised),
        "is_ready": bool(rows)
        and file.get("phase") == "ready"
        and is_supervised
        and all(row["readiness"] == Phase.READY for row in rows),
        "supervisor_pid": supervisor.pid if supervisor and is_supervised else None,
        "console_url": file.get("console_url"),
        "gateway_url": file.get("gateway_url"),
        "processes": rows,
        "engines": engines(state),
        **store,
        "database_limits": {
            "statement_timeout_ms": STATEMENT_TIMEOUT_MS,
            "lock_timeout_ms": LOCK_TIMEOUT_MS,
            "idle_in_transaction_timeout_ms": IDLE_IN_TRANSACTION_TIMEOUT_MS,
        },
    }


def engines(state: State) -> list[dict[str, Any]]:
    """Simulated replicas that the worker started here; whether they serve is on `/fleet/`."""
    return [
        {
            "name": record.name,
            "pid": record.pid,
            "port": record.port,
            "state": "running" if record.is_alive else "dead",
        }
        for record in records_in(state.replicas)
    ]


def _phase(file: Mapping[str, Any], *, is_supervised: bool) -> str:
    if not file:
        return NOT_RUNNING
    return str(file["phase"]) if is_supervised else "supervisor gone: run `up` again, or `down`"


def _live(
    row: Mapping[str, Any], beats: set[tuple[str, int]], now: float, *, is_empty: bool
) -> dict[str, Any]:
    """A row with what is true now instead of what the supervisor last wrote."""
    identity = identity_of(row)
    readiness = str(row["phase"])
    if identity is not None and not identity.is_alive:
        readiness = "dead"
    elif identity is not None and readiness == Phase.READY:
        if row["ready_port"]:
            probe = HttpProbe("127.0.0.1", row["ready_port"], "/healthz" if is_empty else "/readyz")
            readiness = probe(identity.pid) or readiness
        elif row["stage"] > 0 and (row["name"], identity.pid) not in beats:
            readiness = "silent"
    return {
        "name": row["name"],
        "pid": row["pid"],
        "port": row["port"],
        "readiness": readiness,
        "age_s": round(now - row["started_at"], 1) if identity else None,
        "restarts": row["restarts"],
        "last_reason": row["last_reason"],
        "pool_max": row["pool_max"],
        "log": row["log"],
    }


def _no_store(error: str) -> dict[str, Any]:
    return {"store_error": error, "snapshot_number": None, "gateways": [], "heartbeats": []}


def _from_store(url: str, now: float) -> dict[str, Any]:
    """What processes say of themselves; an unreachable store is part of the answer."""
    if not url:
        return _no_store("no store is known yet")
    try:
        with store_client(url) as client:
            number = read_snapshot_number(client)
            gateways = read_gateway_statuses(client, int(now * 1000))
            beats = read_process_statuses(client, int(now * 1000))
    except redis.RedisError as error:
        return _no_store(str(error))
    return {
        "store_error": "",
        "snapshot_number": number,
        "gateways": [_gateway(status, now) for status in gateways],
        "heartbeats": [
            {
                "name": beat.name,
                "pid": beat.pid,
                "age_s": round(now - beat.at_ms / 1000, 1),
                "lag_s": beat.lag_s,
                "note": beat.note,
            }
            for beat in beats
        ],
    }


def _gateway(status: GatewayStatus, now: float) -> dict[str, Any]:
    return {
        "gateway_id": status.gateway_id,
        "pid": status.pid,
        "snapshot_number": status.snapshot_number,
        "policy": status.policy,
        "state": status.state,
        "store_mode": str(status.store_mode),
        "in_flight": status.in_flight,
        "journal_pending": status.journal_pending,
        "age_s": round(now - status.at_ms / 1000, 1),
    }


def table(answer: Mapping[str, Any]) -> list[str]:
    """The same as lines for a person."""
    lines = [
        f"state    {answer['state']}: {answer['phase']}",
        f"console  {answer['console_url'] or '-'}",
        f"gateway  {answer['gateway_url'] or '-'}",
    ]
    if answer["processes"]:
        lines += [
            "",
            f"{'process':<13}{'pid':>8}{'port':>7}{'age s':>9}{'restarts':>10}  readiness",
        ]
    for row in answer["processes"]:
        reason = f"  (last: {row['last_reason']})" if row["last_reason"] else ""
        lines.append(
            f"{row['name']:<13}{row['pid'] or '-':>8}{row['port'] or '-':>7}"
            f"{'-' if row['age_s'] is None else row['age_s']:>9}{row['restarts']:>10}"
            f"  {row['readiness']}{reason}"
        )
    if answer["engines"]:
        lines += ["", f"{'engine':<21}{'pid':>8}{'port':>7}  state (what each can serve: /fleet/)"]
    lines += [
        f"{row['name']:<21}{row['pid']:>8}{row['port']:>7}  {row['state']}"
        for row in answer["engines"]
    ]
    if answer["store_error"]:
        lines += ["", f"store: {answer['store_error']}"]
    if answer["gateways"]:
        number = answer["snapshot_number"]
        told = "no policy is published yet: gateways refuse every request"
        lines += ["", f"published snapshot {number}" if number else told]
    lines += [
        f"{row['gateway_id']}: snapshot {row['snapshot_number']}, policy {row['policy'] or '-'}, "
        f"{row['state']}, store {row['store_mode']}, {row['in_flight']} in flight, "
        f"seen {row['age_s']} s ago"
        for row in answer["gateways"]
    ]
    lines += [
        f"{row['name']}: {row['lag_s']:.1f} s behind"
        for row in answer["heartbeats"]
        if row["lag_s"] is not None
    ]
    return lines


def now() -> float:
    """Unix seconds."""
    return time.time()

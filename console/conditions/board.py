"""What the supervisor wrote about its processes, with what the kernel says of them now."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capacity.drivers.processes import boot_id, records_in, start_ticks
from console.conditions.rules.facts import EngineFacts, ProcessFacts, SupervisorFacts

SERVER_NAMES = ("postgres", "valkey")  # they report nothing: they are asked
_STATE_FIELD = 0  # after the command's closing bracket of /proc/PID/stat
_HELD = ("T", "t")  # stopped by a signal, or by a debugger


@dataclass(frozen=True, slots=True)
class BoardRow:
    """One supervised process, and where it can be asked."""

    facts: ProcessFacts
    ready_port: int | None
    is_gateway: bool


@dataclass(frozen=True, slots=True)
class Board:
    """The whole file; without rows when nothing supervises on this machine."""

    supervisor: SupervisorFacts
    rows: tuple[BoardRow, ...] = ()


def read_board(state: Path, now: float) -> Board:
    """The board of a state directory. Never raises: a file that cannot be read is a fact."""
    path = state / "processes.json"
    try:
        content = json.loads(path.read_text())
        rows = content["processes"]
        is_this_boot = content.get("boot") == boot_id()
        found = tuple(_row(row, now, is_this_boot=is_this_boot) for row in rows)
        supervisor = _supervisor(content, now, is_this_boot=is_this_boot)
    except FileNotFoundError:
        return Board(SupervisorFacts())
    except OSError as error:
        return Board(SupervisorFacts(error=f"cannot read {path}: {error.strerror}"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return Board(SupervisorFacts(error=f"{path} is damaged: {error}"))
    return Board(supervisor, found)


def _supervisor(content: Mapping[str, Any], now: float, *, is_this_boot: bool) -> SupervisorFacts:
    who = content.get("supervisor") or {}
    pid = int(who.get("pid") or 0)
    is_alive = is_this_boot and pid > 0 and start_ticks(pid) == who.get("ticks")
    step = content.get("clock_step") or {}
    by_s = step.get("by_s") if is_alive else None
    return SupervisorFacts(
        clock_step_s=None if by_s is None else float(by_s),
        clock_step_age_s=None if by_s is None else now - float(step["at"]),
        is_known=True,
        is_alive=is_alive,
        pid=pid if is_alive else None,
        phase=str(content.get("phase", "")),
        console_url=str(content.get("console_url") or ""),
        gateway_url=str(content.get("gateway_url") or ""),
    )


def _row(row: Mapping[str, Any], now: float, *, is_this_boot: bool) -> BoardRow:
    pid = int(row["pid"]) if is_this_boot and row.get("pid") else None
    is_alive = None if pid is None else start_ticks(pid) == row.get("ticks")
    next_at = row.get("next_start_at")
    is_gateway = bool(row.get("is_gateway"))
    name = str(row["name"])
    facts = ProcessFacts(
        name=name,
        pid=pid,
        port=row.get("port"),
        phase=str(row.get("phase", "")),
        is_alive=is_alive,
        is_stopped=bool(is_alive and pid and is_held(pid)),
        restarts=int(row.get("restarts", 0)),
        last_reason=str(row.get("last_reason", "")),
        next_start_s=None if next_at is None else max(0.0, float(next_at) - now),
        not_ready=str(row.get("waiting_for", "")) if row.get("phase") == "starting" else "",
        up_s=max(0.0, now - float(row["started_at"])) if pid else None,
        expects_heartbeat=not is_gateway and name not in SERVER_NAMES,
        pool_max=row.get("pool_max"),
        log=str(row.get("log", "")),
    )
    return BoardRow(facts, row.get("ready_port"), is_gateway)


def is_held(pid: int) -> bool:
    """Whether a signal or a debugger keeps the process from running."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[_STATE_FIELD] in _HELD


def local_engines(state: Path) -> tuple[EngineFacts, ...]:
    """Replicas that the worker started on this machine, alive or not."""
    return tuple(
        EngineFacts(
            name=record.name,
            is_alive=record.is_alive,
            pid=record.pid,
            host=record.host,
            port=record.port,
        )
        for record in records_in(state / "replicas")
    )

"""What runs, as the supervisor writes it down; `console.conditions.board` reads it for people."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from console.supervisor import proc
from console.supervisor.probes import GatewayProbe, HttpProbe
from console.supervisor.program import Child, Phase
from console.supervisor.state import StartRefused, State, read_json, write_json
from console.supervisor.watch import ClockSteps


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
    clock: ClockSteps = field(default_factory=ClockSteps)

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
        step = {"by_s": self.clock.by_s, "at": self.clock.at}
        told = {"phase": self.phase, "clock_step": step, "processes": rows}
        write_json(self.state.processes, {**self.header, **told})
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

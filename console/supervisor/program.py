"""One program that the supervisor runs, and what became of it: values, nothing is started here.

`plan.py` and `embedded.py` make programs, `processes.py` runs them, `status.py` shows them.
"""

import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from console.supervisor import proc

FIRST_DELAY_S = 0.5  # doubles with each death in a row
LONGEST_DELAY_S = 30.0
STEADY_AFTER_S = 60.0  # a run this long is forgiven: the next death counts as the first
SERVERS = 0  # stage of the database and the store: first to start, last to stop


class Phase(StrEnum):
    """Where a program stands. `silent`: it lives and does not answer."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    SILENT = "silent"
    BACKING_OFF = "backing off"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Account:
    """User that a server runs as when root started us: servers refuse root, and need none of it."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Program:
    """One long-running process. Stages start in ascending order and stop in descending order.

    `probe` says why it is not ready yet (empty: it is). `is_alive` is asked from then on: False
    when it does not answer, None when that cannot be told now. One that stays silent is killed and
    started again if `restarts_silent`. `ports` are those that it listens on. `mend` is given the
    last words of one that ended by itself, before it starts again; it says what it did (empty:
    nothing).
    """

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    probe: Callable[[int], str]
    stage: int
    port: int | None = None
    stop_signal: int = signal.SIGTERM
    stop_wait_s: float = 15.0
    account: Account | None = None
    directory: Path = Path("/")
    is_alive: Callable[[int], bool | None] | None = None
    restarts_silent: bool = False
    ports: tuple[int, ...] = ()
    mend: Callable[[str], str] | None = None


@dataclass(slots=True)
class Child:
    """What became of a program."""

    program: Program
    phase: Phase = Phase.WAITING
    process: subprocess.Popen[bytes] | None = None
    identity: proc.Identity | None = None
    started_at: float = 0.0  # Unix seconds
    started_s: float = 0.0
    next_s: float = 0.0  # next start or probe
    deaths_in_a_row: int = 0
    restarts: int = 0
    last_reason: str = ""
    waiting_for: str = ""
    was_ready: bool = False
    silent_since_s: float | None = None  # first of the questions in a row that it did not answer
    silent_count: int = 0
    killed_for: str = ""  # why we ended it ourselves


def restart_delay_s(deaths_in_a_row: int) -> float:
    """Seconds to wait before the next start; the first death is 1."""
    return float(min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** (deaths_in_a_row - 1)))


def ended_how(returncode: int) -> str:
    """A return code in words."""
    if returncode >= 0:
        return f"exited with {returncode}"
    try:
        return f"killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"killed by signal {-returncode}"

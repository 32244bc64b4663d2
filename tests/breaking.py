"""Faults of a running stack, by name: each breaks one thing and knows how to mend it.

A fault is a context manager: broken inside, mended (or left to the supervisor) at the end. What a
supervisor restarts by itself is only killed.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import redis

from console.supervisor import proc
from tests.conftest import Stack, processes_of

SERVICES = ("console", "gateway-g0", "gateway-g1", "worker", "beat", "collector", "ledger")


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
    """Poll a slow condition, less often the longer it takes; its value."""
    began_s = time.monotonic()
    while not (value := condition()):
        waited_s = time.monotonic() - began_s
        assert waited_s < timeout_s, f"no {what} within {timeout_s} s"
        time.sleep(min(0.1 + waited_s / 10, 1.0))
    return value


def pid_of(stack: Stack, name: str) -> int:
    """Pid of a supervised process that runs now, read from its pid file: no command needed."""
    return int((stack.state / "pids" / f"{name}.pid").read_text())


def tree_of(pid: int) -> list[int]:
    """A process and its children, as PostgreSQL's backends are."""
    found = [pid]
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError):
                words = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if int(words[1]) == pid:
                    found.append(int(entry.name))
    return found


@contextmanager
def killed(name: str, stack: Stack) -> Iterator[None]:
    """kill -9; the supervisor starts it again."""
    with suppress(ProcessLookupError, OSError, ValueError):
        os.kill(pid_of(stack, name), signal.SIGKILL)
    yield


@contextmanager
def stopped(name: str, stack: Stack) -> Iterator[None]:
    """SIGSTOP of a process and its children: it accepts connections and never answers."""
    pids = tree_of(pid_of(stack, name))
    _signal(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(pids, signal.SIGCONT)


def _signal(pids: list[int], signum: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signum)


@contextmanager
def down(name: str, stack: Stack) -> Iterator[None]:
    """Killed again as often as it is restarted, until the end."""
    over = threading.Event()

    def keep_killing() -> None:
        while not over.wait(0.05):
            with suppress(OSError, ValueError):
                os.kill(pid_of(stack, name), signal.SIGKILL)

    thread = threading.Thread(target=keep_killing, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def store_flushed(stack: Stack) -> Iterator[None]:
    """FLUSHALL: everything in the store is gone at once."""
    with redis.Redis.from_url(stack.settings["REDIS_URL"], socket_timeout=5) as store:
        store.flushall()
    yield


@contextmanager
def store_full(stack: Stack) -> Iterator[None]:
    """maxmemory below what is used: every write answers OOM."""
    with redis.Redis.from_url(stack.settings["REDIS_URL"], socket_timeout=5) as store:
        store.config_set("maxmemory", "1mb")
    try:
        yield
    finally:
        with redis.Redis.from_url(stack.settings["REDIS_URL"], socket_timeout=5) as store:
            store.config_set("maxmemory", "0")


@contextmanager
def sessions_ended(stack: Stack) -> Iterator[None]:
    """PostgreSQL ends every connection, as a failover does."""
    with psycopg.connect(stack.settings["DATABASE_URL"], autocommit=True) as db:
        db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    yield


@contextmanager
def supervisor_killed(stack: Stack) -> Iterator[None]:
    """kill -9 of `up` itself; what it left goes on until `up` is called again."""
    killed = proc.identify(stack.status()["supervisor_pid"])
    assert killed is not None
    os.kill(killed.pid, signal.SIGKILL)
    try:
        yield
    finally:
        assert not proc.wait_gone([killed], 30)
        stack.up(*stack.words)


@contextmanager
def engine(stack: Stack, signum: int, draw: random.Random) -> Iterator[None]:
    """One simulated replica killed, or hung for the time of the block."""
    running = [row["pid"] for row in stack.status()["engines"] if row["state"] == "running"]
    if not running:
        yield
        return
    pid = draw.choice(running)
    _signal([pid], signum)
    try:
        yield
    finally:
        _signal([pid], signal.SIGCONT)


@contextmanager
def disk_full(stack: Stack) -> Iterator[None]:
    """No byte left under the state directory, where that is a small mount of its own."""
    filler = stack.state.parent / "filler"
    if not stack.state.parent.is_mount():
        yield
        return
    try:
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * 65536)
        with suppress(OSError), filler.open("ab", buffering=0) as file:
            while True:
                file.write(b"\0")
        yield
    finally:
        filler.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Plan:
    """A fault of the soak: how it is made, for how long it lasts, how often it is drawn."""

    make: Callable[[Stack, random.Random], AbstractContextManager[None]]
    lasts_s: tuple[float, float] = (0.5, 1.0)
    weight: int = 2


def _of(make: Callable[[str, Stack], AbstractContextManager[None]], name: str) -> Any:
    return lambda stack, draw: make(name, stack)


FAULTS: dict[str, Plan] = {
    **{f"{name} killed": Plan(_of(killed, name)) for name in SERVICES},
    "gateway hung": Plan(_of(stopped, "gateway-g1"), (3, 20), 1),
    "ledger down": Plan(_of(down, "ledger"), (5, 15), 1),
    "console and worker down": Plan(
        lambda stack, draw: _both(down("console", stack), down("worker", stack)), (5, 10), 1
    ),
    "store killed": Plan(_of(killed, "valkey"), weight=3),
    "store down": Plan(_of(down, "valkey"), (3, 10)),
    "store hung": Plan(_of(stopped, "valkey"), (2, 8)),
    "store flushed": Plan(lambda stack, draw: store_flushed(stack), weight=3),
    "store full": Plan(lambda stack, draw: store_full(stack), (3, 6)),
    "database killed": Plan(_of(killed, "postgres"), weight=3),
    "database down": Plan(_of(down, "postgres"), (5, 15)),
    "database hung": Plan(_of(stopped, "postgres"), (3, 15)),
    "database sessions ended": Plan(lambda stack, draw: sessions_ended(stack)),
    "store and database killed": Plan(
        lambda stack, draw: _both(killed("valkey", stack), killed("postgres", stack)), weight=1
    ),
    "engine killed": Plan(lambda stack, draw: engine(stack, signal.SIGKILL, draw)),
    "engine hung": Plan(lambda stack, draw: engine(stack, signal.SIGSTOP, draw), (4, 12)),
    "supervisor killed": Plan(lambda stack, draw: supervisor_killed(stack), (1, 5), 1),
    "disk full": Plan(lambda stack, draw: disk_full(stack), (2, 6), 1),
}


@contextmanager
def _both(
    first: AbstractContextManager[None], second: AbstractContextManager[None]
) -> Iterator[None]:
    with first, second:
        yield


def orphans(stack: Stack) -> dict[int, str]:
    """Processes of the state that neither the status nor the fleet knows."""
    status = stack.status()
    known = {row["pid"] for row in status["processes"]} | {row["pid"] for row in status["engines"]}
    known.add(status["supervisor_pid"])
    parents = {pid: _parent(pid) for pid in processes_of(stack.state)}
    found = processes_of(stack.state)
    return {
        pid: words
        for pid, words in found.items()
        if pid not in known and parents.get(pid) not in known
    }


def _parent(pid: int) -> int:
    with suppress(OSError, IndexError, ValueError), open(f"/proc/{pid}/stat") as file:
        return int(file.read().rsplit(")", 1)[1].split()[1])
    return 0

"""What a killed supervisor left running: found again without trusting a pid, and ended in order.

Three sources, because a kill may fall between a start and its record: the supervisor's file, the
mark in the environment of everything that it started, and the servers' working directories (they
overwrite their environment with a title).
"""

import os
import signal
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from capacity.drivers.local import REPLICA_VARIABLE, STATE_VARIABLE
from capacity.drivers.processes import records_in
from capacity.drivers.vllm_serve import remove_all_sockets
from console.supervisor import proc
from console.supervisor.program import SERVERS
from console.supervisor.state import State, read_json
from console.supervisor.status import identity_of, read_board

LEFTOVER_WAIT_S = 15.0
MOST_LOOKS = 5  # after the first, no worker is left that could start more
SERVER_WAIT_S = 60.0  # a database writes its checkpoint
_STOP_SIGNALS = {"postgres": signal.SIGINT}  # fast: it does not wait for its clients
_SERVER_NAMES = ("postgres", "initdb", "valkey-server", "redis-server")


def stop_leftovers(state: State) -> int:
    """End services and replicas, then servers; how many there were. Nothing is on record after.

    A worker that is ending finishes the job it runs, which may start a replica that it sees gone:
    so it is looked again until nothing more is found.
    """
    count = 0
    for _look in range(MOST_LOOKS):
        services, servers = _found(state)
        if not services:
            break
        for identity in services:
            proc.send(identity, signal.SIGTERM)
        proc.end(services, wait_s=LEFTOVER_WAIT_S)
        count += len(services)
    for identity in servers:
        proc.end([identity], signum=_stop_signal(identity.pid), wait_s=SERVER_WAIT_S)
    remove_all_sockets(state.root)
    state.processes.unlink(missing_ok=True)
    return count + len(servers)


def has_leftovers(state: State) -> bool:
    """Whether anything that a supervisor of this state started still runs."""
    return any(_found(state))


def replicas_on_record(state: State) -> frozenset[proc.Identity]:
    """Replicas that the state's records name: they may outlive the worker that started them."""
    records = records_in(state.replicas)
    return frozenset(proc.Identity(it.pid, it.ticks) for it in records if it.is_alive)


def _found(state: State) -> tuple[list[proc.Identity], list[proc.Identity]]:
    """(services and replicas, servers) that still are the processes meant, each once."""
    home = Path(str(read_json(state.servers).get("home") or state.root))
    rows = read_board(state).get("processes", [])
    named = [(identity_of(row), row["stage"] == SERVERS) for row in rows]
    marked = proc.carrying(partial(_is_ours, state.root, home))
    at_home = _working_in({home / "pg", home / "pg.new", home / "valkey"})
    services = [identity for identity, is_server in named if identity and not is_server]
    services += replicas_on_record(state)
    services += [identity for identity in marked if not _is_server(identity.pid)]
    servers = [identity for identity, is_server in named if identity and is_server]
    servers += [identity for identity in (*marked, *at_home) if _is_server(identity.pid)]
    return _living(services), _living(servers)


def _is_ours(root: Path, home: Path, told: Mapping[str, str]) -> bool:
    """Started by a supervisor of this state, or a replica of it."""
    is_replica = REPLICA_VARIABLE in told and told.get(STATE_VARIABLE) == str(root)
    return is_replica or told.get(proc.MARK) in (str(root), str(home))


def _living(identities: Iterable[proc.Identity]) -> list[proc.Identity]:
    return [identity for identity in dict.fromkeys(identities) if identity.is_alive]


def _program_of(pid: int) -> str:
    words = proc.command_line(pid)
    return words[0].split(":")[0].split(" ")[0].rpartition("/")[2] if words else ""


def _is_server(pid: int) -> bool:
    return _program_of(pid) in _SERVER_NAMES


def _stop_signal(pid: int) -> int:
    return _STOP_SIGNALS.get(_program_of(pid), signal.SIGTERM)


def _working_in(directories: set[Path]) -> list[proc.Identity]:
    """Processes with one of these working directories, without those that their like started."""
    wanted = {str(directory) for directory in directories}
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _link(entry / "cwd") in wanted:
            found[int(entry.name)] = proc.identify(int(entry.name))
    roots = [it for pid, it in found.items() if proc.parent_of(pid) not in found]
    return [identity for identity in roots if identity is not None]


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""

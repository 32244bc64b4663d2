"""Choose and check ports on the loopback address; say who holds a taken one."""

import contextlib
import os
import secrets
import socket
from collections.abc import Container
from pathlib import Path

from console.supervisor.proc import command_line
from console.supervisor.state import StartRefused

LOOPBACK = "127.0.0.1"
LOWEST = 20_000  # people choose theirs below
TRIES = 100  # all taken: so is nearly every port of the range
OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LISTEN = "0A"


def is_free(port: int) -> bool:
    """Whether a listener could bind it now. Ports in TIME_WAIT count as free, as for servers."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def require_free(port: int, option: str) -> None:
    """Raise `StartRefused` naming the holder of a taken port and the option to choose another."""
    if not 0 < port < 65536:
        raise StartRefused(f"{option} {port} is not a port: choose one from 1 to 65535")
    if not is_free(port):
        raise StartRefused(f"port {port} is taken{holder(port)}: choose another with {option}")


def choose(preferred: int = 0, *, avoid: Container[int] = ()) -> int:
    """`preferred` if it is free, else a free port, if possible none of an outgoing connection's.

    The system gives those ports to whoever connects to something, also between this choice and the
    server's start.
    """
    if preferred and preferred not in avoid and is_free(preferred):
        return preferred
    count = _first_outgoing() - LOWEST
    for _ in range(TRIES if count > 0 else 0):
        port = LOWEST + secrets.randbelow(count)
        if port not in avoid and is_free(port):
            return port
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((LOOPBACK, 0))
            port = int(probe.getsockname()[1])
        if port not in avoid:
            return port


def _first_outgoing() -> int:
    """The first port that the system gives to outgoing connections; 0 if it does not say."""
    try:
        return int(OUTGOING.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def listens(pid: int, port: int) -> bool | None:
    """Whether it is this process that listens there; None if `/proc` does not let us see."""
    own = Path(f"/proc/{pid}")
    if not os.access(own / "fd", os.R_OK):
        return None
    return _holds(own, _listening_inodes(port))


def holder(port: int, *, besides: Container[int] = ()) -> str:
    """` by pid 12 (nginx)`, as far as `/proc` may be read; empty if nobody (but `besides`) does."""
    inodes = _listening_inodes(port)
    if not inodes:
        return ""
    is_known = False
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _holds(entry, inodes):
            if int(entry.name) in besides:
                is_known = True
                continue
            words = command_line(int(entry.name))
            return f" by pid {entry.name} ({' '.join(words)[:80] or 'unknown'})"
    return "" if is_known else " by a process of another user"


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    return inodes


def _holds(process: Path, inodes: set[str]) -> bool:
    with contextlib.suppress(OSError):
        for entry in os.scandir(process / "fd"):
            with contextlib.suppress(OSError):
                if os.readlink(entry.path) in inodes:
                    return True
    return False

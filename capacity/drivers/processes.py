"""Exactly one operating system process: found again after a restart, never mistaken for another.

A pid alone proves nothing, as it may belong to somebody else by now; the start time and the boot
are compared before a process is believed or signalled. Linux only (/proc, pidfd).
"""

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

_START_FIELD = 19  # after the command's closing bracket; proc(5) calls it field 22
_SESSION_FIELD = 3  # field 6
_TCP_LISTEN = "0A"  # state of a row of /proc/net/tcp
FAREWELL_S = 2.0  # what it started ends by itself just after it
KILL_WAIT_S = 5.0  # SIGKILL cannot be refused; longer means an uninterruptible wait


def boot_id() -> str:
    """Changes with every boot: start times count from it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_ticks(pid: int) -> int | None:
    """Start time of a live process in clock ticks since boot; None for none, or only a zombie."""
    stat = _stat(pid)
    return None if stat is None else stat.ticks


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A started process and where it listens, as kept in its file and in the replica's handle."""

    name: str
    pid: int
    ticks: int
    boot: str
    host: str
    port: int

    @property
    def is_alive(self) -> bool:
        """Whether this very process still runs."""
        return self.boot == boot_id() and start_ticks(self.pid) == self.ticks

    def to_handle(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            "name": self.name,
            "pid": self.pid,
            "ticks": self.ticks,
            "boot": self.boot,
            "host": self.host,
            "port": self.port,
        }


def record_of(handle: object) -> ProcessRecord | None:
    """Inverse of `to_handle`; None if the values are not a process."""
    if not isinstance(handle, dict):
        return None
    try:
        return ProcessRecord(
            name=str(handle["name"]),
            pid=int(handle["pid"]),
            ticks=int(handle["ticks"]),
            boot=str(handle["boot"]),
            host=str(handle["host"]),
            port=int(handle["port"]),
        )
    except (KeyError, TypeError, ValueError):
        return None


def read_record(path: Path) -> ProcessRecord | None:
    """The process that a file names, alive or not."""
    try:
        return record_of(json.loads(path.read_text()))
    except (OSError, ValueError):
        return None


def records_in(directory: Path) -> list[ProcessRecord]:
    """The processes named by a directory's files, alive or not, in order of name."""
    found = (read_record(path) for path in sorted(directory.glob("*.json")))
    return [record for record in found if record is not None]


def write_record(path: Path, record: ProcessRecord) -> None:
    """Put the record in place at once, so that no reader sees half of it."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(record.to_handle()))
    fresh.replace(path)


def signal_process(record: ProcessRecord, signum: int) -> None:
    """Signal this very process; a gone one is left alone.

    The pidfd is opened before the identity is compared, so the pid cannot change hands in between.
    """
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(record.pid)
        try:
            if record.is_alive:
                signal.pidfd_send_signal(handle, signum)
        finally:
            os.close(handle)


def wait_gone(record: ProcessRecord, timeout_s: float) -> bool:
    """Wait until the process has ended; False if it still runs after the time."""
    end_s = time.monotonic() + timeout_s
    while record.is_alive and (left_s := end_s - time.monotonic()) > 0:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(record.pid)
            try:
                select.select([handle], [], [], left_s)
            finally:
                os.close(handle)
        reap(record.pid)
    return not record.is_alive


def reap(pid: int) -> None:
    """Let go of a child that has ended; nothing happens when it is somebody else's."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def end(record: ProcessRecord, drain_s: float, mark: Mapping[str, str]) -> None:
    """SIGTERM, wait, SIGKILL, wait; then the same for what it started and left behind."""
    signal_process(record, signal.SIGTERM)
    if not wait_gone(record, drain_s):
        signal_process(record, signal.SIGKILL)
        wait_gone(record, KILL_WAIT_S)
    reap(record.pid)
    left = [replace(record, pid=pid, ticks=ticks) for pid, ticks in _members(record, mark)]
    for member in left:
        if not wait_gone(member, FAREWELL_S):
            signal_process(member, signal.SIGKILL)
    for member in left:
        wait_gone(member, KILL_WAIT_S)
    reap(record.pid)  # a killed process of many threads is the last to be collected


def carries(pid: int, mark: Mapping[str, str]) -> bool:
    """Whether a process was started with all of these variables; False if it cannot be read."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return all(os.fsencode(f"{name}={value}") in entries for name, value in mark.items())


def marked_sessions(mark: Mapping[str, str]) -> list[tuple[int, int]]:
    """(pid, start) of live processes that lead a session and carry the mark."""
    found = []
    for pid in _all_pids():
        stat = _stat(pid)
        if stat is not None and stat.session == pid and carries(pid, mark):
            found.append((pid, stat.ticks))
    return found


def holds_port(record: ProcessRecord, mark: Mapping[str, str]) -> bool | None:
    """Whether every socket that listens on the record's port is the process's own.

    None if none listens. The mark is that of the processes it may have started to listen for it.
    """
    listening = _listening_inodes(record.port)
    if not listening:
        return None
    listening -= _socket_inodes(record.pid)
    for pid, _ticks in _members(record, mark) if listening else ():
        listening -= _socket_inodes(pid)
    return not listening


@dataclass(frozen=True, slots=True)
class _Stat:
    session: int
    ticks: int


def _stat(pid: int) -> _Stat | None:
    """Session and start of a live process; None for none, or only a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    if len(fields) <= _START_FIELD or fields[0] in ("Z", "X"):
        return None
    return _Stat(int(fields[_SESSION_FIELD]), int(fields[_START_FIELD]))


def _all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _members(record: ProcessRecord, mark: Mapping[str, str]) -> list[tuple[int, int]]:
    """(pid, start) of live processes in the session that the process led, without itself.

    The kernel gives a pid to nobody while a session of that number lives; the mark excludes one
    that came after it.
    """
    if record.boot != boot_id() or start_ticks(record.pid) not in (None, record.ticks):
        return []
    found = []
    for pid in _all_pids():
        stat = _stat(pid)
        is_member = stat is not None and pid != record.pid and stat.session == record.pid
        if stat is not None and is_member and carries(pid, mark):
            found.append((pid, stat.ticks))
    return found


def _listening_inodes(port: int) -> set[str]:
    """Socket numbers that listen on a port, on any address of this machine."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            fields = row.split()
            is_listening = fields[3] == _TCP_LISTEN
            if is_listening and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(fields[9])
    return found


def _socket_inodes(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(entry)
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found

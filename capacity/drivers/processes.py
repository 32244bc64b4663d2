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
from dataclasses import dataclass
from pathlib import Path

_START_FIELD = 19  # after the command's closing bracket; proc(5) calls it field 22
KILL_WAIT_S = 5.0  # SIGKILL cannot be refused; longer means an uninterruptible wait


def boot_id() -> str:
    """Changes with every boot: start times count from it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_ticks(pid: int) -> int | None:
    """Start time of a live process in clock ticks since boot; None for none, or only a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    if len(fields) <= _START_FIELD or fields[0] in ("Z", "X"):
        return None
    return int(fields[_START_FIELD])


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


def end(record: ProcessRecord, drain_s: float) -> None:
    """SIGTERM, wait, SIGKILL, wait."""
    signal_process(record, signal.SIGTERM)
    if not wait_gone(record, drain_s):
        signal_process(record, signal.SIGKILL)
        wait_gone(record, KILL_WAIT_S)
    reap(record.pid)

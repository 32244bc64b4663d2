"""What Linux says about processes, and ending exactly the ones that are meant.

A pid alone proves nothing: it may belong to somebody else by now. An `Identity` adds the start
time, and nothing is signalled before both agree.
"""

import contextlib
import ctypes
import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_START_TICKS_FIELD = 19  # counted after the command's closing bracket: proc(5) calls it field 22
_PARENT_FIELD = 1
# In the environment of everything that a supervisor starts, and of what those start in turn: its
# state. So also what was started and not yet on record when the supervisor was killed is found.
MARK = "HEADRACE_SUPERVISED"


@dataclass(frozen=True, slots=True)
class Identity:
    """A process: `ticks` is its start in clock ticks since boot."""

    pid: int
    ticks: int

    @property
    def is_alive(self) -> bool:
        """Whether this very process (not a successor of its pid) still runs."""
        return start_ticks(self.pid) == self.ticks


def _stat_fields(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def start_ticks(pid: int) -> int | None:
    """Start time of a live process; None if there is none, or only its unreaped remains."""
    fields = _stat_fields(pid)
    if len(fields) <= _START_TICKS_FIELD or fields[0] in ("Z", "X"):
        return None
    return int(fields[_START_TICKS_FIELD])


def identify(pid: int) -> Identity | None:
    """The process that has this pid now."""
    ticks = start_ticks(pid)
    return None if ticks is None else Identity(pid, ticks)


def boot_id() -> str:
    """Changes with every boot: start times count from it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def command_line(pid: int) -> tuple[str, ...]:
    """Arguments of a process; empty if it is gone or not readable."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(part.decode(errors="replace") for part in raw.split(b"\0") if part)


def parent_of(pid: int) -> int | None:
    """Its parent now; None if it is gone."""
    fields = _stat_fields(pid)
    return int(fields[_PARENT_FIELD]) if fields else None


def children_of(parent: int) -> list[int]:
    """Direct children, live ones only."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        fields = _stat_fields(int(entry.name))
        if fields and fields[0] not in ("Z", "X") and int(fields[_PARENT_FIELD]) == parent:
            found.append(int(entry.name))
    return found


def carrying(is_ours: Callable[[Mapping[str, str]], bool]) -> list[Identity]:
    """Processes whose environment says that they are ours, without their own such children.

    Neither this process nor the one that started it.
    """
    found = {}
    spared = (os.getpid(), os.getppid())
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in spared:
            continue
        with contextlib.suppress(OSError):
            words = os.fsdecode((entry / "environ").read_bytes()).split("\0")
            if is_ours(dict(word.partition("=")[::2] for word in words)):
                found[int(entry.name)] = identify(int(entry.name))
    roots = [identity for pid, identity in found.items() if parent_of(pid) not in found]
    return [identity for identity in roots if identity is not None]


def become_subreaper() -> None:
    """From now on orphaned grandchildren become children of this process."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """From now on the kernel kills this process when its parent dies."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def send(identity: Identity, signum: int) -> None:
    """Signal exactly this process; a dead one is left alone.

    The pidfd is opened before the identity is compared, so the pid cannot change hands in between.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        handle = os.pidfd_open(identity.pid)
        try:
            if identity.is_alive:
                signal.pidfd_send_signal(handle, signum)
        finally:
            os.close(handle)


def wait_gone(identities: list[Identity], timeout_s: float) -> list[Identity]:
    """Wait until all have ended; those still alive at the end of the time."""
    deadline = time.monotonic() + timeout_s
    alive = [identity for identity in identities if identity.is_alive]
    while alive and (left_s := deadline - time.monotonic()) > 0:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(alive[0].pid)
            try:
                if alive[0].is_alive:
                    select.select([handle], [], [], left_s)
            finally:
                os.close(handle)
        _reap_own(alive[0].pid)
        alive = [identity for identity in alive if identity.is_alive]
    return alive


def _reap_own(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def end(identities: list[Identity], *, signum: int = signal.SIGTERM, wait_s: float) -> bool:
    """Ask to stop, wait, then kill. True if all are gone."""
    for identity in identities:
        send(identity, signum)
    stubborn = wait_gone(identities, wait_s)
    for identity in stubborn:
        send(identity, signal.SIGKILL)
    return not wait_gone(stubborn, wait_s)

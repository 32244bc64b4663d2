"""The state directory: what survives between two runs of `up`, and who holds it.

Secrets lie in files of mode 0600. The directory itself is readable by its owner only; when root
runs Headrace others may pass through it, because the servers run as another user inside.
"""

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from console.errors import DomainError
from console.supervisor import proc

SECRET_MODE = 0o600
OWNER_ONLY = 0o700
TRAVERSABLE = 0o711
_BLOCK_BYTES = 4096  # what a file needs at least on a common file system


class StartRefused(DomainError):  # noqa: N818 - named for what it says
    """The product cannot start, stop or answer; the message is one line for a person."""

    code = "start_refused"


@dataclass(frozen=True, slots=True)
class State:
    """Paths below one state directory."""

    root: Path

    @classmethod
    def current(cls) -> "State":
        """The directory that bootstrap put into `HEADRACE_STATE`."""
        return cls(Path(os.environ["HEADRACE_STATE"]))

    @property
    def environment(self) -> Path:
        """Settings of every process, with secrets; `manage.py` loads it."""
        return self.root / "environment.json"

    @property
    def credentials(self) -> Path:
        """What a person needs to sign in and to call the gateway."""
        return self.root / "credentials.json"

    @property
    def processes(self) -> Path:
        """What runs now; absent when nothing does."""
        return self.root / "processes.json"

    @property
    def servers(self) -> Path:
        """Which servers hold this state's data, and where."""
        return self.root / "servers.json"

    @property
    def prepared(self) -> Path:
        """What schema and demo the database was last brought to."""
        return self.root / "prepared.json"

    @property
    def logs(self) -> Path:
        """One log for each process."""
        return self.root / "logs"

    @property
    def pids(self) -> Path:
        """One pid file for each process."""
        return self.root / "pids"

    @property
    def replicas(self) -> Path:
        """One file for each replica that runs as a process of this machine."""
        return self.root / "replicas"

    def create(self) -> bool:
        """Make the directory; True if it was not there. Raises `StartRefused` if not writable."""
        is_new = not self.root.exists()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if is_new:
                self.root.chmod(TRAVERSABLE if os.geteuid() == 0 else OWNER_ONLY)
            for path in (self.logs, self.pids, self.replicas):
                path.mkdir(mode=OWNER_ONLY, exist_ok=True)
            for path in (self.root, self.logs, self.pids, self.replicas):
                try_write(path)
        except OSError as error:
            if is_new:
                shutil.rmtree(self.root, ignore_errors=True)
            raise StartRefused(
                f"cannot write to the state directory {error.filename or self.root} "
                f"({error.strerror}): {self._next_step(error)}"
            ) from error
        return is_new

    @staticmethod
    def _next_step(error: OSError) -> str:
        if error.errno == errno.ENOSPC:
            return "free some space, or name another with --state DIR"
        return "name another with --state DIR"

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the state for this process. Raises `StartRefused` if another supervisor has it."""
        path = self.root / "supervisor.lock"
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, SECRET_MODE)
        except OSError as error:
            raise StartRefused(f"cannot write {path}: {error.strerror}") from error
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _holder_in(handle)
                raise StartRefused(
                    f"already running on {self.root} (pid {holder.pid if holder else 'unknown'}): "
                    "see `manage.py status`, stop it with `manage.py down`"
                ) from None
            me = proc.identify(os.getpid())
            # One write over the predecessor's: a reader in between sees either, never nothing.
            with contextlib.suppress(OSError):  # a full disk: the lock counts, the number is a help
                os.pwrite(handle, f"{os.getpid()} {me.ticks if me else 0}".ljust(40).encode(), 0)
            yield
        finally:
            os.close(handle)

    def holder(self) -> proc.Identity | None:
        """The supervisor that holds the state; None if nobody does.

        Raises `StartRefused` if the holder has not said who it is (for microseconds, at its start).
        """
        try:
            handle = os.open(self.root / "supervisor.lock", os.O_RDONLY)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            found = _holder_in(handle)
            if found is None:
                raise StartRefused(
                    f"{self.root} is held by a process that cannot be named: try again"
                ) from None
            return found
        else:
            return None
        finally:
            os.close(handle)


def _holder_in(handle: int) -> proc.Identity | None:
    """The live process that the lock file names; a predecessor's entry does not count."""
    words = os.pread(handle, 64, 0).split()
    if len(words) == 1 and words[0].isdigit():  # written by an older version
        return proc.identify(int(words[0]))
    if len(words) != 2 or not all(word.isdigit() for word in words):
        return None
    found = proc.Identity(int(words[0]), int(words[1]))
    return found if found.is_alive else None


def try_write(directory: Path) -> None:
    """Write a block into a directory and take it away again. Raises `OSError` where that fails.

    Mode bits do not tell: root passes them, and a full or read-only disk does not show there.
    """
    probe = directory / f".probe.{os.getpid()}"
    handle = os.open(probe, os.O_WRONLY | os.O_CREAT, SECRET_MODE)
    try:
        os.write(handle, bytes(_BLOCK_BYTES))
    except OSError as error:
        error.filename = str(directory)
        raise
    finally:
        os.close(handle)
        probe.unlink(missing_ok=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file at once, readable by its owner only.

    Raises `StartRefused` if it cannot be written; what was there before then stays.
    """
    part = path.with_name(path.name + ".part")
    try:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, SECRET_MODE)
        with os.fdopen(handle, "w") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise StartRefused(f"cannot write {path}: {error.strerror}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty if there is none.

    Raises `StartRefused` if it is there and cannot be read.
    """
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise StartRefused(f"cannot read {path}: {error}") from error
    return content if isinstance(content, dict) else {}

"""The state directory: what survives between two runs of `up`, and who holds it.

Secrets lie in files of mode 0600. The directory itself is readable by its owner only; when root
runs Headrace others may pass through it, because the servers run as another user inside.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from console.errors import DomainError

SECRET_MODE = 0o600
OWNER_ONLY = 0o700
TRAVERSABLE = 0o711


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
        """One file for each replica that the simulated driver started."""
        return self.root / "replicas"

    def create(self) -> bool:
        """Make the directory; True if it was not there. Raises `StartRefused` if not writable."""
        is_new = not self.root.exists()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            if is_new:
                self.root.chmod(TRAVERSABLE if os.geteuid() == 0 else OWNER_ONLY)
            if not os.access(self.root, os.W_OK | os.X_OK):
                raise PermissionError(13, "Permission denied")
            for path in (self.logs, self.pids, self.replicas):
                path.mkdir(mode=OWNER_ONLY, exist_ok=True)
        except OSError as error:
            if is_new:
                shutil.rmtree(self.root, ignore_errors=True)
            raise StartRefused(
                f"cannot write to the state directory {self.root} ({error.strerror}): "
                "name another with --state DIR"
            ) from error
        return is_new

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the state for this process. Raises `StartRefused` if another supervisor has it."""
        handle = os.open(self.root / "supervisor.lock", os.O_RDWR | os.O_CREAT, SECRET_MODE)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pid = os.read(handle, 20).decode().strip()
                raise StartRefused(
                    f"already running on {self.root} (pid {pid or 'unknown'}): "
                    "see `manage.py status`, stop it with `manage.py down`"
                ) from None
            os.ftruncate(handle, 0)
            os.pwrite(handle, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(handle)

    def holder_pid(self) -> int | None:
        """Pid of the supervisor that holds the state; None if nobody does."""
        try:
            handle = os.open(self.root / "supervisor.lock", os.O_RDONLY)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(os.read(handle, 20) or b"0") or None
        else:
            return None
        finally:
            os.close(handle)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file at once, readable by its owner only."""
    part = path.with_name(path.name + ".part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, SECRET_MODE)
    with os.fdopen(handle, "w") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


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

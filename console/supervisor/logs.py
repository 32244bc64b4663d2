"""Log files of the processes: opened for appending, bounded in size, last words of a dead one."""

import contextlib
import os
import shutil
from pathlib import Path
from typing import BinaryIO

LARGEST_LOG_BYTES = 20 * 1024 * 1024  # one older copy is kept: 40 MB for each process at most
_TAIL_BYTES = 4096
_LINE_LENGTH = 200  # enough for an exception and its message in a status table


def open_log(path: Path) -> BinaryIO:
    """Append, so that copy-and-truncate works while the process writes.

    Where no file can be opened (a full disk, a directory that became read-only) what is written
    goes nowhere: a process without a log is better than none.
    """
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError:
        handle = os.open(os.devnull, os.O_WRONLY)
    return os.fdopen(handle, "ab", buffering=0)


def rotate_large(directory: Path) -> None:
    """Move what is in a large log aside; the writer keeps its handle.

    On a full disk there is no room for the copy: then the log is emptied, which makes some.
    """
    for path in directory.glob("*.log"):
        with contextlib.suppress(OSError):
            if path.stat().st_size > LARGEST_LOG_BYTES:
                older = path.with_suffix(".log.1")
                try:
                    shutil.copyfile(path, older)
                except OSError:
                    older.unlink(missing_ok=True)
                os.truncate(path, 0)


def last_line(path: Path) -> str:
    """The last line that says something, shortened; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip()[:_LINE_LENGTH] for line in reversed(lines) if line.strip()), "")

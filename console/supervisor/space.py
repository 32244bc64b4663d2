"""Room on the disk of the state: refused at the start when there is too little to get through it.

What runs is not stopped by a full disk; it says so (`console.conditions`) and goes on when there is
room again.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from console.supervisor.state import StartRefused

MIB = 2**20
FIRST_START_BYTES = 256 * MIB  # database files, their first write-ahead log, schema and demo rows
NEXT_START_BYTES = 64 * MIB  # four segments of the write-ahead log


def free_bytes(path: Path) -> int:
    """What an ordinary user may still write on the file system of a directory, in bytes.

    Of one that is not there yet, the nearest directory above counts.
    """
    while not path.exists() and path != path.parent:
        path = path.parent
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def require(directories: Iterable[Path], needed_bytes: int) -> None:
    """Raise `StartRefused` naming the first directory whose disk has less room than needed."""
    for directory in directories:
        try:
            free = free_bytes(directory)
        except OSError as error:
            raise StartRefused(f"cannot look at {directory}: {error.strerror}") from error
        if free < needed_bytes:
            raise StartRefused(
                f"{free // MIB} MiB are free on the disk of {directory}, a start needs "
                f"{needed_bytes // MIB}: free some space, or name another with --state DIR"
            )

"""A journal's start: own the directory, read what earlier runs left in it and beside it."""

import fcntl
import logging
import os
import threading
import time
from pathlib import Path
from typing import Final

from routing.gateway.journal_file import END, OPEN, PROGRESS, Unfinished, frame, gather, read_file

log = logging.getLogger(__name__)

SUFFIX: Final = ".hrj"
LOCK_WAIT_S: Final = 10.0  # a starting sibling holds our directory for milliseconds
_LOCK_LOOK_S: Final = 0.05


class JournalLockedError(Exception):
    """Another living process owns the directory: two gateways share one id."""


def path_of(directory: Path, number: int) -> Path:
    """The journal file of this number."""
    return directory / f"{number}{SUFFIX}"


def own(directory: Path, wait_s: float) -> int:
    """A descriptor whose lock makes the directory ours; raises `JournalLockedError`."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    give_up_s = time.monotonic() + wait_s
    nobody = threading.Event()
    while not _try_lock(fd):
        if time.monotonic() >= give_up_s:
            os.close(fd)
            raise JournalLockedError(f"{directory} is owned by another gateway")
        nobody.wait(_LOCK_LOOK_S)
    return fd


def read_own(directory: Path) -> tuple[list[int], dict[str, Unfinished], bool]:
    """(file numbers, unfinished by id, whether one is damaged); cuts the last file's torn end."""
    found: dict[str, Unfinished] = {}
    is_damaged = False
    numbers = _numbers(directory)
    for number in numbers:
        path = path_of(directory, number)
        contents = read_file(path.read_bytes())
        if contents.is_cut and number == numbers[-1]:
            with path.open("r+b") as file:  # the write that a crash tore: nobody was told of it
                file.truncate(contents.good_bytes)
        elif contents.is_cut:
            is_damaged = True
            log.error("journal_damaged: %s is readable for %d bytes", path, contents.good_bytes)
        gather(contents.records, number, found)
    return numbers, found, is_damaged


def adopt_siblings(directory: Path, fd: int, number: int, found: dict[str, Unfinished]) -> bool:
    """Take over what gateways that no longer run have left: into our file, then theirs go.

    `fd` and `number` are our present file. Returns whether a file of theirs is damaged.
    """
    is_damaged = False
    for sibling in sorted(directory.parent.iterdir()):
        if sibling == directory or not sibling.is_dir():
            continue
        lock_fd = os.open(sibling, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if _try_lock(lock_fd) and _adopt(sibling, fd, number, found):
                is_damaged = True
        finally:
            os.close(lock_fd)
    return is_damaged


def _adopt(sibling: Path, fd: int, our_number: int, found: dict[str, Unfinished]) -> bool:
    theirs: dict[str, Unfinished] = {}
    is_damaged = False
    numbers = _numbers(sibling)
    for number in numbers:
        contents = read_file(path_of(sibling, number).read_bytes())
        if contents.is_cut and number != numbers[-1]:
            is_damaged = True
            log.error("journal_damaged: %s file %d", sibling, number)
        gather(contents.records, our_number, theirs)
    if not numbers:
        return False
    Progress(b"".join(_records_of(item) for item in theirs.values())).write(fd)
    os.fdatasync(fd)
    for item in theirs.values():
        item.file_number = our_number
        found.setdefault(item.request_id, item)
    for number in numbers:
        path_of(sibling, number).unlink()
    log.info("adopted %d unfinished requests of %s", len(theirs), sibling.name)
    return is_damaged


class Progress:
    """A batch on its way to the file; a second try goes on where a short write stopped."""

    def __init__(self, raw: bytes) -> None:
        """Nothing is written yet."""
        self._rest = memoryview(raw)

    def write(self, fd: int) -> None:
        """Write what is left; raises `OSError`."""
        while self._rest:
            self._rest = self._rest[os.write(fd, self._rest) :]


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _numbers(directory: Path) -> list[int]:
    return sorted(int(p.stem) for p in directory.glob(f"*{SUFFIX}") if p.stem.isdigit())


def _records_of(item: Unfinished) -> bytes:
    """An id's records again, as few as say the same."""
    rows = b""
    if item.bucket is not None:
        rows += frame(OPEN, (item.request_id, item.bucket, item.res_epoch, item.info, item.legs))
    if item.out_so_far:
        rows += frame(PROGRESS, (item.request_id, item.out_so_far))
    if item.kind:
        rows += frame(END, (item.request_id, item.kind, item.charge, item.event, item.legs))
    return rows

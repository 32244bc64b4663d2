"""The snapshot in force: from the store, else from our own disk; swapped between requests."""

import logging
import os
from collections.abc import Callable
from pathlib import Path

import hiredis

from routing.contracts.snapshot import Snapshot, SnapshotError, decode_snapshot
from routing.store import keys
from routing.store.client import StoreAwayError
from routing.store.cluster import Store

log = logging.getLogger(__name__)

MAX_SNAPSHOT_BYTES = 256 << 20  # 10,000 tenants with keys and limits are about 20 MB


def read_disk(path: Path) -> Snapshot | None:
    """The last good snapshot of an earlier run, or None (said in the log when it is damaged)."""
    try:
        return decode_snapshot(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, SnapshotError) as error:
        log.warning("the snapshot on disk cannot be used: %s", error)
        return None


def write_disk(path: Path, raw: bytes) -> None:
    """Keep a good snapshot: written beside, synced, renamed over. Raises `OSError`."""
    fresh = path.with_suffix(".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    fresh.replace(path)


class SnapshotKeeper:
    """Polls the store's snapshot number and takes newer ones over.

    A number lower than ours is taken too: the store's word is the newest published one, and a
    database that was restored counts again. `taken(snapshot, raw)` runs in the loop.
    """

    def __init__(self, store: Store, taken: Callable[[Snapshot, bytes], None]) -> None:
        self._store = store
        self._taken = taken
        self._refused = b""
        self.number = 0

    async def poll(self) -> None:
        """One look. A store that is away or a damaged snapshot changes nothing."""
        try:
            number = await self._store.call("GET", keys.SNAPSHOT_NUMBER)
            if not isinstance(number, bytes) or number in (b"%d" % self.number, self._refused):
                return
            raw = await self._store.call("GET", keys.SNAPSHOT)
        except (StoreAwayError, hiredis.ReplyError):
            return
        if not isinstance(raw, bytes) or len(raw) > MAX_SNAPSHOT_BYTES:
            return
        try:
            snapshot = decode_snapshot(raw)
        except SnapshotError as error:
            self._refused = number
            log.warning(
                "snapshot %s is refused, the last good one stays: %s", number.decode(), error
            )
            return
        if snapshot.number != self.number:
            self.number = snapshot.number
            self._taken(snapshot, raw)

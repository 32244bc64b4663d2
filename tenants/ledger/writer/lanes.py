"""One ledger writer for each server of the store: no master of a cluster waits for another."""

import logging
import threading
from dataclasses import dataclass, field

from routing.store.address import cluster_of
from routing.store.counters import StoreLost, masters
from tenants.ledger.writer.database import Database
from tenants.ledger.writer.heartbeat import Progress, together
from tenants.ledger.writer.process import LedgerWriter

logger = logging.getLogger(__name__)

WATCH_S = 2.0  # how soon a new master's buckets are booked
STOP_S = 30.0  # a batch in hand is finished first


class LaneDied(RuntimeError):  # noqa: N818 - says what happened
    """A writer ended without being told to: the process ends, and is started again."""


@dataclass(slots=True)
class _Lane:
    thread: threading.Thread
    progress: Progress
    stop: threading.Event = field(default_factory=threading.Event)


class Lanes:
    """The ledger writers of one process. A master that is away is waited for by its own writer."""

    def __init__(self, store_url: str, stop: threading.Event) -> None:
        self._url = store_url
        self._stop = stop
        self._lanes: dict[str, _Lane] = {}
        self._trouble = ""

    def progress(self) -> Progress:
        """What all of them have done."""
        mine = Progress(trouble=self._trouble)
        return together([mine, *(lane.progress for lane in list(self._lanes.values()))])

    def run(self) -> None:
        """Work until stopped. Raises `LaneDied`."""
        is_cluster = cluster_of(self._url) is not None
        try:
            while not self._stop.is_set():
                self._follow([self._url] if not is_cluster else None)
                self._stop.wait(WATCH_S)
        finally:
            for lane in self._lanes.values():
                lane.stop.set()
            for lane in self._lanes.values():
                lane.thread.join(STOP_S)

    def _follow(self, wanted: list[str] | None) -> None:
        """A writer for each server, none for one that holds nothing any more."""
        for lane in self._lanes.values():
            if not lane.thread.is_alive() and not lane.stop.is_set():
                raise LaneDied(f"{lane.thread.name} ended")
        try:
            urls = masters(self._url) if wanted is None else wanted
        except StoreLost as error:
            self._trouble = "waiting for the store"
            logger.warning("%s", error)
            return
        self._trouble = ""
        for url in self._lanes.keys() - set(urls):
            self._lanes.pop(url).stop.set()
        for url in set(urls) - self._lanes.keys():
            self._lanes[url] = self._start(url)

    @staticmethod
    def _start(url: str) -> _Lane:
        stop, progress = threading.Event(), Progress()
        writer = LedgerWriter(
            store_url=url, database=Database.from_settings(), stop=stop, progress=progress
        )
        place = url.rpartition("@")[2].rpartition("/")[2]
        thread = threading.Thread(target=writer.run, name=f"ledger-{place}", daemon=True)
        lane = _Lane(thread, progress, stop)
        thread.start()
        return lane

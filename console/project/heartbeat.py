"""A thread that tells the store, every second, that this process lives."""

import logging
import os
import threading
import time
from collections.abc import Callable

from redis.exceptions import RedisError

from routing.contracts.process import ProcessStatus, decode_process_status, encode_status
from routing.store import keys
from routing.store.pooled import sync_client

logger = logging.getLogger(__name__)

EVERY_S = 1.0
FORGET_AFTER_MS = 3600 * 1000  # entries of processes that are long gone
TIMEOUT_S = 2.0


class Heartbeat:
    """Writes a `ProcessStatus` under `<name>:<pid>` until stopped, then removes it.

    While `why_stuck` gives a reason it writes nothing: the process then counts as silent, and the
    supervisor ends it.
    """

    def __init__(
        self, name: str, redis_url: str, why_stuck: Callable[[], str] = lambda: ""
    ) -> None:
        self._name = name
        self._why_stuck = why_stuck
        self._field = f"{name}:{os.getpid()}"
        self._started_at_ms = _now_ms()
        self._stop = threading.Event()
        self._redis = sync_client(redis_url, timeout_s=TIMEOUT_S)
        self._thread = threading.Thread(target=self._loop, name=f"{name}-heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and remove the entry; a store that is away is no error."""
        self._stop.set()
        self._thread.join(timeout=2 * TIMEOUT_S)
        try:
            self._redis.hdel(keys.PROCESSES, self._field)
        except RedisError as error:
            logger.info("process entry not removed: %s", error)

    def _loop(self) -> None:
        is_away, is_stuck = False, False
        self._try_forget()
        while True:
            try:
                if not (why := self._why_stuck()):
                    self._write()
                elif not is_stuck:
                    logger.error("no heartbeat any more: %s", why)
                is_stuck = bool(why)
            except RedisError as error:
                if not is_away:
                    logger.warning("process status not written: %s", error)
                is_away = True
            else:
                is_away = False
            if self._stop.wait(EVERY_S):
                return

    def _write(self) -> None:
        status = ProcessStatus(
            name=self._name,
            pid=os.getpid(),
            started_at_ms=self._started_at_ms,
            at_ms=_now_ms(),
        )
        self._redis.hset(keys.PROCESSES, self._field, encode_status(status))

    def _try_forget(self) -> None:
        try:
            for field, raw in self._redis.hgetall(keys.PROCESSES).items():
                at_ms = decode_process_status(raw).at_ms if isinstance(raw, bytes) else 0
                if at_ms < _now_ms() - FORGET_AFTER_MS:
                    self._redis.hdel(keys.PROCESSES, field)
        except RedisError as error:
            logger.info("old process entries not removed: %s", error)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

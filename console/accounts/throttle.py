"""Sign-in throttle: few failures per name and address, counted in the store, gone by themselves.

An attempt is counted before its password is checked, so parallel guesses cannot pass the bound.
While the store is away each console process counts for itself: an operator needs the console most
during an outage, and guesses stay bounded. When its own memory is full it refuses.
"""

import logging
import threading
import time
from typing import cast

from django.conf import settings
from redis.exceptions import RedisError

from console.web.store import store
from routing.contracts.digest import keyed_digest
from routing.store import keys

logger = logging.getLogger(__name__)

MAX_FAILURES = 10
WINDOW_S = 300
MAX_COUNTED = 10_000  # names and addresses that one process counts while the store is away


class LocalCounts:
    """Attempts of this process, by key; each counts for `WINDOW_S` from its first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, tuple[int, float]] = {}  # key -> (attempts, end of its window)

    def begin(self, key: str, now_s: float) -> bool:
        """Count one; False if it is one too many, or if nothing more can be counted."""
        with self._lock:
            if key not in self._counts and len(self._counts) >= MAX_COUNTED:
                self._counts = {k: v for k, v in self._counts.items() if v[1] > now_s}
                if len(self._counts) >= MAX_COUNTED:
                    return False
            count, end_s = self._counts.get(key, (0, 0.0))
            if end_s <= now_s:
                count, end_s = 0, now_s + WINDOW_S
            self._counts[key] = (count + 1, end_s)
            return count < MAX_FAILURES

    def forget(self, key: str) -> None:
        """Its owner has signed in."""
        with self._lock:
            self._counts.pop(key, None)


_local = LocalCounts()


def begin_attempt(username: str, address: str) -> bool:
    """Count an attempt; False means that it must be refused unchecked."""
    key = _key(username, address)
    try:
        with store().pipeline(transaction=True) as pipe:
            pipe.set(key, 0, ex=WINDOW_S, nx=True)  # the window starts with the first attempt
            pipe.incr(key)
            attempts = cast("int", pipe.execute()[1])
    except RedisError as error:
        logger.warning("sign-in counted by this process alone, the store is away: %s", error)
        return _local.begin(key, time.monotonic())
    return attempts <= MAX_FAILURES


def forget_failures(username: str, address: str) -> None:
    """Called after a success: only failures count."""
    key = _key(username, address)
    _local.forget(key)
    try:
        store().delete(key)
    except RedisError as error:
        logger.warning("sign-in count not reset, the store is away: %s", error)


def _key(username: str, address: str) -> str:
    subject = f"{username.strip().casefold()}\n{address}"
    return keys.sign_in_failures(keyed_digest(settings.KEY_PEPPER.encode(), subject.encode()))

"""The console's one pooled client of the store."""

from functools import lru_cache

from django.conf import settings
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from console.outage.watch import STORE_SILENT_AFTER_S, Watch
from routing.store.pooled import sync_client

TIMEOUT_S = 1.0  # a page would rather show a lost part than wait
WATCH_TIMEOUT_S = 5.0  # of the watch's own question: long enough to see the end of a pause


def store() -> Redis:
    """Client for short reads and writes of pages.

    Raises `RedisError`: at once while the store is known to be away, else on use.
    """
    if why := store_watch.why_away:
        raise RedisConnectionError(why)
    return pooled_client()


@lru_cache(maxsize=1)
def pooled_client() -> Redis:
    """The client itself, also while the store is away."""
    return sync_client(settings.REDIS_URL, timeout_s=TIMEOUT_S)


@lru_cache(maxsize=1)
def _watch_client() -> Redis:
    return sync_client(settings.REDIS_URL, timeout_s=WATCH_TIMEOUT_S)


def _ping() -> None:
    _watch_client().ping()


store_watch = Watch("The store", _ping, (RedisError,), STORE_SILENT_AFTER_S)

"""The console's one pooled client of the store."""

from functools import lru_cache

from django.conf import settings
from redis import Redis

from routing.store.pooled import sync_client

TIMEOUT_S = 1.0  # a page would rather show a lost part than wait


@lru_cache(maxsize=1)
def store() -> Redis:
    """Client for short reads and writes of pages; raises `RedisError` on use while it is away."""
    return sync_client(settings.REDIS_URL, timeout_s=TIMEOUT_S)

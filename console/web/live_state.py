"""What the collector last said of pools, read from the store for pages.

Each function is one bounded round trip. A store that is away gives `None`, which pages show as a
lost part; an entry that cannot be read is left out.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from redis.exceptions import RedisError

from console.web.store import store
from routing.contracts.endpoint_state import PoolState, decode_pool_state
from routing.store import keys

logger = logging.getLogger(__name__)

STALE_AFTER_S = 3.0  # three periods of the collector
MAX_ENTRIES = 2000  # pools shown; more than one installation has


@dataclass(frozen=True, slots=True)
class SeenPool:
    """Latest state of a pool's replicas with the age of the collector's report in seconds."""

    state: PoolState
    age_s: float

    @property
    def is_stale(self) -> bool:
        """Whether the collector stopped reporting."""
        return self.age_s > STALE_AFTER_S


def pool_states(pools: Iterable[str]) -> dict[str, SeenPool] | None:
    """State of the named pools; a pool without one is not in the result."""
    names = list(pools)[:MAX_ENTRIES]
    if not names:
        return {}
    try:
        pipe = store().pipeline(transaction=False)  # pools may lie in different cluster slots
        for name in names:
            pipe.get(keys.pool_state(name))
        raws = pipe.execute()
    except RedisError as error:
        logger.info("pool states not read, the store is away: %s", error)
        return None
    seen = {}
    for name, raw in zip(names, raws, strict=True):
        state = _decoded(raw, decode_pool_state) if raw else None
        if state is not None:
            seen[name] = SeenPool(state, age_of_ms(state.at_ms))
    return seen


def age_of_ms(at_ms: int) -> float:
    """Seconds since a Unix instant in milliseconds, never negative (clocks differ a little)."""
    return max(0.0, time.time() - at_ms / 1000)


def _decoded(raw: bytes, decode: Callable[[bytes], Any]) -> Any:
    try:
        return decode(raw)
    except msgspec.MsgspecError as error:
        logger.warning("unreadable state left out: %s", error)
        return None

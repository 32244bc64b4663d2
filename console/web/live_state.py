"""What processes, gateways and pools last said of themselves, read from the store for pages.

Each function is one bounded round trip. A store that is away gives `None`, which pages show as a
lost part; an entry that is too old counts as gone, one that cannot be read is left out.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import msgspec
from redis.exceptions import RedisError

from console.web.store import store
from routing.contracts.endpoint_state import PoolState, decode_pool_state
from routing.contracts.process import (
    GatewayStatus,
    ProcessStatus,
    decode_gateway_status,
    decode_process_status,
)
from routing.store import keys

logger = logging.getLogger(__name__)

GONE_AFTER_S = 10.0  # writers repeat themselves every 1 to 2 s
STALE_AFTER_S = 3.0  # three periods of the collector
MAX_ENTRIES = 2000  # processes and gateways shown; more than one installation runs

S = TypeVar("S", GatewayStatus, ProcessStatus)


@dataclass(frozen=True, slots=True)
class Seen(Generic[S]):
    """A status with its age in seconds."""

    status: S
    age_s: float

    @property
    def is_gone(self) -> bool:
        """Whether it stopped reporting."""
        return self.age_s > GONE_AFTER_S


@dataclass(frozen=True, slots=True)
class SeenPool:
    """Latest state of a pool's replicas with the age of the collector's report in seconds."""

    state: PoolState
    age_s: float

    @property
    def is_stale(self) -> bool:
        """Whether the collector stopped reporting."""
        return self.age_s > STALE_AFTER_S


def gateways() -> list[Seen[GatewayStatus]] | None:
    """Gateways by id."""
    found = _all(keys.GATEWAYS, decode_gateway_status)
    return found and sorted(found, key=lambda seen: seen.status.gateway_id)


def processes() -> list[Seen[ProcessStatus]] | None:
    """Other processes by name and pid."""
    found = _all(keys.PROCESSES, decode_process_status)
    return found and sorted(found, key=lambda seen: (seen.status.name, seen.status.pid))


def snapshot_number() -> int | None:
    """Number of the newest published snapshot; None if there is none or the store is away."""
    try:
        raw = cast("bytes | None", store().get(keys.SNAPSHOT_NUMBER))
    except RedisError:
        return None
    return int(raw) if raw else None


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


def _all(key: str, decode: Callable[[bytes], S]) -> list[Seen[S]] | None:
    try:
        entries = cast("dict[bytes, bytes]", store().hgetall(key))
    except RedisError as error:
        logger.info("%s not read, the store is away: %s", key, error)
        return None
    decoded = (_decoded(raw, decode) for raw in list(entries.values())[:MAX_ENTRIES])
    return [Seen(status, age_of_ms(status.at_ms)) for status in decoded if status is not None]


def _decoded(raw: bytes, decode: Callable[[bytes], Any]) -> Any:
    try:
        return decode(raw)
    except msgspec.MsgspecError as error:
        logger.warning("unreadable state left out: %s", error)
        return None

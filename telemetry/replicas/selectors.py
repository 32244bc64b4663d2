"""How each replica fared of late, from the collector's five-second sums. Unknown is None."""

import logging
import time
from collections.abc import Collection
from typing import cast

import msgspec
from redis.exceptions import RedisError

from console.web.store import store
from routing.decision.filters import SLOW_START_S
from routing.store import keys
from routing.store.state import read_gateway_statuses
from telemetry.stats.sketch import SketchError
from telemetry.stats.tries import Tries, decode_tries, spans_of

logger = logging.getLogger(__name__)

MAX_REPLICAS = 600  # of one question; more than a pool has


def tries_of(replicas: Collection[str], *, since_ms: int, until_ms: int) -> dict[str, Tries] | None:
    """Sums of the named replicas in `[since_ms, until_ms)` (Unix ms), one round trip.

    Only whole spans of five seconds count, from a second after `since_ms` on, and at most the last
    half hour. A replica without requests has an empty sum; None while the store is away.
    """
    names = sorted(replicas)[:MAX_REPLICAS]
    found = {name: Tries() for name in names}
    if not names:
        return found
    try:
        pipe = store().pipeline(transaction=False)
        for span in spans_of(since_ms, until_ms):
            pipe.hmget(keys.replica_span(span), names)
        rows = cast("list[list[bytes | None]]", pipe.execute())
    except RedisError as error:
        logger.info("replicas' requests not read, the store is away: %s", error)
        return None
    for values in rows:
        for name, raw in zip(names, values, strict=True):
            if raw is None:
                continue
            try:
                found[name].merge(decode_tries(raw))
            except (msgspec.MsgspecError, SketchError):
                logger.warning("unreadable sums of replica %s left out", name)
    return found


def slow_start_s() -> float:
    """How long a replica's slow start lasts: the shortest that a living gateway goes by.

    Gateways differ only while they take a new policy over. The default while nobody says.
    """
    try:
        statuses = read_gateway_statuses(store(), time.time_ns() // 1_000_000)
    except RedisError as error:
        logger.info("gateways' slow start not read, the store is away: %s", error)
        return SLOW_START_S
    return min((status.slow_start_s for status in statuses), default=SLOW_START_S)


def ejected(replicas: Collection[str]) -> dict[str, str]:
    """Which of these some living gateway sends nothing to, and why, by its breaker.

    Empty while the store is away: then nobody knows.
    """
    try:
        statuses = read_gateway_statuses(store(), time.time_ns() // 1_000_000)
    except RedisError as error:
        logger.info("gateways' breakers not read, the store is away: %s", error)
        return {}
    return {
        name: reason
        for status in statuses
        for name, reason in status.open_breakers.items()
        if name in replicas
    }

"""What a round found, to the store: states of pools for gateways, live rows for the console."""

from collections import deque
from dataclasses import dataclass, field

from redis.asyncio import Redis

from routing.contracts.endpoint_state import EndpointState, PoolState, encode_pool_state
from routing.contracts.enums import ReplicaHealth
from routing.contracts.live import (
    POOL,
    POOL_HISTORY,
    SLICES,
    SLICES_BY_MODEL,
    SLICES_BY_TENANT,
    SLICES_TOTAL,
    LivePool,
    LivePoolHistory,
    LiveSlices,
    decode_live_history,
    encode_live,
)
from routing.contracts.process import ProcessStatus, encode_status
from routing.store import keys
from telemetry.collector.wire import Field, as_bytes
from telemetry.stats.figures import (
    BY_MODEL,
    BY_SLICE,
    BY_TENANT,
    OVER_ALL,
    SPEND_MINUTES,
    WINDOW_S,
    Spend,
    Trailing,
    rows_of,
)
from telemetry.stats.windows import MINUTE_MS, minute_of

STATE_KEPT_S = 3600  # readers judge age by `at_ms`; this only clears what nobody writes any more
HISTORY_STEP_S = 5
HISTORY_POINTS = SPEND_MINUTES * 60 // HISTORY_STEP_S
HISTORY_REPLICAS_MAX = 256  # beyond, a chart of single replicas says nothing
_FIELDS = {
    SLICES: BY_SLICE,
    SLICES_BY_MODEL: BY_MODEL,
    SLICES_BY_TENANT: BY_TENANT,
    SLICES_TOTAL: OVER_ALL,
}


@dataclass(slots=True)
class History:
    """KV occupancy of the last quarter of an hour by replica, one value a `HISTORY_STEP_S`."""

    step: int = 0
    values: dict[str, deque[float | None]] = field(default_factory=dict)

    def observe(self, endpoints: list[EndpointState], now_ms: int) -> bool:
        """Add a value for each replica; False between two steps. A missed step is a gap."""
        step = now_ms // 1000 // HISTORY_STEP_S
        if step <= self.step:
            return False
        missed = min(step - self.step, HISTORY_POINTS) if self.step else 1
        self.step = step
        now = {
            state.replica_id: state.kv_usage_ratio if state.health is ReplicaHealth.OK else None
            for state in endpoints[:HISTORY_REPLICAS_MAX]
        }
        for replica_id in now.keys() - self.values.keys():
            self.values[replica_id] = deque(maxlen=HISTORY_POINTS)
        for replica_id, values in list(self.values.items()):
            values.extend([None] * (missed - 1))
            values.append(now.get(replica_id))
            if not any(value is not None for value in values) and replica_id not in now:
                del self.values[replica_id]
        return True

    def live(self) -> LivePoolHistory:
        """The value that is published."""
        return LivePoolHistory(
            at_ms=self.step * HISTORY_STEP_S * 1000,
            step_s=HISTORY_STEP_S,
            kv_usage_ratio={name: list(values) for name, values in self.values.items()},
        )

    @classmethod
    def of(cls, raw: bytes | None) -> "History":
        """What a previous collector published, so that charts go on over a restart."""
        if raw is None:
            return cls()
        live = decode_live_history(raw)
        return cls(
            step=live.at_ms // 1000 // HISTORY_STEP_S,
            values={
                name: deque(values, maxlen=HISTORY_POINTS)
                for name, values in live.kv_usage_ratio.items()
            },
        )


@dataclass(frozen=True, slots=True)
class Round:
    """Everything that one round publishes."""

    epoch: str
    seq: int
    now_ms: int
    pools: dict[str, list[EndpointState]]
    trailing: Trailing
    spend: Spend
    frames_at_ms: int | None
    slugs: dict[str, str]


async def publish(store: Redis, found: Round, history: History) -> None:
    """Write pool states and live rows, forget pools that are gone, nudge. Raises `RedisError`."""
    known = {as_bytes(name).decode() for name in await store.smembers(keys.POOLS_WITH_STATE)}
    endpoints = [state for states in found.pools.values() for state in states]
    live = live_fields(found, endpoints)
    if history.observe(endpoints, found.now_ms):
        live[POOL_HISTORY] = encode_live(history.live())
    async with store.pipeline(transaction=False) as pipe:
        for pool, states in found.pools.items():
            state = PoolState(pool=pool, at_ms=found.now_ms, endpoints=states)
            pipe.set(keys.pool_state(pool), encode_pool_state(state), ex=STATE_KEPT_S)
            if pool not in known:
                pipe.sadd(keys.POOLS_WITH_STATE, pool)
        for pool in known - found.pools.keys():
            pipe.srem(keys.POOLS_WITH_STATE, pool)
            pipe.delete(keys.pool_state(pool))
        pipe.hset(keys.LIVE, mapping=live)
        await pipe.execute()
    await store.publish(keys.NUDGES, "live")


def live_fields(found: Round, endpoints: list[EndpointState]) -> dict[Field, bytes]:
    """Fields of the live hash for this round's rows; `endpoints` is every replica."""
    now_minute = minute_of(found.now_ms)
    fields: dict[Field, bytes] = {
        POOL: encode_live(
            LivePool(
                epoch=found.epoch,
                seq=found.seq,
                at_ms=found.now_ms,
                rows=sorted(endpoints, key=lambda state: (state.pool, state.replica_id)),
            )
        )
    }
    for name, view in _FIELDS.items():
        fields[name] = encode_live(
            LiveSlices(
                epoch=found.epoch,
                seq=found.seq,
                at_ms=found.now_ms,
                window_s=WINDOW_S,
                spend_since_ms=(now_minute - SPEND_MINUTES + 1) * MINUTE_MS,
                frames_at_ms=found.frames_at_ms,
                rows=rows_of(found.trailing, found.spend, now_minute, view, found.slugs),
            )
        )
    return fields


async def write_status(store: Redis, status: ProcessStatus) -> None:
    """The heartbeat that `status` and the system page read. Raises `RedisError`."""
    await store.hset(keys.PROCESSES, f"{status.name}:{status.pid}", encode_status(status))


async def clear_status(store: Redis, name: str, pid: int) -> None:
    """Take the heartbeat away on a clean stop. Raises `RedisError`."""
    await store.hdel(keys.PROCESSES, f"{name}:{pid}")

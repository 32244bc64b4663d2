"""Snapshot, endpoint state and process statuses in the store.

`read_*` and `write_*` take a sync client (`store.pooled.sync_client`), `fetch_*` and `send_*` the
gateway's `Store`. Sync ones raise `redis.RedisError`, awaited ones `StoreAwayError` or
`hiredis.ReplyError`. An entry that cannot be decoded (an older or newer process wrote it) is left
out, as if it was not there.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec

from routing.contracts.endpoint_state import PoolState, decode_pool_state, encode_pool_state
from routing.contracts.process import (
    GatewayStatus,
    ProcessStatus,
    decode_gateway_status,
    decode_process_status,
    encode_status,
)
from routing.store import keys
from routing.store.client import Callback
from routing.store.cluster import Store

if TYPE_CHECKING:
    import redis

GONE_AFTER_MS: Final = 10_000  # a status older than this belongs to a dead process
FORGOTTEN_AFTER_MS: Final = 3_600_000
SNAPSHOT_NUDGE: Final = "snapshot"
OVERRIDES_NUDGE: Final = "overrides"

_Status = TypeVar("_Status", GatewayStatus, ProcessStatus)


# -- snapshot


def write_snapshot(client: "redis.Redis", raw: bytes, number: int) -> None:
    """Replace the published snapshot and its number together, then nudge the gateways."""
    with client.pipeline(transaction=True) as pipe:
        pipe.set(keys.SNAPSHOT, raw)
        pipe.set(keys.SNAPSHOT_NUMBER, number)
        pipe.execute()
    client.publish(keys.NUDGES, SNAPSHOT_NUDGE)


def read_snapshot(client: "redis.Redis") -> bytes | None:
    """Bytes of the published snapshot (`contracts.snapshot.decode_snapshot` checks them)."""
    return cast("bytes | None", client.get(keys.SNAPSHOT))


def read_snapshot_number(client: "redis.Redis") -> int | None:
    """Number of the published snapshot; None when there is none."""
    return _number(client.get(keys.SNAPSHOT_NUMBER))


async def fetch_snapshot(store: Store) -> bytes | None:
    """Bytes of the published snapshot."""
    return cast("bytes | None", await store.call("GET", keys.SNAPSHOT))


async def fetch_snapshot_number(store: Store) -> int | None:
    """Number of the published snapshot; None when there is none."""
    return _number(await store.call("GET", keys.SNAPSHOT_NUMBER))


# -- overrides


def write_overrides(client: "redis.Redis", raw: bytes, version: str) -> None:
    """Replace the overrides in force and their version together, then nudge the gateways."""
    with client.pipeline(transaction=True) as pipe:
        pipe.set(keys.OVERRIDES, raw)
        pipe.set(keys.OVERRIDES_VERSION, version)
        pipe.execute()
    client.publish(keys.NUDGES, OVERRIDES_NUDGE)


def read_overrides_version(client: "redis.Redis") -> str | None:
    """Version of the set that gateways are offered; None when there is none."""
    raw = client.get(keys.OVERRIDES_VERSION)
    return raw.decode() if isinstance(raw, bytes) else None


# -- endpoint state


def write_pool_state(client: "redis.Redis", state: PoolState) -> None:
    """Replace a pool's state."""
    client.set(keys.pool_state(state.pool), encode_pool_state(state))
    client.sadd(keys.POOLS_WITH_STATE, state.pool)


def remove_pool_state(client: "redis.Redis", pool: str) -> None:
    """Forget a pool that is no longer in the snapshot."""
    client.delete(keys.pool_state(pool))
    client.srem(keys.POOLS_WITH_STATE, pool)


def read_pool_states(client: "redis.Redis") -> dict[str, PoolState]:
    """State of every pool that has one, by pool id."""
    names = sorted(
        raw.decode() for raw in cast("set[bytes]", client.smembers(keys.POOLS_WITH_STATE))
    )
    with client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.get(keys.pool_state(name))
        return _pool_states(names, pipe.execute() if names else [])


async def fetch_pool_states(store: Store, pools: Iterable[str]) -> dict[str, PoolState]:
    """State of those `pools` that have one, by pool id; one write, one turn."""
    names = list(pools)
    replies = await asyncio.gather(*(store.call("GET", keys.pool_state(name)) for name in names))
    return _pool_states(names, replies)


def _pool_states(names: list[str], raws: list[Any]) -> dict[str, PoolState]:
    decoded = (
        (name, _decoded(decode_pool_state, raw)) for name, raw in zip(names, raws, strict=True)
    )
    return {name: state for name, state in decoded if state is not None}


# -- statuses


def process_field(status: ProcessStatus) -> str:
    """Field of a process in `keys.PROCESSES`."""
    return f"{status.name}:{status.pid}"


def write_process_status(client: "redis.Redis", status: ProcessStatus) -> None:
    """Say that this process lives; entries forgotten for an hour go."""
    known = cast("dict[bytes, bytes]", client.hgetall(keys.PROCESSES))
    old = _forgotten(known, decode_process_status, status.at_ms)
    with client.pipeline(transaction=False) as pipe:
        pipe.hset(keys.PROCESSES, process_field(status), encode_status(status))
        if old:
            pipe.hdel(keys.PROCESSES, *old)
        pipe.execute()


def remove_process_status(client: "redis.Redis", status: ProcessStatus) -> None:
    """This process ends as it should."""
    client.hdel(keys.PROCESSES, process_field(status))


def read_process_statuses(client: "redis.Redis", now_ms: int) -> list[ProcessStatus]:
    """Processes seen in the last 10 s, by name and pid."""
    known = cast("dict[bytes, bytes]", client.hgetall(keys.PROCESSES))
    living = _living(known, decode_process_status, now_ms)
    return sorted(living, key=lambda status: (status.name, status.pid))


def read_gateway_statuses(client: "redis.Redis", now_ms: int) -> list[GatewayStatus]:
    """Gateways seen in the last 10 s, by id."""
    return living_gateways(cast("dict[bytes, bytes]", client.hgetall(keys.GATEWAYS)), now_ms)


def living_gateways(known: dict[bytes, bytes], now_ms: int) -> list[GatewayStatus]:
    """Those of the hash `keys.GATEWAYS` that were seen in the last 10 s, by id."""
    return sorted(_living(known, decode_gateway_status, now_ms), key=lambda one: one.gateway_id)


def send_gateway_status(store: Store, status: GatewayStatus, done: Callback | None = None) -> None:
    """Say that this gateway lives."""
    store.command("HSET", keys.GATEWAYS, status.gateway_id, encode_status(status), callback=done)


async def fetch_gateway_statuses(store: Store, now_ms: int) -> list[GatewayStatus]:
    """Gateways seen in the last 10 s; entries forgotten for an hour are removed."""
    flat = cast("list[bytes]", await store.call("HGETALL", keys.GATEWAYS))
    known = dict(zip(flat[::2], flat[1::2], strict=True))
    if old := _forgotten(known, decode_gateway_status, now_ms):
        store.command("HDEL", keys.GATEWAYS, *old)
    return living_gateways(known, now_ms)


def _living(
    known: dict[bytes, bytes], decode: Callable[[bytes], _Status], now_ms: int
) -> list[_Status]:
    statuses = (_decoded(decode, raw) for raw in known.values())
    return [one for one in statuses if one is not None and now_ms - one.at_ms <= GONE_AFTER_MS]


def _forgotten(
    known: dict[bytes, bytes], decode: Callable[[bytes], _Status], now_ms: int
) -> list[bytes]:
    found = ((name, _decoded(decode, raw)) for name, raw in known.items())
    return [
        name for name, one in found if one is not None and now_ms - one.at_ms > FORGOTTEN_AFTER_MS
    ]


_Value = TypeVar("_Value")


def _decoded(decode: Callable[[bytes], _Value], raw: bytes | None) -> _Value | None:
    if raw is None:
        return None
    try:
        return decode(raw)
    except msgspec.MsgspecError:
        return None


def _number(raw: object) -> int | None:
    return int(raw) if isinstance(raw, bytes) else None

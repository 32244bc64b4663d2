"""The store asked once: does it serve and take writes, and what do the processes say there?"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
import redis
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    MaxConnectionsError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from console.conditions.rules.facts import Answer, StoreFacts
from routing.contracts.endpoint_state import EndpointState, PoolState, decode_pool_state
from routing.contracts.process import (
    GatewayStatus,
    ProcessStatus,
    decode_gateway_status,
    decode_process_status,
)
from routing.contracts.snapshot import SnapshotError, decode_snapshot
from routing.store import keys
from routing.store.pooled import node_of, sync_client

TIMEOUT_S = 0.9  # below the deadline of a question
MAX_ENTRIES = 2000  # processes, gateways and pools; more than one installation runs
WRITE_PROBE_LIVES_S = 60

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    """The store's facts, and what lies in it about the parts."""

    facts: StoreFacts
    processes: tuple[ProcessStatus, ...] = ()
    gateways: tuple[GatewayStatus, ...] = ()
    endpoints: tuple[EndpointState, ...] = ()
    model_of_pool: dict[str, str] = field(default_factory=dict)

    @classmethod
    def unasked(cls) -> "StoreAnswer":
        """No store is known here."""
        return cls(StoreFacts(answer=Answer.UNREACHABLE, error="no store is known yet"))


def ask_store(url: str) -> StoreAnswer:
    """A few short round trips. Never raises: what it cannot do is part of the answer."""
    try:
        with sync_client(url, timeout_s=TIMEOUT_S) as client:
            return _ask(client)
    except RedisError as error:
        return StoreAnswer(StoreFacts(answer=answer_of(error), error=words_of(error)))


def silent_store() -> StoreAnswer:
    """The answer of a store that gave none in time."""
    return StoreAnswer(StoreFacts(answer=Answer.HANGING, error="no answer within 1 s"))


def answer_of(error: RedisError) -> Answer:
    """Which of the few ways to fail this is."""
    kinds: tuple[tuple[type[RedisError], Answer], ...] = (
        (BusyLoadingError, Answer.LOADING),  # a connection error too: asked first
        (AuthenticationError, Answer.REFUSING),
        (MaxConnectionsError, Answer.REFUSING),
        (RedisTimeoutError, Answer.HANGING),
        (ReadOnlyError, Answer.READ_ONLY),
        (OutOfMemoryError, Answer.FULL),
    )
    for kind, answer in kinds:
        if isinstance(error, kind):
            return answer
    said = str(error)
    if "max number of clients" in said:
        return Answer.REFUSING
    if isinstance(error, RedisConnectionError):
        return Answer.UNREACHABLE
    if "MISCONF" in said or "NOREPLICAS" in said:
        return Answer.READ_ONLY
    return Answer.REFUSING


def words_of(error: Exception) -> str:
    """One short line, without a full stop at its end and without our password."""
    return " ".join(str(error).split())[:160].rstrip(".")


def _ask(client: redis.Redis) -> StoreAnswer:
    node = node_of(client, keys.SNAPSHOT_NUMBER)  # a cluster is judged by one of its servers
    began_s = time.monotonic()
    node.ping()
    answer_s = time.monotonic() - began_s
    info, stamp = node.info(), node.time()
    here_s = time.time()
    pipe = client.pipeline(transaction=False)
    pipe.get(keys.SNAPSHOT_NUMBER)
    pipe.hgetall(keys.GATEWAYS)
    pipe.hgetall(keys.PROCESSES)
    pipe.smembers(keys.POOLS_WITH_STATE)
    pipe.set(keys.WRITE_PROBE, 1, ex=WRITE_PROBE_LIVES_S)
    found = pipe.execute(raise_on_error=False)
    *reads, written = found
    for item in reads:
        if isinstance(item, RedisError):
            raise item
    number, gateways, processes, pools = reads
    facts = replace(
        _facts(info), answer_s=answer_s, snapshot_number=int(number) if number else None,
        clock_offset_s=stamp[0] + stamp[1] / 1e6 - here_s,
    )  # fmt: skip
    if isinstance(written, ResponseError):
        facts = replace(facts, answer=answer_of(written), error=words_of(written))
    return StoreAnswer(
        facts=facts,
        processes=tuple(_decoded(processes.values(), decode_process_status)),
        gateways=tuple(_decoded(gateways.values(), decode_gateway_status)),
        endpoints=_endpoints(client, sorted(pools)[:MAX_ENTRIES]),
        model_of_pool=_models(client, facts.snapshot_number),
    )


def _facts(info: dict[str, Any]) -> StoreFacts:
    failed = info.get("aof_enabled") and info.get("aof_last_write_status", "ok") != "ok"
    return StoreFacts(
        version=str(info.get("valkey_version") or info.get("redis_version", "")),
        memory_bytes=int(info.get("used_memory", 0)),
        max_memory_bytes=int(info.get("maxmemory", 0)) or None,
        is_persistent=bool(info.get("aof_enabled")),
        persistence_error="its last write failed" if failed else "",
        clients=int(info.get("connected_clients", 0)),
    )


def _endpoints(client: redis.Redis, pools: list[bytes]) -> tuple[EndpointState, ...]:
    if not pools:
        return ()
    pipe = client.pipeline(transaction=False)
    for name in pools:
        pipe.get(keys.pool_state(name.decode()))
    states: list[PoolState] = _decoded((raw for raw in pipe.execute() if raw), decode_pool_state)
    return tuple(endpoint for state in states for endpoint in state.endpoints)


def _decoded(raws: Any, decode: Callable[[bytes], T]) -> list[T]:
    """What can be read; an entry of another version of this program is left out."""
    found: list[T] = []
    for raw in list(raws)[:MAX_ENTRIES]:
        try:
            found.append(decode(raw))
        except msgspec.MsgspecError:
            continue
    return found


def _models(client: redis.Redis, number: int | None) -> dict[str, str]:
    """Model that each pool serves, from the snapshot; decoded once a number."""
    if number is None:
        return {}
    known = _known_models()
    if number not in known:
        raw = client.get(keys.SNAPSHOT)
        try:
            snapshot = decode_snapshot(raw) if isinstance(raw, bytes) else None
        except SnapshotError:
            snapshot = None
        pools = snapshot.pools if snapshot else {}
        known.clear()
        known[number] = {name: entry.served_model for name, entry in pools.items()}
    return known[number]


@lru_cache(maxsize=1)
def _known_models() -> dict[int, dict[str, str]]:
    """The models of the newest snapshot by its number."""
    return {}

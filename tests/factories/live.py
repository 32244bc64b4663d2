"""What processes and the collector report to the store."""

import random
import time
from typing import Any

from capacity.models import Replica
from routing.contracts.endpoint_state import EndpointState, PoolState, encode_pool_state
from routing.contracts.enums import ReplicaHealth, StoreMode
from routing.contracts.process import GatewayStatus, ProcessStatus, encode_status
from routing.store import keys

KV_TOKENS = 100_000


def beat(store: Any, *, age_ms: int = 0, gateways: int = 2, snapshot: int = 1) -> None:
    """Every process and gateway reports, `age_ms` ago."""
    now_ms = time.time_ns() // 1_000_000 - age_ms
    for number, name in enumerate(("console", "worker", "beat", "collector", "ledger")):
        status = ProcessStatus(
            name=name,
            pid=4000 + number,
            started_at_ms=now_ms - 7_200_000,
            at_ms=now_ms,
            version="0.1.0",
            lag_s=0.2 if name in ("collector", "ledger") else None,
        )
        store.hset(keys.PROCESSES, f"{name}:{status.pid}", encode_status(status))
    for number in range(gateways):
        gateway = GatewayStatus(
            gateway_id=f"g{number}",
            incarnation=f"i{number}",
            pid=5000 + number,
            host="127.0.0.1",
            port=8100,
            admin_port=8200 + number,
            started_at_ms=now_ms - 7_200_000,
            at_ms=now_ms,
            snapshot_number=snapshot,
            policy="main@1",
            state="serving",
            store_mode=StoreMode.SHARED,
            in_flight=3 + number,
            journal_pending=0,
            version="0.1.0",
        )
        store.hset(keys.GATEWAYS, gateway.gateway_id, encode_status(gateway))


def scrape(store: Any, pool: str, *, age_ms: int = 0, **by_ordinal: Any) -> None:
    """The collector's report on every replica of a pool; `r3={...}` changes replica 3."""
    now_ms = time.time_ns() // 1_000_000 - age_ms
    states = []
    for replica in Replica.objects.filter(pool__name=pool).order_by("ordinal"):
        draw = random.Random(replica.name)
        values: dict[str, Any] = {
            "replica_id": replica.name,
            "pool": pool,
            "at_ms": now_ms,
            "health": ReplicaHealth.OK,
            "running": draw.randint(0, 12),
            "waiting": draw.randint(0, 3),
            "kv_usage_ratio": draw.random(),
            "kv_capacity_tokens": KV_TOKENS,
            "block_size_tokens": 16,
            "prompt_tokens_per_s": draw.random() * 9000,
            "generation_tokens_per_s": draw.random() * 900,
            "prefix_hit_ratio": draw.random(),
            "engine_version": "0.32.0+sim",
        }
        states.append(EndpointState(**{**values, **by_ordinal.get(f"r{replica.ordinal}", {})}))
    store.set(keys.pool_state(pool), encode_pool_state(PoolState(pool, now_ms, states)))
    store.sadd(keys.POOLS_WITH_STATE, pool)

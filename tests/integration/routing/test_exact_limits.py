"""R01 and R07 at their hardest: 200 callers, one remaining unit, several gateways, wrong clocks."""

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

from routing.contracts.enums import Dimension, WindowKind
from routing.contracts.snapshot import Snapshot, bucket_of
from tests.accounting import open_bucket, redis_url
from tests.stack import (
    ROOT,
    GatewayProcess,
    api_key,
    launch_gateway,
    limit,
    make_snapshot,
    publish,
    tenant,
    wait_until,
)
from tests.upstream import UpstreamThread, answer, json_script, usage

CALLERS = 200
# A clock that is wrong by what the environment says, from the process's first line on.
SHIM = """import os, time
_by_s = float(os.environ.get("CLOCK_OFF_BY_S", "0"))
_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + _by_s
time.time_ns = lambda: _time_ns() + int(_by_s * 1e9)
"""
QUICK = json_script(answer(used=usage(10, 5)))


def names(rounds: int) -> list[str]:
    return [f"t{number}" for number in range(rounds)]


def one_unit_each(upstream: UpstreamThread, rounds: int) -> Snapshot:
    """A tenant for each round, who may send one request a day."""
    only = (limit(Dimension.REQUESTS, 1, WindowKind.DAY),)
    return make_snapshot(
        [upstream.address],
        tenants={name: tenant(name, only) for name in names(rounds)},
        keys=dict(api_key(name, f"hr_key_{name}") for name in names(rounds)),
    )


@contextlib.contextmanager
def gateways(tmp_path: Path, count: int) -> Iterator[list[GatewayProcess]]:
    """Ready gateway processes whose clocks are 30 s apart, each from the next."""
    shim = tmp_path / "shim"
    shim.mkdir()
    (shim / "sitecustomize.py").write_text(SHIM)
    started = [
        launch_gateway(
            redis_url(),
            tmp_path / f"g{number}",
            PYTHONPATH=f"{shim}:{ROOT}",
            HEADRACE_GATEWAY_ID=f"g{number}",
            CLOCK_OFF_BY_S=str(30 * number),
        )
        for number in range(count)
    ]
    try:
        for one in started:
            wait_until(one.is_ready, 20, f"{one.url} ready")
        yield started
    finally:
        for one in started:
            one.process.kill()
            one.process.wait(10)


def race(served_by: list[GatewayProcess], pool: ThreadPoolExecutor, secret: str) -> list[int]:
    """Status codes of `CALLERS` requests that leave together, over connections opened before."""
    barrier = threading.Barrier(CALLERS)
    body = json.dumps(
        {"model": "alpha-8b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    )
    headers = {"authorization": f"Bearer {secret}", "content-type": "application/json"}

    def one(number: int) -> int:
        port = served_by[number % len(served_by)].port
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        client.connect()
        barrier.wait(30)
        client.request("POST", "/v1/chat/completions", body, headers)
        response = client.getresponse()
        response.read()
        client.close()
        return response.status

    return list(pool.map(one, range(CALLERS)))


def check(store: "redis.Redis", tmp_path: Path, processes: int, rounds: int) -> None:
    with UpstreamThread(QUICK) as upstream:
        snapshot = one_unit_each(upstream, rounds)
        publish(store, snapshot)
        for name in names(rounds):
            if not store.exists(f"{{b{bucket_of(name)}}}:meta"):
                open_bucket(store, bucket_of(name))
        with gateways(tmp_path, processes) as served_by, ThreadPoolExecutor(CALLERS) as pool:
            for number, name in enumerate(names(rounds), start=1):
                codes = race(served_by, pool, f"hr_key_{name}")
                assert (codes.count(200), codes.count(429)) == (1, CALLERS - 1), name
                assert len(upstream.completions) == number


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_of_200_callers_one_gets_the_last_unit(
    store: "redis.Redis", tmp_path: Path, processes: int
):
    check(store, tmp_path, processes, rounds=3)


@pytest.mark.soak
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_of_200_callers_one_gets_the_last_unit_fifty_times(
    store: "redis.Redis", tmp_path: Path, processes: int
):
    check(store, tmp_path, processes, rounds=50)

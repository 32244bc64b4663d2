"""R18: old or missing replica metrics do not strand capacity."""

import threading
import time
from collections import Counter
from pathlib import Path

import redis

from routing.contracts.endpoint_state import EndpointState, PoolState, encode_pool_state
from routing.contracts.enums import ReplicaHealth
from routing.store import keys
from tests.gatewaying import serving
from tests.stack import GatewayProcess, wait_until
from tests.upstream import UpstreamThread, json_script


class Reports:
    """Stands in for the collector: writes the pool's state each 0.3 s, as told."""

    def __init__(self, store: "redis.Redis[bytes]", *fresh: EndpointState) -> None:
        self._store = store
        self._fresh = fresh
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Reports":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.3):
            now_ms = int(time.time() * 1000)
            states = [dated(s, now_ms if s.at_ms == 0 else s.at_ms) for s in self._fresh]
            raw = encode_pool_state(PoolState("p1", now_ms, states))
            self._store.set(keys.pool_state("p1"), raw)


def dated(state: EndpointState, at_ms: int) -> EndpointState:
    fields = {name: getattr(state, name) for name in state.__struct_fields__}
    return EndpointState(**(fields | {"at_ms": at_ms}))


def state(replica: str, at_ms: int = 0, **fields: float) -> EndpointState:
    """`at_ms` 0 means fresh at each writing."""
    values = {"running": 0, "waiting": 0, "kv_usage_ratio": 0.0} | fields
    return EndpointState(replica, "p1", at_ms, ReplicaHealth.OK, **values)  # type: ignore[arg-type]


def load(gateway: GatewayProcess, count: int, at_once: int = 8) -> Counter[int]:
    """Status codes of `count` requests, `at_once` at a time."""
    found: Counter[int] = Counter()
    left = iter(range(count))

    def work() -> None:
        for _ in left:
            found[gateway.chat().status_code] += 1

    threads = [threading.Thread(target=work) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def test_full_with_nothing_running_is_served_again(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    script = json_script(delay_s=0.1)
    with (
        UpstreamThread(script) as u1,
        UpstreamThread(script) as u2,
        Reports(store, state("p1-u1", kv_usage_ratio=0.99), state("p1-u2")),
        serving(tmp_path, u1, u2) as gateway,
    ):
        wait_until(lambda: load(gateway, 8) and len(u1.completions) > 0, 30, "U1 serves")


def test_without_any_reports_all_is_served_and_spread(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    script = json_script(delay_s=0.1)
    with (
        UpstreamThread(script) as u1,
        UpstreamThread(script) as u2,
        serving(tmp_path, u1, u2) as gateway,
    ):
        assert load(gateway, 40) == Counter({200: 40})
        assert min(len(u1.completions), len(u2.completions)) >= 12


def test_the_replica_with_the_fresh_page_is_preferred(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    script = json_script(delay_s=0.05)
    old_ms = int(time.time() * 1000) - 60_000
    with (
        UpstreamThread(script) as u1,
        UpstreamThread(script) as u2,
        Reports(store, state("p1-u1", old_ms), state("p1-u2")),
        serving(tmp_path, u1, u2) as gateway,
    ):
        wait_until(lambda: _prefers(gateway, u2), 10, "fresh reports in force")
        u1.requests.clear()
        u2.requests.clear()
        assert load(gateway, 40) == Counter({200: 40})
        assert len(u2.completions) >= 32


def _prefers(gateway: GatewayProcess, wanted: UpstreamThread) -> bool:
    before = len(wanted.completions)
    load(gateway, 8)
    return len(wanted.completions) - before == 8

"""The collector process over a real store and scripted engines."""

import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread

import pytest
import redis

from routing.contracts.engine_windows import decode_window
from routing.contracts.enums import ReplicaHealth, StoreMode
from routing.contracts.process import GatewayStatus, decode_process_status, encode_status
from routing.store import keys
from telemetry.stats.windows import TOTAL, decode_key, decode_sum, minute_of
from tests.collecting import (
    FakeGateway,
    endpoint,
    engines,
    launch_collector,
    live_pool,
    live_slices,
    start_collector,
    traffic,
)
from tests.engines import MODEL, engine
from tests.stack import make_snapshot, publish, store_server, wait_until


@pytest.fixture
def store_url(tmp_path: Path) -> Iterator[str]:
    with store_server(tmp_path / "store") as url:
        yield url


@pytest.fixture
def store(store_url: str) -> Iterator["redis.Redis[bytes]"]:
    with closing(redis.Redis.from_url(store_url)) as client:
        yield client


def total_requests(store: "redis.Redis[bytes]") -> dict[str, int]:
    """Requests folded so far: over all, and summed over slices and over classes."""
    counted = {"total": 0, "slices": 0, "classes": 0}
    for name in store.scan_iter("hr:{slices}:[0-9]*"):
        for field, raw in store.hgetall(name).items():
            key = decode_key(field)
            of = "classes" if name.endswith(b":classes") else "slices"
            counted["total" if key == TOTAL else of] += decode_sum(raw).requests
    return counted


def test_engine_pages_become_endpoint_states_and_live_rows(
    store: "redis.Redis[bytes]", store_url: str, tmp_path: Path
) -> None:
    with engines(2) as (one, two), start_collector(store_url, tmp_path):
        one.metrics(num_requests_running=3, num_requests_waiting=1, kv_cache_usage_perc=0.25)
        two.metrics(num_requests_running=0, num_requests_waiting=0, kv_cache_usage_perc=0.75)
        publish(store, make_snapshot([("127.0.0.1", one.port), ("127.0.0.1", two.port)]))
        wait_until(
            lambda: (state := endpoint(store, "p1")) and state.kv_usage_ratio == 0.25, 10, "state"
        )
        state = endpoint(store, "p1")
        assert state is not None
        assert (state.running, state.waiting, state.health) == (3, 1, ReplicaHealth.OK)
        assert state.engine_version == "0.32.0"
        live = live_pool(store)
        assert live is not None
        assert [row.kv_usage_ratio for row in live.rows] == [0.25, 0.75]
        assert store.smembers(keys.POOLS_WITH_STATE) == {b"p1"}

        publish(store, make_snapshot([], number=2, pools={}))
        wait_until(lambda: not store.exists(keys.pool_state("p1")), 10, "gone pool forgotten")


def test_hanging_replica_turns_stale_dead_one_is_lost_and_both_come_back(
    store: "redis.Redis[bytes]", store_url: str, tmp_path: Path
) -> None:
    with engines(2) as (hanging, dying), start_collector(store_url, tmp_path):
        publish(store, make_snapshot([("127.0.0.1", hanging.port), ("127.0.0.1", dying.port)]))

        def health(position: int) -> ReplicaHealth | None:
            state = endpoint(store, "p1", position)
            return state.health if state else None

        wait_until(lambda: health(0) == health(1) == ReplicaHealth.OK, 10, "both ok")
        hanging.is_stuck = True
        dying.stop()
        wait_until(lambda: health(1) is ReplicaHealth.LOST, 10, "lost")
        wait_until(lambda: health(0) is ReplicaHealth.STALE, 10, "stale")
        last = endpoint(store, "p1", 0)
        assert last is not None
        assert last.at_ms > 0
        assert "no answer" in last.reason
        hanging.is_stuck = False
        dying.start()
        wait_until(lambda: health(0) == health(1) == ReplicaHealth.OK, 10, "both back")


def test_a_working_engine_leaves_windows_that_its_step_time_can_be_told_from(
    store: "redis.Redis[bytes]", store_url: str, tmp_path: Path
) -> None:
    with engine("--profile", "demo") as working, start_collector(store_url, tmp_path):
        publish(store, make_snapshot([("127.0.0.1", working.port)]))
        body = {"model": MODEL, "prompt": "go", "max_tokens": 450, "ignore_eos": True}
        asking = Thread(target=working.post, args=("/v1/completions", body))
        asking.start()
        name = keys.engine_windows("p1")
        wait_until(lambda: store.llen(name) >= 2, 40, "windows")
        window = decode_window(store.lrange(name, -1, -1)[0])
        asking.join(60)
    assert window.steps >= 20
    assert window.decode_tokens == pytest.approx(window.steps, abs=1)  # one sequence
    assert (window.prefill_tokens, window.prompts) == (0.0, 0.0)
    # 25 ms and what one token and its context cost; a busy machine only adds to it.
    assert window.itl_s >= 0.025


def gateway_status(at_ms: int, open_breakers: dict[str, str]) -> bytes:
    """A gateway's word; only its time and its breakers matter here."""
    status = GatewayStatus(
        gateway_id="g0", incarnation="i", pid=1, host="h", port=1, admin_port=2, started_at_ms=1,
        at_ms=at_ms, snapshot_number=1, policy="main@1", state="ready",
        store_mode=StoreMode.SHARED, in_flight=0, journal_pending=0, open_breakers=open_breakers,
    )  # fmt: skip
    return encode_status(status)


def test_a_replica_that_a_living_gateway_waits_for_in_vain_is_hung_until_it_answers(
    store: "redis.Redis[bytes]", store_url: str, tmp_path: Path
) -> None:
    def say(open_breakers: dict[str, str], age_s: int = 0) -> None:
        at_ms = (int(time.time()) - age_s) * 1000
        store.hset(keys.GATEWAYS, "g0", gateway_status(at_ms, open_breakers))

    def health() -> str:
        state = endpoint(store, "p1")
        return state.health if state else ""

    with engines(1) as (one,), start_collector(store_url, tmp_path):
        one.metrics(num_requests_running=1, kv_cache_usage_perc=0.5)
        publish(store, make_snapshot([("127.0.0.1", one.port)]))
        say({"p1-u1": "failing"})
        wait_until(lambda: health() == ReplicaHealth.OK, 10, "ok: failing is not hung")
        say({"p1-u1": "hung"})
        wait_until(lambda: health() == ReplicaHealth.HUNG, 10, "hung")
        state = endpoint(store, "p1")
        assert state is not None
        assert "in vain" in state.reason
        assert state.kv_usage_ratio == 0.5
        say({"p1-u1": "hung"}, age_s=60)
        wait_until(lambda: health() == ReplicaHealth.OK, 10, "ok: a dead gateway's word is gone")
        say({"p1-u1": "hung"})
        wait_until(lambda: health() == ReplicaHealth.HUNG, 10, "hung again")
        say({})
        wait_until(lambda: health() == ReplicaHealth.OK, 10, "ok again")


def test_an_engine_that_says_it_is_dead_is_lost_and_a_huge_page_is_refused(
    store: "redis.Redis[bytes]", store_url: str, tmp_path: Path
) -> None:
    with engines(2) as (dead, huge), start_collector(store_url, tmp_path):
        dead.pages["/health"] = (503, "")
        huge.pages["/metrics"] = (200, "#" * (5 * 1024 * 1024))
        publish(store, make_snapshot([("127.0.0.1", dead.port), ("127.0.0.1", huge.port)]))
        wait_until(
            lambda: (state := endpoint(store, "p1")) and state.health is ReplicaHealth.LOST,
            10,
            "lost",
        )
        wait_until(
            lambda: (state := endpoint(store, "p1", 1)) and "over" in state.reason, 10, "refused"
        )


def test_each_report_counts_once_over_kills_resends_and_restarts(
    store: "redis.Redis[bytes]", store_url: str, tmp_path: Path
) -> None:
    gateways = [FakeGateway(store, "g0"), FakeGateway(store, "g1")]
    sent = 0
    for attempt in range(3):
        collector = launch_collector(store_url, tmp_path)
        try:
            for number in range(40):
                gateways[number % 2].report(
                    traffic("1", (0.1,)), traffic("2", (0.2, 0.3)), times=1 + number % 3
                )
                sent += 3
            wait_until(lambda: total_requests(store)["total"] > 0, 15, "folding began")
            # Killed at an unknown point: with a backlog, maybe in the middle of a transaction.
            gateways[0].report(traffic("1", (0.1,)))
            sent += 1
        finally:
            collector.stop(signal.SIGKILL)
        assert attempt >= 0
    with start_collector(store_url, tmp_path):
        wait_until(lambda: total_requests(store)["total"] >= sent, 20, "all folded")
        last = store.xinfo_stream(keys.SLICE_FRAMES)["last-generated-id"]
        wait_until(lambda: store.hget(keys.SLICE_POSITION, "entry") == last, 10, "drained")
        assert total_requests(store) == {"total": sent, "slices": sent, "classes": sent}


def test_live_rows_after_a_restart_equal_those_before(
    store: "redis.Redis[bytes]", store_url: str, tmp_path: Path
) -> None:
    gateway = FakeGateway(store)
    publish(store, make_snapshot([]))
    gateway.report(
        traffic("acme", tuple([0.1] * 95 + [2.0] * 5), spend_nanousd=7_000, output_tokens=50),
        traffic("globex", (0.4,), spend_nanousd=5),
    )

    def seen(name: str) -> list[tuple[object, ...]]:
        live = live_slices(store, name)
        return [
            (row.tenant, row.requests, row.ttft_p50_s, row.ttft_p95_s, row.spend_nanousd)
            for row in (live.rows if live else [])
        ]

    with start_collector(store_url, tmp_path):
        wait_until(lambda: len(seen("slices")) == 2, 15, "rows")
        before = {name: seen(name) for name in ("slices", "slices:tenant", "slices:total")}
        first = live_slices(store)
    assert before["slices"][0][:2] == ("acme", 100)
    assert before["slices"][0][2] == pytest.approx(0.1, rel=0.011)
    assert before["slices:total"][0][4] == 7_005
    with start_collector(store_url, tmp_path):
        assert first is not None
        wait_until(lambda: live_slices(store).epoch != first.epoch, 15, "restarted")  # type: ignore[union-attr]
        assert {name: seen(name) for name in before} == before


def test_a_standby_takes_over_from_a_frozen_collector_and_nothing_counts_twice(
    store: "redis.Redis[bytes]", store_url: str, tmp_path: Path
) -> None:
    gateway = FakeGateway(store)

    def notes() -> set[str]:
        return {decode_process_status(raw).note for raw in store.hgetall(keys.PROCESSES).values()}

    first = launch_collector(store_url, tmp_path)
    second = None
    try:
        wait_until(lambda: notes() == {"active"}, 15, "active")
        epoch = live_slices(store).epoch  # type: ignore[union-attr]
        second = launch_collector(store_url, tmp_path)
        wait_until(lambda: notes() == {"active", "standby"}, 15, "standby")
        gateway.report(traffic("1", (0.1,)))
        wait_until(lambda: total_requests(store)["total"] == 1, 10, "folded")
        first.process.send_signal(signal.SIGSTOP)
        gateway.report(traffic("1", (0.1,)))
        wait_until(lambda: live_slices(store).epoch != epoch, 15, "taken over")  # type: ignore[union-attr]
        first.process.send_signal(signal.SIGCONT)
        gateway.report(traffic("1", (0.1,)))
        wait_until(lambda: total_requests(store)["total"] == 3, 10, "folded by the standby")
        seq = live_slices(store).seq  # type: ignore[union-attr]
        wait_until(lambda: live_slices(store).seq >= seq + 2, 10, "two more rounds")  # type: ignore[union-attr]
        assert total_requests(store) == {"total": 3, "slices": 3, "classes": 3}
    finally:
        assert first.stop() == 0
        if second:
            assert second.stop() == 0
    assert store.hgetall(keys.PROCESSES) == {}


def test_minutes_expire_and_late_or_unreadable_reports_do_no_harm(
    store: "redis.Redis[bytes]", store_url: str, tmp_path: Path
) -> None:
    gateway = FakeGateway(store)
    now_ms = time.time_ns() // 1_000_000
    store.xadd(keys.SLICE_FRAMES, {"f": b"\xff\x00"})
    store.xadd(keys.SLICE_FRAMES, {"other": b""})
    gateway.report(traffic("1", (0.1,)), at_ms=now_ms - 3 * 3600 * 1000)
    gateway.report(traffic("1", (0.1,)), at_ms=now_ms - 10 * 60_000)
    gateway.report(traffic("1", (0.1,)), at_ms=now_ms + 3600 * 1000)
    with start_collector(store_url, tmp_path):
        wait_until(lambda: total_requests(store)["total"] == 2, 15, "folded")
        minutes = {int(name.split(b":")[2]) for name in store.scan_iter("hr:{slices}:[0-9]*")}
        assert min(minutes) == minute_of(now_ms - 10 * 60_000)
        assert max(minutes) <= minute_of(time.time_ns() // 1_000_000)
        for minute in minutes:
            assert 0 < store.ttl(keys.slice_minute(minute)) <= 62 * 60


def test_the_collector_survives_the_store(tmp_path: Path) -> None:
    with store_server(tmp_path / "one") as url:
        collector = launch_collector(url, tmp_path)
        with closing(redis.Redis.from_url(url)) as store:
            wait_until(lambda: live_slices(store), 15, "published")
    try:
        wait_until(lambda: b"store:" in collector.log.read_bytes(), 15, "noticed")
        assert collector.process.poll() is None
    finally:
        assert collector.stop() == 0

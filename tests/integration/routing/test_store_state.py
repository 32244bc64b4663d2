"""Snapshot, endpoint state and statuses through the store, sync and from the gateway."""

import time

import pytest
import redis

from routing.contracts.endpoint_state import EndpointState, PoolState
from routing.contracts.enums import ReplicaHealth, StoreMode
from routing.contracts.process import GatewayStatus, ProcessStatus
from routing.store import keys, state
from routing.store.client import StoreConnection
from routing.store.clock import StoreClock
from routing.store.streams import append_frame
from tests.accounting import redis_url, until

pytestmark = pytest.mark.anyio
NOW = 1_800_000_000_000


@pytest.fixture
async def connection(store: "redis.Redis", anyio_backend):
    made = StoreConnection(redis_url(), name="t", clock=StoreClock(time.monotonic, 0))
    made.start()
    assert await made.wait_ready(5)
    yield made
    await made.close()


def process(name: str, pid: int, at_ms: int) -> ProcessStatus:
    return ProcessStatus(name, pid, NOW, at_ms)


def gateway(name: str, at_ms: int) -> GatewayStatus:
    return GatewayStatus(
        name, "i", 1, "h", 1, 2, NOW, at_ms, 3, "main@1", "ready", StoreMode.SHARED, 0, 0
    )


async def test_snapshot_and_number_change_together_and_nudge(
    store: "redis.Redis", connection: StoreConnection
):
    assert await state.fetch_snapshot(connection) is None
    assert await state.fetch_snapshot_number(connection) is None
    listener = store.pubsub()
    listener.subscribe(keys.NUDGES)
    state.write_snapshot(store, b"bytes", 41)
    assert state.read_snapshot(store) == await state.fetch_snapshot(connection) == b"bytes"
    assert state.read_snapshot_number(store) == 41
    assert await state.fetch_snapshot_number(connection) == 41
    messages = [listener.get_message(timeout=2) for _ in range(2)]
    assert messages[1]["data"] == b"snapshot"
    listener.close()


async def test_pool_states_are_read_by_both_sides(
    store: "redis.Redis", connection: StoreConnection
):
    one = PoolState("p:{1}", NOW, [EndpointState("r1", "p:{1}", NOW, ReplicaHealth.HUNG)])
    state.write_pool_state(store, one)
    assert state.read_pool_states(store) == {"p:{1}": one}
    assert await state.fetch_pool_states(connection, ["p:{1}", "none"]) == {"p:{1}": one}
    store.set(keys.pool_state("p:{1}"), b"\xc1")
    assert state.read_pool_states(store) == {}, "unreadable is absent"
    state.remove_pool_state(store, "p:{1}")
    assert not store.exists(keys.pool_state("p:{1}"))


async def test_processes_not_seen_for_ten_seconds_are_gone_and_after_an_hour_forgotten(
    store: "redis.Redis",
):
    state.write_process_status(store, process("ledger", 1, NOW - 3_700_000))
    state.write_process_status(store, process("collector", 2, NOW - 11_000))
    state.write_process_status(store, process("worker", 3, NOW))
    assert [one.name for one in state.read_process_statuses(store, NOW)] == ["worker"]
    assert set(store.hkeys(keys.PROCESSES)) == {b"collector:2", b"worker:3"}
    state.remove_process_status(store, process("worker", 3, NOW))
    assert state.read_process_statuses(store, NOW) == []


async def test_gateways_know_of_each_other(store: "redis.Redis", connection: StoreConnection):
    for one in (gateway("g1", NOW), gateway("g0", NOW - 9_000), gateway("old", NOW - 3_700_000)):
        state.send_gateway_status(connection, one)
    living = await state.fetch_gateway_statuses(connection, NOW)
    assert [one.gateway_id for one in living] == ["g0", "g1"]
    assert living == state.read_gateway_statuses(store, NOW)
    await until(lambda: set(store.hkeys(keys.GATEWAYS)) == {b"g0", b"g1"})


async def test_frames_are_appended_to_their_stream(
    store: "redis.Redis", connection: StoreConnection
):
    replies: list[object] = []
    append_frame(connection, b"frame", replies.append)
    await until(lambda: replies)
    assert store.xrange(keys.SLICE_FRAMES)[0] == (replies[0], {b"f": b"frame"})

"""Drivers against real engine processes."""

import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from capacity.drivers.base import DriverError, Observed, PoolSpec
from capacity.drivers.processes import read_record, record_of, start_ticks
from capacity.drivers.simulated import SimulatedDriver
from capacity.drivers.static import StaticDriver
from tests.engines import MODEL, ROOT, engine, wait_for

SPEC = PoolSpec(pool="eu-a", model=MODEL, settings={"profile": "demo", "time_scale": 20})


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for path in (tmp_path / "replicas").glob("*.json"):
        record = read_record(path)
        if record is not None and record.is_alive:
            os.kill(record.pid, signal.SIGKILL)


def driver(state: Path) -> SimulatedDriver:
    return SimulatedDriver(state, ROOT)


def test_started_replica_serves_and_is_named_in_its_file(state: Path) -> None:
    handle = driver(state).start(SPEC, 0)
    seen = driver(state).status(SPEC, handle, wait_s=20)
    assert (seen.observed, seen.in_flight) == (Observed.SERVING, 0)
    assert driver(state).probe(SPEC, handle)
    record = read_record(state / "replicas" / "eu-a-0.json")
    assert record == record_of(handle)
    assert record is not None
    assert os.getsid(record.pid) == record.pid
    assert (state / "logs" / "eu-a-0.log").exists()


def test_process_of_a_killed_worker_is_adopted_not_doubled(state: Path) -> None:
    first = driver(state).start(SPEC, 0)
    again = driver(state).start(SPEC, 0)
    other = driver(state).start(SPEC, 1)
    assert again == first
    assert other["pid"] != first["pid"]


def test_process_without_a_record_is_ended_before_another_starts(state: Path) -> None:
    first = driver(state).start(SPEC, 0)
    (state / "replicas" / "eu-a-0.json").unlink()  # as if killed before it was written
    second = driver(state).start(SPEC, 0)
    assert start_ticks(first["pid"]) is None
    assert start_ticks(second["pid"]) == second["ticks"]


def test_process_started_for_other_settings_is_not_adopted(state: Path) -> None:
    first = driver(state).start(SPEC, 0)
    second = driver(state).start(replace(SPEC, model="another"), 0)
    assert start_ticks(first["pid"]) is None
    assert second["pid"] != first["pid"]


def test_port_that_somebody_else_listens_on_is_wrong(state: Path) -> None:
    handle = driver(state).start(SPEC, 0)
    assert driver(state).status(SPEC, handle, wait_s=20).observed is Observed.SERVING
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        moved = {**handle, "port": stranger.getsockname()[1]}
        seen = driver(state).status(SPEC, moved)
    assert (seen.observed, seen.cause) == (Observed.WRONG, "another process holds its port")


def test_stop_leaves_no_process_and_no_file(state: Path) -> None:
    handle = driver(state).start(SPEC, 0)
    assert driver(state).status(SPEC, handle, wait_s=20).observed is Observed.SERVING
    driver(state).stop(handle, drain_s=10)
    assert start_ticks(int(handle["pid"])) is None
    assert not list((state / "replicas").iterdir())
    assert driver(state).status(SPEC, handle).observed is Observed.GONE
    driver(state).stop(handle, drain_s=10)


def test_engine_that_ignores_sigterm_is_killed(state: Path) -> None:
    handle = driver(state).start(SPEC, 0)
    assert driver(state).status(SPEC, handle, wait_s=20).observed is Observed.SERVING
    os.kill(int(handle["pid"]), signal.SIGSTOP)
    driver(state).stop(handle, drain_s=0.3)
    assert start_ticks(int(handle["pid"])) is None


def test_pid_that_now_belongs_to_somebody_else_is_not_touched(state: Path) -> None:
    handle = driver(state).start(SPEC, 0)
    os.kill(int(handle["pid"]), signal.SIGSTOP)  # so that a signal would stay pending
    stranger = {**handle, "ticks": int(handle["ticks"]) + 1}
    assert driver(state).status(SPEC, stranger).observed is Observed.GONE
    driver(state).stop(stranger, drain_s=0.1)
    status = Path(f"/proc/{handle['pid']}/status").read_text()
    pending = int(status.partition("ShdPnd:")[2].split()[0], 16)
    assert not pending & (1 << (signal.SIGTERM - 1) | 1 << (signal.SIGKILL - 1))
    assert start_ticks(int(handle["pid"])) == handle["ticks"]
    rebooted = {**handle, "boot": "another"}
    assert driver(state).status(SPEC, rebooted).observed is Observed.GONE


def test_killed_engine_is_gone(state: Path) -> None:
    handle = driver(state).start(SPEC, 0)
    os.kill(int(handle["pid"]), signal.SIGKILL)
    wait_for(lambda: driver(state).status(SPEC, handle).observed is Observed.GONE, 5)


def test_engine_that_still_loads_is_starting(state: Path) -> None:
    slow = PoolSpec(pool="eu-a", model=MODEL, settings={"load_s": 30.0})
    handle = driver(state).start(slow, 0)
    assert driver(state).status(slow, handle, wait_s=0.2).observed is Observed.STARTING


@pytest.mark.parametrize(
    "settings",
    [
        {"profile": "none such"},
        {"unknown": 1},
        {"kv_blocks": "many"},
        {"kv_blocks": True},
        {"profile": 5},
        {"profile": ["demo"]},
        {"time_scale": float("inf")},
        {"time_scale": float("nan")},
        {"load_s": -1},
        {"metric_names": "older"},
        {"faults": "--port"},
        {"artifact": "w\0"},
        {"artifact": "w" * 401},
    ],
)
def test_bad_settings_are_refused_before_anything_starts(state: Path, settings: dict) -> None:
    with pytest.raises(DriverError):
        driver(state).check(PoolSpec("p", MODEL, settings))
    with pytest.raises(DriverError):
        driver(state).start(PoolSpec("p", MODEL, settings), 0)
    assert not (state / "replicas").exists()


@pytest.mark.parametrize("value", [1e30, 10**30, -5, 0, 1, 1_000_001, 2048.0, None, [2048]])
def test_a_number_out_of_range_is_named_with_its_range(state: Path, value: object) -> None:
    spec = PoolSpec("p", MODEL, {"profile": "demo", "kv_blocks": value})
    with pytest.raises(DriverError) as refused:
        driver(state).check(spec)
    said = "setting 'kv_blocks' must be a whole number from 2 to 1,000,000"
    assert str(refused.value) == said
    for good in (2, 1_000_000):
        driver(state).check(PoolSpec("p", MODEL, {"kv_blocks": good}))


def test_name_that_would_leave_the_directory_is_refused(state: Path) -> None:
    with pytest.raises(DriverError):
        driver(state).start(PoolSpec("../x", MODEL), 0)


def test_static_pool_watches_its_addresses() -> None:
    with engine() as running:
        spec = PoolSpec("own", MODEL, {"addresses": [f"127.0.0.1:{running.port}", "127.0.0.1:1"]})
        static = StaticDriver("", frozenset(("127.0.0.1",)))
        static.check(spec)
        up, down = static.start(spec, 0), static.start(spec, 1)
        assert static.status(spec, up).observed is Observed.SERVING
        assert static.probe(spec, up)
        assert static.status(spec, down).observed is Observed.STARTING
        assert not static.probe(spec, down)
        other = PoolSpec("own", "another-model", spec.settings)
        wrong = static.status(other, up)
        assert (wrong.observed, MODEL in wrong.cause) == (Observed.WRONG, True)
        moved = PoolSpec("own", MODEL, {"addresses": ["127.0.0.1:1"]})
        assert static.status(moved, up).observed is Observed.GONE
        with pytest.raises(DriverError):
            static.start(spec, 2)
        static.stop(up, 1)
        assert running.process.poll() is None


@pytest.mark.parametrize("addresses", [None, [], ["nohost"], ["h:0"], ["h:99999"], [":80"]])
def test_static_pool_needs_addresses(addresses: object) -> None:
    with pytest.raises(DriverError):
        StaticDriver().check(PoolSpec("p", MODEL, {"addresses": addresses}))


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "169.254.169.254", "2852039166", "0x7f000001", "[fe80::1]",
     "0.0.0.0", "[::ffff:127.0.0.1]", "file:///etc/passwd", "user:secret@10.0.0.7", "a/b"],
)  # fmt: skip
def test_r25_an_engine_is_elsewhere_unless_that_very_address_is_allowed(host: str) -> None:
    spec = PoolSpec("p", MODEL, {"addresses": [f"{host}:8000"]})
    with pytest.raises(
        DriverError, match=r"HEADRACE_PRIVATE_PROVIDERS|no scheme, path or password"
    ):
        StaticDriver().check(spec)
    for private in ("10.0.0.7", "engine-7.internal", "[fd00::7]"):
        StaticDriver().check(PoolSpec("p", MODEL, {"addresses": [f"{private}:8000"]}))


def test_r25_a_name_that_comes_to_mean_this_machine_is_not_called() -> None:
    """The name of this machine, which resolves to its loopback as a rebound one would."""
    with engine() as running:
        name = "ip6-localhost-of-a-test"
        spec = PoolSpec("p", MODEL, {"addresses": [f"{name}:{running.port}"]})
        found = [(2, 1, 6, "", ("127.0.0.1", running.port))]
        with pytest.MonkeyPatch.context() as resolver:
            resolver.setattr(socket, "getaddrinfo", lambda *_, **__: found)
            static = StaticDriver()
            static.check(spec)
            handle = static.start(spec, 0)
            seen = static.status(spec, handle)
            assert (seen.observed, "this machine" in seen.cause) == (Observed.STARTING, True)
            assert not static.probe(spec, handle)
            assert static.identify(spec, handle) is None
            allowed = StaticDriver("", frozenset((name,)))
            assert allowed.status(spec, handle).observed is Observed.SERVING


def test_static_pool_knows_no_other_setting() -> None:
    settings = {"addresses": ["10.0.0.7:1"], "kv_blocks": 5}
    with pytest.raises(DriverError, match="no setting 'kv_blocks', only addresses"):
        StaticDriver().check(PoolSpec("p", MODEL, settings))

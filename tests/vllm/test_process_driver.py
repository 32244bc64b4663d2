"""The process driver on a real vLLM: what it starts is found again, never doubled, never mistaken.

One engine is loaded for the file; the tests that end engines start theirs and do not wait for it.
"""

import contextlib
import dataclasses
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capacity.drivers.base import DriverError, Observed, PoolSpec
from capacity.drivers.process import ProcessDriver
from capacity.drivers.processes import read_record, record_of
from capacity.drivers.vllm_env import VllmEnvironment
from tests.conftest import ROOT, processes_of
from tests.engines import wait_for
from tests.vllm.conftest import START_LIMIT_S

SPEC = PoolSpec(
    "vp",
    "tiny-vllm",
    {"max_num_seqs": 4, "num_gpu_blocks_override": 128, "max_model_len": 2048},
    block_size_tokens=32,
)
OTHER = dataclasses.replace(SPEC, model="another-model")
START_AND_DIE = """
import json, os, signal, sys
from pathlib import Path
from capacity.drivers.base import PoolSpec
from capacity.drivers.process import ProcessDriver
spec = PoolSpec(**json.loads(sys.argv[3]))
print(json.dumps(ProcessDriver(Path(sys.argv[1]), Path(sys.argv[2])).start(spec, 0)), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
pytestmark = pytest.mark.timeout(900)


def end_all(state: Path) -> None:
    for pid in processes_of(state):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not processes_of(state), 20)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("vllm-state")
    yield path
    end_all(path)


@pytest.fixture
def own_state(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "own-state"
    path.mkdir()
    yield path
    end_all(path)


def driver(state: Path) -> ProcessDriver:
    return ProcessDriver(state, ROOT)


@pytest.fixture(scope="module")
def handle(state: Path, vllm_environment: VllmEnvironment) -> dict[str, Any]:
    """A replica that serves; the worker that started it was killed at once."""
    spec = json.dumps(dataclasses.asdict(SPEC))
    worker = subprocess.run(
        [sys.executable, "-c", START_AND_DIE, str(state), str(ROOT), spec],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert worker.returncode == -signal.SIGKILL, worker.stderr
    started = json.loads(worker.stdout)
    seen = driver(state).status(SPEC, started)
    assert (seen.observed, seen.cause) == (Observed.STARTING, "loading its model")

    def has_loaded() -> bool:
        seen = driver(state).status(SPEC, started, wait_s=2)
        assert seen.observed in (Observed.STARTING, Observed.SERVING), seen
        return seen.observed is Observed.SERVING

    wait_for(has_loaded, START_LIMIT_S, every_s=0.5)
    return started


def test_replica_outlives_its_worker_and_is_adopted(state: Path, handle: dict[str, Any]) -> None:
    assert driver(state).start(SPEC, 0) == handle
    seen = driver(state).status(SPEC, handle, wait_s=5)
    assert (seen.observed, seen.in_flight, seen.port) == (Observed.SERVING, 0, handle["port"])
    assert driver(state).probe(SPEC, handle)


def test_only_we_can_reach_what_it_tells_of_prompts(state: Path, handle: dict[str, Any]) -> None:
    for name in ("kv_events", "kv_replay"):
        path = Path(handle[name].removeprefix("ipc://"))
        assert path.is_socket()
        directory = path.parent.stat()
        assert (stat.S_IMODE(directory.st_mode), directory.st_uid) == (0o700, os.geteuid())


def test_engine_of_another_model_is_wrong(state: Path, handle: dict[str, Any]) -> None:
    seen = driver(state).status(OTHER, handle, wait_s=5)
    assert seen.observed is Observed.WRONG
    assert "tiny-vllm" in seen.cause


def test_port_that_somebody_else_listens_on_is_wrong(state: Path, handle: dict[str, Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        moved = {**handle, "port": stranger.getsockname()[1]}
        seen = driver(state).status(SPEC, moved, wait_s=5)
    assert (seen.observed, seen.cause) == (Observed.WRONG, "another process holds its port")


def test_one_engine_of_a_replica_runs_whatever_was_left(
    own_state: Path, vllm_environment: VllmEnvironment
) -> None:
    ours = driver(own_state)
    first = ours.start(SPEC, 0)
    wait_for(lambda: first["pid"] in processes_of(own_state), 10)
    second = ours.start(OTHER, 0)  # the pool's model changed: not adopted
    assert second["pid"] != first["pid"]
    assert set(processes_of(own_state)) == {second["pid"]}
    (own_state / "replicas" / "vp-0.json").unlink()  # as if killed before the record was written
    third = ours.start(OTHER, 0)
    assert set(processes_of(own_state)) == {third["pid"]}
    assert read_record(own_state / "replicas" / "vp-0.json") == record_of(third)


def test_stop_ends_what_a_killed_engine_had_started(
    own_state: Path, vllm_environment: VllmEnvironment
) -> None:
    ours = driver(own_state)
    started = ours.start(SPEC, 0)
    wait_for(lambda: len(processes_of(own_state)) >= 3, START_LIMIT_S)  # its core and a tracker
    os.kill(started["pid"], signal.SIGKILL)
    ours.stop(started, drain_s=0.5)
    assert processes_of(own_state) == {}
    assert not list((own_state / "replicas").iterdir())
    assert not Path(started["kv_events"].removeprefix("ipc://")).parent.exists()
    seen = ours.status(SPEC, started)
    assert seen.observed is Observed.GONE


def test_engine_that_cannot_load_says_why(
    own_state: Path, vllm_environment: VllmEnvironment
) -> None:
    broken = own_state / "broken-model"
    broken.mkdir()
    spec = dataclasses.replace(SPEC, settings={"model": str(broken)})
    ours = driver(own_state)
    started = ours.start(spec, 0)
    wait_for(lambda: ours.status(spec, started).observed is Observed.GONE, START_LIMIT_S)
    assert ours.status(spec, started).cause.startswith("its process ended: ")
    broken.rmdir()
    with pytest.raises(DriverError, match="neither a local model nor a directory"):
        ours.start(spec, 0)


def test_engine_that_loads_for_too_long_counts_as_gone(
    own_state: Path, vllm_environment: VllmEnvironment
) -> None:
    hasty = dataclasses.replace(SPEC, settings={**SPEC.settings, "load_limit_s": 5})
    ours = driver(own_state)
    started = ours.start(hasty, 0)
    os.kill(started["pid"], signal.SIGSTOP)
    wait_for(lambda: ours.status(hasty, started).observed is Observed.GONE, 20)
    assert ours.status(hasty, started).cause == "not loaded within 5 s"
    ours.stop(started, drain_s=0)
    assert processes_of(own_state) == {}


def test_stop_leaves_no_process(state: Path, handle: dict[str, Any]) -> None:
    driver(state).stop(handle, drain_s=10)  # the last test here: it takes the file's engine
    assert processes_of(state) == {}
    assert not (state / "replicas" / "vp-0.json").exists()

"""Real vLLM for tests: one engine or more from the product's own environment and local models.

A start takes 20 to 70 s and 0.9 GB: take the session's engines where a test leaves them as they
were, and `start_vllm` only for one that is stopped, killed or set up in a special way.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from capacity.drivers.base import DriverError, Observed
from capacity.drivers.engine_client import look
from capacity.drivers.local import LOOPBACK
from capacity.drivers.vllm_env import VllmEnvironment, require_environment
from capacity.drivers.vllm_serve import (
    Serve,
    kv_addresses,
    local_model,
    private_socket_directory,
    remove_sockets,
)
from console.management.commands.test import NO_VLLM
from tests.conftest import ROOT, free_ports
from tests.engines import wait_for

HERE = Path(__file__).resolve().parent
TEST_LIMIT_S = 900
START_LIMIT_S = 480.0  # a busy machine; 20 to 70 s on an idle one
STOP_LIMIT_S = 40.0


@dataclass(frozen=True)
class RunningVllm:
    """One `vllm serve` that answers."""

    name: str
    model: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path
    kv_events: str
    kv_replay: str

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"


StartVllm = Callable[..., AbstractContextManager[RunningVllm]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test's time includes the engines that it is the first to need."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.timeout(TEST_LIMIT_S))


@pytest.fixture(scope="session", autouse=True)
def vllm_environment() -> VllmEnvironment:
    """The product's vLLM. Missing is an error, unless the command found that none can be had."""
    if why := os.environ.get(NO_VLLM):
        pytest.skip(f"no real vLLM: {why}")
    try:
        return require_environment(ROOT)
    except DriverError as error:
        pytest.fail(str(error))


@pytest.fixture(scope="session")
def vllm_state() -> Iterator[Path]:
    """A directory for models, sockets and logs of the session's engines."""
    directory = Path(tempfile.mkdtemp(prefix="headrace-vllm-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def start_vllm(vllm_environment: VllmEnvironment, vllm_state: Path) -> StartVllm:
    """`with start_vllm("name", model="tiny", served="m", max_num_seqs=4) as engine:`"""

    @contextlib.contextmanager
    def start(
        name: str,
        *,
        model: str = "tiny",
        served: str = "",
        port: int = 0,
        wait: bool = True,
        **settings: Any,
    ) -> Iterator[RunningVllm]:
        settings.setdefault("shutdown_timeout_s", 2)  # used up, idle or not
        serve = Serve(
            executable=vllm_environment.executable,
            model=str(local_model(model, vllm_state)),
            served_name=served or model,
            port=port or free_ports(1)[0],
            name=name,
            state_dir=vllm_state,
            **settings,
        )
        private_socket_directory(vllm_state)
        log = vllm_state / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                serve.argv,
                env=serve.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        running = RunningVllm(
            name=name,
            model=serve.served_name,
            port=serve.port,
            process=process,
            log=log,
            **kv_addresses(vllm_state, name),
        )
        try:
            if wait:
                wait_ready(running)
            yield running
        finally:
            _stop(process)
            remove_sockets(vllm_state, name)

    return start


def wait_ready(running: RunningVllm) -> None:
    """Until it serves its model; fails with the end of its log when it ends before."""

    def is_ready() -> bool:
        if running.process.poll() is not None:
            tail = "\n".join(running.log.read_text(errors="replace").splitlines()[-15:])
            pytest.fail(f"vllm {running.name} ended with {running.process.returncode}:\n{tail}")
        return look(LOOPBACK, running.port, running.model, 1.0).observed is Observed.SERVING

    wait_for(is_ready, START_LIMIT_S)


@pytest.fixture(scope="session")
def tiny_vllm(start_vllm: StartVllm) -> Iterator[RunningVllm]:
    """One engine of the tiny model for the whole session."""
    with start_vllm("tiny-0") as running:
        yield running


@pytest.fixture(scope="session")
def tight_vllm(start_vllm: StartVllm) -> Iterator[RunningVllm]:
    """One request runs, three may wait; the fifth is refused.

    Its model is the slower one: a long answer must be under way until a test has seen it.
    """
    limits = {"max_num_seqs": 1, "max_num_queued_reqs": 4, "max_model_len": 8192}
    with start_vllm("tight-0", model="small", **limits) as running:
        yield running


@pytest.fixture(scope="session")
def small_kv_vllm(start_vllm: StartVllm) -> Iterator[RunningVllm]:
    """A KV cache of 4,064 tokens: a dozen long answers do not fit at once, nor end at once."""
    sizes = {"num_gpu_blocks_override": 128, "max_model_len": 2048}
    with start_vllm("small-kv-0", model="small", **sizes) as running:
        yield running


@pytest.fixture(scope="session")
def tiny_pair(
    tiny_vllm: RunningVllm, start_vllm: StartVllm
) -> Iterator[tuple[RunningVllm, RunningVllm]]:
    """Two engines of the tiny model for the whole session."""
    with start_vllm("tiny-1") as second:
        yield tiny_vllm, second


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the engine and whatever of its session is left."""
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_LIMIT_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_LIMIT_S)
    end_s = time.monotonic() + STOP_LIMIT_S
    while time.monotonic() < end_s:  # until the kernel has collected the group's last member
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail(f"processes of vllm {process.pid} do not end")

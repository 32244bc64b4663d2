"""`manage.py engine serve`: a person's own engine, in the foreground."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from capacity.drivers.vllm_env import VllmEnvironment
from tests.conftest import ROOT, clean_environment, processes_of
from tests.engines import wait_for
from tests.vllm.conftest import START_LIMIT_S

pytestmark = pytest.mark.timeout(900)


def serve(state: Path, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "manage.py", "engine", "serve", "--state", str(state), *words],
        cwd=ROOT,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_taken_port_is_one_line(tmp_path: Path, vllm_environment: VllmEnvironment) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = serve(tmp_path / "state", "--port", str(port))
        said, _ = done.communicate(timeout=60)
    assert done.returncode == 1
    assert f"port {port} is taken by pid {os.getpid()}" in said.strip()
    assert "\n" not in said.strip()


def test_sigterm_ends_the_engine_and_all_that_it_started(
    tmp_path: Path, vllm_environment: VllmEnvironment
) -> None:
    state = tmp_path / "state"
    command = serve(state, "--name", "mine", "--", "--max-num-seqs=2")
    assert command.stdout is not None
    first = command.stdout.readline()
    assert "vLLM serves 'mine' on http://127.0.0.1:" in first

    def engine() -> int:
        """The vLLM itself; its arguments name the model below the state."""
        return next((pid for pid, words in processes_of(state).items() if "vllm serve" in words), 0)

    try:
        session = wait_for(engine, 60)
        wait_for(lambda: len(members_of(session)) >= 3, START_LIMIT_S)  # its core and a tracker
        command.send_signal(signal.SIGTERM)  # vLLM still loads, and does not heed it
        command.communicate(timeout=90)
    finally:
        left = [*members_of(session), *processes_of(state)]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert left == []
    assert command.returncode in (0, 128 + signal.SIGTERM, 128 + signal.SIGKILL)


def members_of(session: int) -> list[int]:
    """Live processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] not in ("Z", "X") and int(fields[3]) == session:
                found.append(int(entry.name))
    return found

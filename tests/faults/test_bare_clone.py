"""A newcomer's machine: a clone without `.venv`, the README's commands, nothing else."""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import ROOT, Stack, processes_of

INSTALL_AND_START_S = 420


def outer_python() -> str:
    """The interpreter that our own environment was made from: it has none of our packages."""
    return getattr(sys, "_base_executable", sys.executable)


@pytest.fixture
def clone() -> Iterator[Stack]:
    directory = Path(tempfile.mkdtemp(prefix="headrace-clone-"))
    directory.chmod(0o755)
    subprocess.run(["git", "clone", "-q", str(ROOT), str(directory / "headrace")], check=True)
    stack = Stack(
        state=directory / "headrace" / ".headrace",
        root=directory / "headrace",
        python=outer_python(),
    )
    yield stack
    stack.manage("down")
    left = processes_of(stack.state)
    shutil.rmtree(directory, ignore_errors=True)
    assert not left, f"left running: {left}"


@pytest.mark.timeout(900)
def test_bare_clone_serves_a_completion(clone: Stack) -> None:
    assert not (clone.root / ".venv").exists()
    started_s = time.monotonic()
    clone.up("--demo", timeout_s=INSTALL_AND_START_S)
    took_s = time.monotonic() - started_s
    print(f"\nbare clone to ready, install included: {took_s:.1f} s\n{clone.started}")
    assert clone.status()["is_ready"]

    demo = clone.credentials["demo_callers"][0]
    answer = httpx.post(
        f"{clone.gateway_url}/v1/chat/completions",
        headers={"Authorization": f"Bearer {demo['secret']}"},
        json={
            "model": demo["model"],
            "messages": [{"role": "user", "content": "hello"}],
            "max_tokens": 8,
        },
        timeout=30,
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] > 0
    clone.down()

"""One stack for every test that breaks servers under traffic: two gateways, a quiet demo fleet."""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import Stack, processes_of
from tests.soak_run import start_quiet_demo
from tests.soaking import Caller


@dataclass(frozen=True)
class Broken:
    """The stack to break, and who calls it meanwhile."""

    stack: Stack
    callers: list[Caller]


@pytest.fixture(scope="session")
def broken() -> Iterator[Broken]:
    directory = Path(tempfile.mkdtemp(prefix="headrace-stack-"))
    directory.chmod(0o711)
    stack = Stack(directory / "state")
    try:
        yield Broken(stack, start_quiet_demo(stack, "--gateways", "2"))
    finally:
        stack.manage("down")
        left = processes_of(stack.state)
        shutil.rmtree(directory, ignore_errors=True)
        assert not left, f"left running after down: {left}"

"""Shared by the tests that break the supervisor's surroundings."""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import ROOT, Stack, clean_environment, processes_of

WAIT_S = 60.0


@contextmanager
def own_stack(directory: Path | None = None) -> Iterator[Stack]:
    """A stack that the test starts itself, for longer than one test; nothing of it is left."""
    home = directory or Path(tempfile.mkdtemp(prefix="headrace-stack-"))
    home.chmod(0o711)
    stack = Stack(home / "state")
    try:
        yield stack
    finally:
        stack.manage("down")
        left = processes_of(stack.state)
        if directory is None:
            shutil.rmtree(home, ignore_errors=True)
        assert not left, f"left running: {left}"


def start_up(stack: Stack, *words: str) -> subprocess.Popen[str]:
    """`up` in front, as a process that a test can end."""
    return subprocess.Popen(
        [
            *(sys.executable, str(ROOT / "manage.py"), "up", "--state", str(stack.state)),
            *(*stack.port_words(), *words),
        ],
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(condition: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
    """Its first true value."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what}"
        time.sleep(0.05)
    return value


def up_refused(stack: Stack, *words: str) -> str:
    """The one line that `up` ends with."""
    done = stack.manage("up", *stack.port_words(), *words)
    assert done.returncode != 0
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def conditions(stack: Stack) -> dict[str, dict[str, Any]]:
    """What `status --json` finds wrong, by `part word`."""
    found = stack.status()["conditions"]
    return {f"{row['part']} {row['word']}": row for row in found}

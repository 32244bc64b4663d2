"""A disk that is full or read-only, for real: a small file system as the state directory.

The file system is a tmpfs. Where it cannot be mounted these tests fail and say so: a full disk that
nobody tried is not a pass.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
import redis

from tests.breaking import pid_of, wait_for
from tests.calling import QUIET_S, booked, calling, holds
from tests.conftest import Stack, processes_of
from tests.supervising import conditions, own_stack, up_refused

MIB = 2**20
DISK_BYTES = 384 * MIB  # a start needs 256 free
FULL_FOR_S = 4.0  # longer than every patience inside the gateway

pytestmark = pytest.mark.timeout(600)  # a shared stack starts several times, on any machine


def as_root(*command: str) -> None:
    words = [*(() if os.geteuid() == 0 else ("sudo", "-n")), *command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(
            f"{' '.join(words)}: {done.stderr.strip()}: these tests mount file systems of their "
            "own; run them as root, or where `sudo -n mount` works"
        )


@contextmanager
def disk(size_bytes: int) -> Iterator[Path]:
    """A file system of this size, ours, gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="headrace-disk-"))
    owner = f"uid={os.geteuid()},gid={os.getegid()}"
    as_root(
        "mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=711,{owner}", "x", str(directory)
    )
    try:
        yield directory
    finally:
        as_root("umount", "--lazy", str(directory))
        directory.rmdir()


class Ballast:
    """Fills a disk, and takes again what others free, until it is dropped."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "ballast"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._fill)

    def _fill(self) -> None:
        with self._path.open("wb", buffering=0) as file:
            size = MIB
            while not self._stop.is_set():
                try:
                    file.write(bytes(size))
                except OSError:
                    size = max(1, size // 2)
                    self._stop.wait(0.01)

    def __enter__(self) -> "Ballast":
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self._path.unlink()


def test_start_without_room_is_refused_and_leaves_nothing() -> None:
    with disk(64 * MIB) as directory:
        stack = Stack(directory / "state")
        line = up_refused(stack)
        assert f" MiB are free on the disk of {stack.state}, a start needs 256: " in line
        assert not stack.state.exists()
        (directory / "ballast").write_bytes(bytes(64 * MIB - 8192))
        stack.state.mkdir()
        line = up_refused(stack)
        assert line.startswith("CommandError: ")
        assert "No space left on device" in line or " MiB are free on the disk of " in line
        assert processes_of(stack.state) == {}


@pytest.fixture(scope="module")
def on_small_disk() -> Iterator[Stack]:
    with disk(DISK_BYTES) as directory, own_stack(directory) as stack:
        stack.up("--demo")
        yield stack


def test_full_disk_under_traffic_is_survived_and_every_answer_has_one_row(
    on_small_disk: Stack,
) -> None:
    stack = on_small_disk
    supervisor = stack.status()["supervisor_pid"]
    with calling(stack) as callers:
        wait_for(callers.grows(), "answers before the disk is full")
        with Ballast(stack.state.parent):
            refusal = wait_for(lambda: refusal_of(stack), "a refusal")
            assert refusal.json()["error"]["code"] == "no_capacity"
            assert int(refusal.headers["retry-after"]) >= 1
            # Bounded: nobody is answered whom neither store nor journal remembers.
            answered = len(callers.answered)
            assert not threading.Event().wait(FULL_FOR_S)
            assert len(callers.answered) - answered <= 4, "answers that nothing remembers"
            found = conditions(stack)
            assert "disk state full" in found, found
            assert "Free space now" in found["disk state full"]["next_step"]
            assert "free on the disk" in stack.manage("status").stdout
            beat = pid_of(stack, "beat")
            os.kill(beat, signal.SIGKILL)  # the supervisor cannot write its file either
            wait_for(lambda: another_beat(stack, beat), "another beat")
            assert stack.status()["supervisor_pid"] == supervisor
        wait_for(lambda: stack.status()["is_ready"], "everything is ready again", 90)
        wait_for(callers.grows(), "answers after the disk has room")
    assert pid_of(stack, "beat") != beat, "the supervisor's file is written again"
    expect_exact(stack, callers.answered)


def refusal_of(stack: Stack) -> httpx.Response | None:
    secret = stack.credentials["demo_callers"][0]["secret"]
    answer = httpx.post(
        f"{stack.gateway_url}/v1/chat/completions",
        headers={"Authorization": f"Bearer {secret}"},
        json={
            "model": "llama-8b",
            "messages": [{"role": "user", "content": "is there room?"}],
            "max_tokens": 4,
        },
        timeout=30,
    )
    return answer if answer.status_code == 503 else None


def another_beat(stack: Stack, before: int) -> bool:
    found = processes_of(stack.state).items()
    return any(pid != before and " beat " in f"{words} " for pid, words in found)


def expect_exact(stack: Stack, answered: list[str]) -> None:
    """Nothing held, and exactly one row for each answer."""
    os.kill(pid_of(stack, "traffic"), signal.SIGSTOP)
    store = redis.Redis.from_url(stack.settings["REDIS_URL"])
    try:
        wait_for(lambda: not holds(store), "end of all holds", QUIET_S)
        wanted = Counter(answered)
        wait_for(lambda: booked(stack, answered) == wanted, "one row for each answer", QUIET_S)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid_of(stack, "traffic"), signal.SIGCONT)


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Nothing new can be written below it: what is open already can, as after `chmod`."""
    if os.geteuid() != 0:
        before = directory.stat().st_mode
        directory.chmod(0o555)
        yield
        directory.chmod(before)
        return
    as_root("mount", "--bind", str(directory), str(directory))
    as_root("mount", "-o", "remount,bind,ro", str(directory))
    try:
        yield
    finally:
        as_root("umount", "--lazy", str(directory))


def test_state_that_became_read_only_stops_nobody_and_is_named(on_small_disk: Stack) -> None:
    stack = on_small_disk
    with calling(stack) as callers:
        wait_for(callers.grows(), "answers before")
        with read_only(stack.state):
            found = wait_for(lambda: named(stack, "disk state unwritable"), "the condition")
            assert "takes no writes" in found["text"]
            console = pid_of(stack, "console")
            os.kill(console, signal.SIGKILL)
            wait_for(lambda: console_answers(stack), "the console is back without a log")
            wait_for(callers.grows(), "answers while it is read-only")
        wait_for(lambda: stack.status()["is_ready"], "everything is ready again")
        assert pid_of(stack, "console") != console
    expect_exact(stack, callers.answered)


def named(stack: Stack, what: str) -> dict[str, str] | None:
    return conditions(stack).get(what)


def console_answers(stack: Stack) -> bool:
    with suppress(httpx.HTTPError):
        return httpx.get(f"{stack.console_url}/readyz", timeout=5).status_code == 200
    return False


def test_state_that_takes_no_writes_or_cannot_be_read_is_one_line() -> None:
    with disk(DISK_BYTES) as directory:
        stack = Stack(directory / "state")
        stack.state.mkdir()
        with read_only(directory):
            line = up_refused(stack)
        assert f"cannot write to the state directory {stack.state}" in line
        for name in ("servers.json", "environment.json", "credentials.json"):
            broken = stack.state / name
            broken.write_text('{"cut')
            line = up_refused(stack)
            assert f"cannot read {broken}: " in line, line
            broken.unlink()
            assert processes_of(stack.state) == {}
        shutil.rmtree(stack.state)
        stack.state.mkdir()
        (stack.state / "processes.json").mkdir()
        assert "cannot read" in up_refused(stack)
        status = json.loads(stack.manage("status", "--json").stdout)
        assert any(row["part"] == "state" for row in status["conditions"])

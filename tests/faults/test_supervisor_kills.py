"""kill -9 of anything at any moment, then `up` again: one line, no orphan, ready, nothing twice."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from console.supervisor import proc
from console.supervisor.state import State
from tests.breaking import pid_of
from tests.conftest import ROOT, Stack, clean_environment, processes_of
from tests.supervising import own_stack, start_up, until

READY_AGAIN_S = 60.0
START_WAIT_S = 180.0  # a whole first start may come before it
SERVICES = ("console", "gateway-g0", "worker", "beat", "collector", "ledger")
# What runs when `up` is killed: each name shows once that stage has begun.
STAGES = ("initdb", "valkey-server", "console.supervisor.prepare", "console.project.server")

pytestmark = pytest.mark.timeout(600)  # a shared stack starts several times, on any machine


@pytest.fixture(scope="module")
def small() -> Iterator[Stack]:
    """An installation without demo, made by an `up` that was killed at every stage before."""
    with own_stack() as stack:
        for name in STAGES:
            running = start_up(stack)
            until(lambda n=name: runs(stack, n), f"{name} started", START_WAIT_S)
            running.kill()
            running.communicate()
        left = set(processes_of(stack.state))
        stack.up()
        assert "ended " in stack.started
        assert " processes that a killed supervisor had left" in stack.started
        assert not left & set(processes_of(stack.state))
        yield stack


def runs(stack: Stack, name: str) -> bool:
    """By command line."""
    found = [f"{words} " for words in processes_of(stack.state).values()]
    return any(name in words for words in found)


def is_ready(stack: Stack) -> bool:
    return bool(stack.status()["is_ready"])


def kill_supervisor(stack: Stack) -> None:
    holder = State(stack.state).holder()
    assert holder is not None
    os.kill(holder.pid, signal.SIGKILL)
    assert not proc.wait_gone([holder], 10)


def expect_single(stack: Stack) -> None:
    """Each process once, and exactly those on record."""
    recorded = {int(path.read_text()) for path in (stack.state / "pids").iterdir()}
    words = processes_of(stack.state)
    for mark in (" beat ", "routing.gateway", "telemetry.collector", "manage.py ledger"):
        pids = [pid for pid, said in words.items() if mark in f"{said} "]
        assert len(pids) == 1, (mark, words)
        assert pids[0] in recorded


def test_up_killed_at_every_stage_leaves_nothing_that_the_next_one_does_not_end(
    small: Stack,
) -> None:
    assert is_ready(small)
    expect_single(small)


def test_all_services_killed_at_once_come_back(small: Stack) -> None:
    before = {name: pid_of(small, name) for name in SERVICES}
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)

    def are_back() -> bool:
        """Ready alone says little: a killed process lives until the kernel gets to it."""
        status = small.status()
        now = {row["name"]: row["pid"] for row in status["processes"]}
        return status["is_ready"] and all(now[name] != pid for name, pid in before.items())

    until(are_back, "everything is ready again, each with a new pid", READY_AGAIN_S)
    expect_single(small)


def test_everything_killed_with_its_supervisor_starts_again(small: Stack) -> None:
    status = small.status()
    pids = [row["pid"] for row in status["processes"] if row["pid"]]
    killed = [proc.identify(pid) for pid in (status["supervisor_pid"], *pids)]
    for who in killed:
        assert who is not None, status
        os.kill(who.pid, signal.SIGKILL)
    # A killed process loses its command line first, and its state's lock and pid some time later.
    assert not proc.wait_gone([who for who in killed if who], 30)
    until(lambda: not processes_of(small.state), "all of it is dead")
    after = small.status()
    found = {f"{row['part']} {row['word']}" for row in after["conditions"]}
    assert "supervisor gone" in found, (found, after["supervisor_pid"], killed[0])
    small.up()
    assert is_ready(small)
    expect_single(small)


def test_gateways_go_on_without_a_supervisor_and_the_next_up_takes_over(small: Stack) -> None:
    kill_supervisor(small)
    answer = httpx.get(f"{small.console_url}/healthz", timeout=10)
    assert answer.status_code == 200
    old = set(processes_of(small.state))
    assert len(old) > 5
    small.up()
    assert not old & set(processes_of(small.state))
    assert is_ready(small)


def test_down_killed_halfway_stops_all_the_same(small: Stack) -> None:
    supervisor = State(small.state).holder()
    assert supervisor is not None
    command = [sys.executable, str(ROOT / "manage.py"), "down", "--state", str(small.state)]
    stopping = subprocess.Popen(command, env=clean_environment(), stdout=subprocess.DEVNULL)
    board = small.state / "processes.json"
    until(lambda: '"stopping"' in text_of(board), "stopping began")
    stopping.kill()
    stopping.wait()
    assert not proc.wait_gone([supervisor], 60)
    until(lambda: not processes_of(small.state), "nothing is left")
    assert "nothing runs on" in small.manage("down").stderr
    small.up()


def text_of(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return '"stopping"'  # gone: it has stopped already


def test_two_ups_at_once_are_one(small: Stack) -> None:
    small.down()
    first, second = start_up(small), start_up(small)
    try:
        done = until(
            lambda: next((one for one in (first, second) if one.poll() is not None), None),
            "one of them gives way",
        )
        other = second if done is first else first
        line = done.communicate()[1].strip()
        assert "\n" not in line
        assert "already running on" in line or "is taken by pid" in line
        until(lambda: is_ready(small), "the other is ready", READY_AGAIN_S)
        expect_single(small)
    finally:
        other.send_signal(signal.SIGTERM)
        other.communicate(timeout=60)
    assert processes_of(small.state) == {}


def test_pid_that_belongs_to_somebody_else_now_is_left_alone(small: Stack) -> None:
    """The records of a dead installation name a live process of another program."""
    if not processes_of(small.state):
        small.up()
    kill_supervisor(small)
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        board = small.state / "processes.json"
        beat = pid_of(small, "beat")
        board.write_text(board.read_text().replace(f'"pid": {beat},', f'"pid": {bystander.pid},'))
        lock = small.state / "supervisor.lock"
        lock.write_text(f"{bystander.pid} 1")
        assert State(small.state).holder() is None
        small.up()
        assert is_ready(small)
        expect_single(small)
        assert bystander.poll() is None
        identity = proc.identify(bystander.pid)
        assert identity is not None
        assert identity.is_alive
    finally:
        bystander.kill()
        bystander.wait()

"""The lane of real engines of `manage.py test`: what happens when vLLM cannot be installed."""

import subprocess
import sys
import time
from io import StringIO
from pathlib import Path

import pytest

from capacity.drivers.vllm_install import InstallError, WheelMissingError, require_platform
from console.errors import DomainError
from console.management.commands import test as command
from console.management.commands.test import NO_VLLM, Command, left_out, not_run, rest

WHY = "no wheel of torch was found: give a folder that holds it"


def command_with(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> Command:
    def install(*_: object) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(command, "install", install)
    return Command(stdout=StringIO())


def said(made: Command) -> str:
    return made.stdout._out.getvalue()


def test_without_a_wheel_the_lane_is_not_run_and_says_so_above_the_closing_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = command_with(monkeypatch, WheelMissingError(WHY))
    assert made._engine() == {NO_VLLM: WHY}
    made._close("one\ntwo\n=== 3 passed in 1 s ===\n", WHY)
    lines = said(made).splitlines()
    assert lines == [not_run(WHY), "one", "two", not_run(WHY), "=== 3 passed in 1 s ==="]
    assert WHY in lines[0]
    assert "NOT RUN" in lines[0]


def test_any_other_fault_of_the_install_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    made = command_with(monkeypatch, InstallError("the disk is full"))
    with pytest.raises(DomainError, match="engine install: the disk is full"):
        made._engine()


def test_with_vllm_nothing_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    made = command_with(monkeypatch, None)
    assert made._engine() == {}
    made._close("one\n=== 3 passed ===", "")
    assert said(made) == "one\n=== 3 passed ===\n"


def test_a_machine_without_wheels_is_not_a_fault_of_the_install() -> None:
    with pytest.raises(WheelMissingError):
        require_platform((3, 11), "Linux", "riscv64")
    with pytest.raises(WheelMissingError):
        require_platform((3, 10), "Linux", "x86_64")


def test_each_directory_of_tests_is_in_one_lane() -> None:
    names = {path.parts[-2] for path in Path(command.TESTS).glob("*/test_*.py")}
    assert "vllm" in names
    assert all(any((command.TESTS / name).glob("test_*.py")) for name in command.GATEWAY_LANE)
    assert left_out(("integration/routing",)) == ["--ignore=tests/integration/routing"]
    others = [*command.WAITING_LANES, *command.BROWSER_LANE, command.ENGINE_LANE]
    assert len(set(others)) == len(others)
    assert {*rest(), *others} >= names
    assert set(rest()).isdisjoint(others)


def test_a_lane_that_does_not_end_is_a_failure_and_says_which() -> None:
    made = Command(stdout=StringIO())
    never = subprocess.Popen([sys.executable, "-c", "input()", "tests/vllm"], stdin=subprocess.PIPE)
    try:
        assert made._outcome(never, time.monotonic()) == 1
    finally:
        never.kill()
        never.communicate()
    assert said(made).startswith("!!! not done within")
    assert "tests/vllm" in said(made)
    done = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    assert made._outcome(done, time.monotonic() + 60) == 3


def test_the_next_lane_begins_when_one_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    long = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    short = subprocess.Popen([sys.executable, "-c", ""])
    try:
        monkeypatch.setattr(command, "AT_ONCE", 2)
        command.wait_for_room((long, short))
        assert (long.poll(), short.wait(5)) == (None, 0)
        began_s = time.monotonic()
        command.wait_for_room((long, short))  # there is room: nothing is waited for
        command.wait_for_one((long,), 0.1)
        assert 0.1 <= time.monotonic() - began_s < 30
    finally:
        long.kill()
        long.communicate()


def test_four_lanes_run_at_once_and_the_faults_of_one_are_the_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[subprocess.Popen[bytes]] = []
    said_by: list[tuple[str, bool]] = []
    ignored: list[str] = []
    most = 0

    def lane(words, environment, output=None, priority=()):
        nonlocal most
        name = words[-1]
        code = f"print('=== {name} ended ==='); raise SystemExit({3 if 'cases' in name else 0})"
        begun.append(subprocess.Popen([sys.executable, "-c", code], stdout=output))
        if words[0] == "test":
            said_by.append((name.removeprefix("tests/"), bool(priority)))
            ignored.extend(word for word in words if word.startswith("--ignore="))
            most = max(most, sum(one.poll() is None for one in begun))
        return begun[-1]

    monkeypatch.setattr(command, "lane", lane)
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    made = command_with(monkeypatch, WheelMissingError(WHY))
    assert made._lanes([], {}) == 3
    last_of_rest = rest()[-1]
    assert said_by == [
        ("faults", False),
        ("cases", False),
        (last_of_rest, True),
        (command.GATEWAY_LANE[-1], True),
        (command.BROWSER_LANE[-1], True),
        ("vllm", True),
    ]
    assert ignored == left_out(command.GATEWAY_LANE)  # by the rest alone
    assert 1 <= most <= command.AT_ONCE + 1  # and the install beside them
    lines = said(made).splitlines()
    assert lines[-2:] == [not_run(WHY), "=== tests/cases ended ==="]
    assert {"=== tests/vllm ended ===", "=== tests/faults ended ==="} <= set(lines)

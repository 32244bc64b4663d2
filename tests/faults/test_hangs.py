"""Processes that hang instead of dying: shown at once, restarted within a bound, servers left."""

import os
import signal
from collections.abc import Iterator

import pytest

from tests.breaking import pid_of
from tests.conftest import Stack, processes_of
from tests.supervising import conditions, own_stack, until

RESTART_SILENT_S = 12
# Asked every 5 s, each question takes up to 1 s; then the process starts anew on a busy machine.
RESTARTED_WITHIN_S = RESTART_SILENT_S + 60.0
HUNG = ("console", "gateway-g0", "worker", "ledger")

pytestmark = pytest.mark.timeout(600)  # a shared stack starts several times, on any machine


@pytest.fixture(scope="module")
def running() -> Iterator[Stack]:
    with own_stack() as stack:
        stack.environment["HEADRACE_RESTART_SILENT_S"] = str(RESTART_SILENT_S)
        stack.up()
        yield stack


def test_hung_processes_are_shown_and_restarted(running: Stack) -> None:
    before = {name: pid_of(running, name) for name in HUNG}
    for pid in before.values():
        os.kill(pid, signal.SIGSTOP)
    until(
        lambda: {f"{name} stopped" for name in HUNG} <= set(conditions(running)),
        "each is named",
    )
    assert not running.status()["is_ready"]
    until(lambda: running.status()["is_ready"], "all are restarted", RESTARTED_WITHIN_S)
    for name, pid in before.items():
        row = running.process(name)
        assert row["pid"] != pid
        assert row["restarts"] == 1
        assert row["last_reason"].startswith("did not answer for ")
        assert not os.path.exists(f"/proc/{pid}")
    assert not set(before.values()) & set(processes_of(running.state))


def test_hung_server_is_named_and_left_alone(running: Stack) -> None:
    """A kill would cost a crash recovery, and it may only wait for its disk."""
    postgres = pid_of(running, "postgres")
    os.kill(postgres, signal.SIGSTOP)
    try:
        until(lambda: names_postgres(running), "the condition")
        # Longer than any service would be left: told by a service that hung at the same time.
        beat = pid_of(running, "beat")
        os.kill(beat, signal.SIGSTOP)
        until(lambda: pid_of_or_none(running, "beat") not in (None, beat), "beat restarted",
              RESTARTED_WITHIN_S)  # fmt: skip
        assert pid_of(running, "postgres") == postgres
    finally:
        os.kill(postgres, signal.SIGCONT)
    until(lambda: running.status()["is_ready"], "all are ready again")
    assert pid_of(running, "postgres") == postgres
    assert running.process("postgres")["restarts"] == 0


def names_postgres(stack: Stack) -> bool:
    return any(row["part"] == "postgres" for row in conditions(stack).values())


def pid_of_or_none(stack: Stack, name: str) -> int | None:
    try:
        return pid_of(stack, name)
    except (OSError, ValueError):
        return None

"""The supervisor with small programs of its own: start order, restarts, orphans, clean stop."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from console.supervisor import proc
from console.supervisor.processes import Supervisor
from console.supervisor.program import (
    LONGEST_DELAY_S,
    Child,
    Phase,
    Program,
    restart_delay_s,
)
from console.supervisor.state import StartRefused
from tests import forking

SLEEP = "import time; time.sleep(600)"


def program(
    name: str,
    code: str,
    *,
    stage: int = 1,
    probe: Callable[[int], str] = lambda pid: "",
    stop_wait_s: float = 5.0,
) -> Program:
    return Program(
        name=name,
        argv=(sys.executable, "-c", code),
        environment={"PATH": os.environ["PATH"]},
        probe=probe,
        stage=stage,
        stop_wait_s=stop_wait_s,
    )


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    forking.end_all()  # it takes every child that it does not know for an orphan of its own
    made = Supervisor(logs=tmp_path, changed=lambda: None, say=lambda line: None)
    with made.signals():
        yield made
        made.stop()
    assert proc.children_of(os.getpid()) == []


def turn_until(supervisor: Supervisor, condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s, "the condition did not come true"
        supervisor._turn()


def child(supervisor: Supervisor, name: str) -> Child:
    return next(child for child in supervisor.children if child.program.name == name)


def test_delay_doubles_up_to_a_bound() -> None:
    assert [restart_delay_s(deaths) for deaths in (1, 2, 3)] == [0.5, 1.0, 2.0]
    assert restart_delay_s(50) == LONGEST_DELAY_S


def test_later_stage_starts_only_when_the_earlier_one_is_ready(supervisor: Supervisor) -> None:
    asked = []

    def slow(pid: int) -> str:
        asked.append([child.program.name for child in supervisor.children if child.process])
        return "" if len(asked) > 2 else "not yet"

    supervisor.start([program("b", SLEEP, stage=2), program("a", SLEEP, probe=slow)], 20)
    assert asked == [["a"]] * 3
    assert child(supervisor, "b").phase is Phase.READY


def test_killed_child_starts_again_and_says_why(supervisor: Supervisor) -> None:
    supervisor.start([program("a", SLEEP)], 20)
    first = child(supervisor, "a").identity
    assert first is not None
    proc.send(first, signal.SIGKILL)
    turn_until(supervisor, lambda: child(supervisor, "a").restarts == 1)
    turn_until(supervisor, lambda: child(supervisor, "a").phase is Phase.READY)
    assert child(supervisor, "a").identity != first
    assert child(supervisor, "a").last_reason == "killed by SIGKILL"


def test_program_that_cannot_start_is_refused_with_its_last_words(supervisor: Supervisor) -> None:
    code = "raise SystemExit('no such pool')"
    with pytest.raises(StartRefused, match="a does not start: exited with 1: no such pool"):
        supervisor.start([program("a", code, probe=lambda pid: "not yet")], 20)


def test_program_that_never_gets_ready_is_refused_with_the_reason(supervisor: Supervisor) -> None:
    with pytest.raises(StartRefused, match=r"a is not ready after 1 s: still loading; log: "):
        supervisor.start([program("a", SLEEP, probe=lambda pid: "still loading")], 1)


def test_grandchild_of_a_dead_child_is_adopted_and_stopped(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    note = tmp_path / "pid"
    code = (
        "import subprocess, sys, time\n"
        f"p = subprocess.Popen([sys.executable, '-c', {SLEEP!r}], start_new_session=True)\n"
        f"open({str(note)!r}, 'w').write(str(p.pid))\n"
        "time.sleep(600)"
    )
    is_written = lambda pid: "" if note.exists() and note.read_text() else "not yet"  # noqa: E731
    supervisor.start([program("a", code, probe=is_written)], 20)
    orphan = proc.identify(int(note.read_text()))
    assert orphan is not None
    supervisor.stop()
    assert not orphan.is_alive


def test_child_that_ignores_the_stop_signal_is_killed(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    note = tmp_path / "deaf"
    code = (
        "import signal, time, pathlib\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(note)!r}).touch()\n"
        "time.sleep(600)"
    )
    deaf = program("a", code, stop_wait_s=0.5, probe=lambda pid: "" if note.exists() else "no")
    supervisor.start([deaf], 20)
    identity = child(supervisor, "a").identity
    assert identity is not None
    supervisor.stop()
    assert not identity.is_alive
    assert child(supervisor, "a").phase is Phase.STOPPED


def test_stop_signal_during_the_start_ends_it(supervisor: Supervisor) -> None:
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        supervisor.start([program("a", SLEEP, probe=lambda pid: "never")], 20)
    timer.join()


def test_signal_to_a_pid_that_changed_hands_is_not_sent() -> None:
    me = proc.identify(os.getpid())
    assert me is not None
    proc.send(proc.Identity(me.pid, me.ticks - 1), signal.SIGKILL)  # we are still here


def test_failed_one_shot_is_refused_with_its_last_line(supervisor: Supervisor) -> None:
    with pytest.raises(StartRefused, match="prepare failed: no disk; log: "):
        supervisor.run_once(program("prepare", "raise SystemExit('no disk')"), 20)


def test_stray_grandchild_that_no_record_names_is_ended(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.supervisor.watch.STRAY_AFTER_S", 0.2)
    monkeypatch.setattr("console.supervisor.watch.LIVE_EVERY_S", 0.1)
    start_two = (
        "import subprocess, sys, time\n"
        f"for _ in range(2): subprocess.Popen([sys.executable, '-c', {SLEEP!r}],"
        " start_new_session=True)\n"
        "time.sleep(600)"
    )
    parent = program("worker", start_two)
    supervisor.start([parent], 20)
    worker = child(supervisor, "worker")
    assert worker.process is not None
    turn_until(supervisor, lambda: len(proc.children_of(worker.process.pid)) == 2)
    kept, stray = (proc.identify(pid) for pid in proc.children_of(worker.process.pid))
    assert kept is not None
    assert stray is not None
    supervisor.kept = lambda: {kept}
    os.kill(worker.process.pid, signal.SIGKILL)
    # Without a state of its own it leaves alone what was started detached below it.
    turn_until(supervisor, lambda: worker.restarts == 1)
    supervisor._end_strays()
    assert stray.is_alive
    supervisor.mark = "/a/state"
    turn_until(supervisor, lambda: not stray.is_alive)
    assert kept.is_alive


def test_start_that_hangs_after_a_restart_is_ended(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.supervisor.watch.START_LIMIT_S", 0.3)
    answers = {"ready": "", "alive": True}
    hung = program("console", SLEEP, probe=lambda pid: str(answers["ready"]))
    hung = replace(hung, is_alive=lambda pid: bool(answers["alive"]), restarts_silent=True)
    supervisor.start([hung], 20)
    one = child(supervisor, "console")
    answers |= {"ready": "no answer", "alive": False}
    assert one.process is not None
    os.kill(one.process.pid, signal.SIGKILL)
    turn_until(supervisor, lambda: one.last_reason == "hung at its start (no answer): killed")
    answers["ready"] = ""
    turn_until(supervisor, lambda: one.phase is Phase.READY)

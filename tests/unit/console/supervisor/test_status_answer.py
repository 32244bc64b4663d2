"""`status` answers in bounded time whatever is gone, hangs or cannot be read."""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from capacity.drivers.processes import ProcessRecord, boot_id, start_ticks, write_record
from console.supervisor.answer import collect, table
from console.supervisor.state import State

BOUND_S = 3.0


@contextmanager
def silent_port() -> Iterator[int]:
    """A server that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listener:
        yield listener.getsockname()[1]


def closed_port() -> int:
    """A port nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def started(tmp_path: Path, store_port: int, database_port: int, **row: object) -> State:
    """A state whose supervisor is this very process."""
    state = State(tmp_path)
    ticks = start_ticks(os.getpid())
    values = {
        "name": "worker", "pid": os.getpid(), "ticks": ticks, "port": None, "stage": 1,
        "ready_port": None, "is_gateway": False, "phase": "ready", "started_at": time.time() - 60,
        "restarts": 2, "last_reason": "killed by SIGKILL", "pool_max": 8, "stop_signal": 15,
        "log": "logs/worker.log", "next_start_at": None,
    }  # fmt: skip
    content = {
        "boot": boot_id(), "supervisor": {"pid": os.getpid(), "ticks": ticks}, "phase": "ready",
        "console_url": "http://127.0.0.1:1", "gateway_url": "http://127.0.0.1:2",
        "processes": [{**values, **row}],
    }  # fmt: skip
    state.processes.write_text(json.dumps(content))
    state.environment.write_text(
        json.dumps(
            {
                "REDIS_URL": f"redis://:secret-word@127.0.0.1:{store_port}/0",
                "DATABASE_URL": f"postgresql://h:secret-word@127.0.0.1:{database_port}/h",
            }
        )
    )
    return state


def named(answer: dict) -> set[tuple[str, str]]:
    return {(found["part"], found["word"]) for found in answer["conditions"]}


def test_status_shows_each_engine_with_pid_port_and_whether_it_lives(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.replicas.mkdir()
    own = start_ticks(os.getpid()) or 0
    for name, ticks in (("p-a-0", own), ("p-a-1", own + 1)):
        record = ProcessRecord(name, os.getpid(), ticks, boot_id(), "127.0.0.1", 4001)
        write_record(state.replicas / f"{name}.json", record)
    answer = collect(state)
    assert [(row["name"], row["state"]) for row in answer["engines"]] == [
        ("p-a-0", "running"),
        ("p-a-1", "dead"),
    ]
    text = "\n".join(table(answer))
    assert "p-a-0" in text
    assert "4001" in text


def test_nothing_running_is_no_fault(tmp_path: Path) -> None:
    answer = collect(State(tmp_path))
    assert (answer["phase"], answer["is_ready"]) == ("not running", False)
    assert answer["conditions"] == []


def test_servers_that_hang_are_named_within_the_bound(tmp_path: Path) -> None:
    with silent_port() as store, silent_port() as database, silent_port() as console:
        state = started(tmp_path, store, database, name="console", ready_port=console)
        began_s = time.monotonic()
        answer = collect(state)
        took_s = time.monotonic() - began_s
    assert took_s < BOUND_S
    assert {("store", "hanging"), ("postgres", "hanging")} <= named(answer)
    assert not answer["is_ready"]
    assert "secret-word" not in json.dumps(answer)


def test_servers_that_are_gone_are_named_at_once(tmp_path: Path) -> None:
    state = started(tmp_path, closed_port(), closed_port())
    began_s = time.monotonic()
    answer = collect(state)
    assert time.monotonic() - began_s < BOUND_S
    assert {("store", "away"), ("postgres", "away")} <= named(answer)
    assert "secret-word" not in json.dumps(answer)
    text = "\n".join(table(answer))
    assert "BAD   store away" in text
    assert "local shares, by default at most 300 s" in text


def test_a_row_says_restarts_and_the_last_reason(tmp_path: Path) -> None:
    answer = collect(started(tmp_path, closed_port(), closed_port()))
    [row] = answer["processes"]
    assert (row["restarts"], row["last_reason"]) == (2, "killed by SIGKILL")
    assert "last: killed by SIGKILL" in "\n".join(table(answer))


def test_a_process_that_waits_for_its_next_start_says_when(tmp_path: Path) -> None:
    state = started(
        tmp_path, closed_port(), closed_port(), pid=None, ticks=None, phase="backing off",
        next_start_at=time.time() + 8,
    )  # fmt: skip
    answer = collect(state)
    [row] = answer["processes"]
    assert 7 <= row["next_start_s"] <= 8
    assert row["readiness"] == "backing off"
    assert ("worker", "down") in named(answer)
    assert f"starts again in {row['next_start_s']} s" in "\n".join(table(answer))


def test_a_supervisor_that_is_gone_is_named(tmp_path: Path) -> None:
    state = started(tmp_path, closed_port(), closed_port())
    content = json.loads(state.processes.read_text())
    content["supervisor"]["ticks"] += 1
    state.processes.write_text(json.dumps(content))
    answer = collect(state)
    assert "supervisor gone" in answer["phase"]
    assert ("supervisor", "gone") in named(answer)


@pytest.mark.parametrize("content", ["{", "[]", '{"processes": [{"pid": 1}]}', '{"boot": 1}'])
def test_a_damaged_board_is_a_condition_not_a_failure(tmp_path: Path, content: str) -> None:
    state = started(tmp_path, closed_port(), closed_port())
    state.processes.write_text(content)
    answer = collect(state)
    assert not answer["is_ready"]
    assert ("state", "unreadable") in named(answer)


def test_a_damaged_environment_is_a_condition_not_a_failure(tmp_path: Path) -> None:
    state = started(tmp_path, closed_port(), closed_port())
    state.environment.write_text("{")
    answer = collect(state)
    assert not answer["is_ready"]
    assert ("state", "unreadable") in named(answer)

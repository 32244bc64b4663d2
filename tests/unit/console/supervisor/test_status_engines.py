"""`status` names the engines that run beside the supervised processes."""

import os
from pathlib import Path

from capacity.drivers.processes import ProcessRecord, boot_id, start_ticks, write_record
from console.supervisor import status
from console.supervisor.state import State


def test_status_shows_each_engine_with_pid_port_and_whether_it_lives(tmp_path: Path) -> None:
    state = State(tmp_path)
    state.replicas.mkdir()
    own = start_ticks(os.getpid()) or 0
    for name, ticks in (("p-a-0", own), ("p-a-1", own + 1)):
        record = ProcessRecord(name, os.getpid(), ticks, boot_id(), "127.0.0.1", 4001)
        write_record(state.replicas / f"{name}.json", record)
    answer = status.collect(state, 0.0)
    assert [(row["name"], row["state"]) for row in answer["engines"]] == [
        ("p-a-0", "running"),
        ("p-a-1", "dead"),
    ]
    text = "\n".join(status.table(answer))
    assert "p-a-0" in text
    assert "4001" in text

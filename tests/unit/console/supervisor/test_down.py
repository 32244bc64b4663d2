"""`down` ends everything, also what a supervisor leaves that dies while it is asked to stop."""

import subprocess
import sys
from pathlib import Path

from console.supervisor import proc
from console.supervisor.bootstrap import ROOT
from console.supervisor.state import State
from console.supervisor.up import down

# It holds the state, has started one process that bears its mark, and dies of the first signal.
FRAIL = """
import os, signal, subprocess, sys
from pathlib import Path
from console.supervisor import proc
from console.supervisor.state import State
state = State(Path(sys.argv[1]))
state.create()
with state.hold():
    started = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={**os.environ, proc.MARK: str(state.root)}, start_new_session=True,
    )
    print(started.pid, flush=True)
    signal.pause()
"""


def test_what_a_supervisor_leaves_that_dies_when_it_is_asked_to_stop_is_ended(
    tmp_path: Path,
) -> None:
    state = State(tmp_path / "state")
    with subprocess.Popen(
        [sys.executable, "-c", FRAIL, str(state.root)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as supervisor:
        assert supervisor.stdout is not None
        left = proc.identify(int(supervisor.stdout.readline()))
        assert left is not None
        said: list[str] = []
        try:
            down(state, said.append)
            assert said == ["stopped what a killed supervisor had left"]
            assert not left.is_alive
            assert state.holder() is None
        finally:
            proc.end([left], wait_s=5)
            supervisor.kill()

"""`up` and `down` for real: refusals leave nothing, what is killed comes back, Ctrl-C ends all."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.breaking import wait_for
from tests.conftest import ROOT, Stack, clean_environment, free_ports, processes_of

WAIT_S = 60.0


@pytest.fixture
def listener() -> Iterator[int]:
    """A port that somebody else holds."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield held.getsockname()[1]


def up_refused(stack: Stack, *words: str) -> str:
    done = stack.manage("up", *words)
    assert done.returncode != 0
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert done.stdout == ""
    return lines[0]


@pytest.mark.parametrize("option", ["--console-port", "--gateway-port"])
def test_taken_port_is_named_with_its_holder_and_leaves_nothing(
    bare_stack: Stack, listener: int, option: str
) -> None:
    other = "--gateway-port" if option == "--console-port" else "--console-port"
    (free,) = free_ports(1)
    line = up_refused(bare_stack, option, str(listener), other, str(free))
    assert f"port {listener} is taken by pid {os.getpid()}" in line
    assert line.endswith(f"choose another with {option}")
    assert not bare_stack.state.exists()


def test_state_that_is_no_directory_is_one_line(bare_stack: Stack) -> None:
    bare_stack.state.write_text("in the way")
    console, gateway = free_ports(2)
    line = up_refused(bare_stack, "--console-port", str(console), "--gateway-port", str(gateway))
    assert f"cannot write to the state directory {bare_stack.state}" in line
    assert bare_stack.state.read_text() == "in the way"


def test_unwritable_directory_is_one_line_and_leaves_nothing(
    bare_stack: Stack, tmp_path: Path
) -> None:
    # Root may write anywhere but into the kernel's own file system.
    parent = Path("/proc") if os.geteuid() == 0 else tmp_path
    tmp_path.chmod(0o555)
    bare_stack.state = parent / "headrace-state"
    console, gateway = free_ports(2)
    line = up_refused(bare_stack, "--console-port", str(console), "--gateway-port", str(gateway))
    assert f"cannot write to the state directory {bare_stack.state} (" in line
    assert not bare_stack.state.exists()


def test_commands_without_a_state_say_so_in_one_line(bare_stack: Stack) -> None:
    for words in (["migrate"], ["ledger"], ["gateway"]):
        done = bare_stack.manage(*words)
        assert done.returncode != 0
        assert done.stderr.startswith(f"no Headrace state at {bare_stack.state}")
        assert done.stderr.count("\n") == 1
    assert "nothing runs on" in bare_stack.manage("down").stderr
    assert "run `manage.py up` first" in bare_stack.manage("credentials").stderr
    assert bare_stack.status()["phase"] == "not running"
    assert not bare_stack.state.exists()


def test_second_up_on_the_same_state_says_so(stack: Stack) -> None:
    supervisor = stack.status()["supervisor_pid"]
    line = up_refused(stack)
    assert f"already running on {stack.state} (pid {supervisor})" in line
    assert stack.status()["is_ready"]


def test_credentials_are_readable_by_their_owner_only(stack: Stack) -> None:
    for name in ("credentials.json", "environment.json", "servers.json"):
        assert (stack.state / name).stat().st_mode & 0o777 == 0o600
    printed = stack.manage("credentials", check=True).stdout
    assert stack.credentials["operator"]["password"] in printed


def test_passwords_stand_on_no_command_line(stack: Stack) -> None:
    secrets = [stack.settings[name] for name in ("HEADRACE_SECRET_KEY", "HEADRACE_KEY_PEPPER")]
    secrets += [
        stack.settings[name].split("@")[0].split(":")[-1] for name in ("DATABASE_URL", "REDIS_URL")
    ]
    for command in processes_of(stack.state).values():
        assert not any(secret in command for secret in secrets)


def test_servers_do_not_run_as_root(stack: Stack) -> None:
    for name in ("postgres", "valkey"):
        pid = stack.process(name)["pid"]
        assert Path(f"/proc/{pid}").stat().st_uid != 0


@pytest.mark.parametrize("name", ["console", "beat", "valkey"])
def test_killed_process_is_restarted_and_status_tells(stack: Stack, name: str) -> None:
    before = stack.process(name)
    os.kill(before["pid"], signal.SIGKILL)
    wait_for(lambda: stack.process(name)["restarts"] > before["restarts"], f"{name} restarts")
    wait_for(lambda: stack.status()["is_ready"], "everything is ready again")
    after = stack.process(name)
    assert after["last_reason"] == "killed by SIGKILL"
    assert after["pid"] != before["pid"]


def test_killed_database_recovers_with_its_rows(stack: Stack) -> None:
    import psycopg

    with psycopg.connect(stack.settings["DATABASE_URL"], autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kill_probe (n int)")
        connection.execute("INSERT INTO kill_probe VALUES (7)")
    before = stack.process("postgres")
    os.kill(before["pid"], signal.SIGKILL)
    wait_for(lambda: stack.process("postgres")["restarts"] > before["restarts"], "restart")
    wait_for(lambda: stack.status()["is_ready"], "everything is ready again")
    with psycopg.connect(stack.settings["DATABASE_URL"], autocommit=True) as connection:
        rows = connection.execute("SELECT n FROM kill_probe").fetchall()
        connection.execute("DROP TABLE kill_probe")
    assert rows == [(7,)]


def test_ctrl_c_ends_everything(bare_stack: Stack) -> None:
    console, gateway = free_ports(2)
    running = subprocess.Popen(
        [
            *(sys.executable, str(ROOT / "manage.py"), "up", "--demo"),
            *("--state", str(bare_stack.state)),
            *("--console-port", str(console), "--gateway-port", str(gateway)),
        ],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert running.stdout is not None
    lines = []
    for line in running.stdout:
        lines.append(line)
        if "Ctrl-C" in line:
            break
    assert "Ctrl-C" in lines[-1], "".join(lines) + bare_stack.log_tails()
    assert len(processes_of(bare_stack.state)) > 5
    running.send_signal(signal.SIGINT)
    rest = running.communicate(timeout=WAIT_S)[0]
    assert running.returncode == 0, rest
    assert processes_of(bare_stack.state) == {}
    assert not (bare_stack.state / "processes.json").exists()


def test_installation_without_a_policy_is_ready_and_says_so(bare_stack: Stack) -> None:
    bare_stack.up("--gateways", "2")
    status = bare_stack.status()
    assert status["is_ready"]
    assert status["snapshot_number"] is None
    assert "no policy is published yet" in bare_stack.manage("status").stdout
    names = [row["name"] for row in status["processes"]]
    assert names.count("gateway-g0") == names.count("gateway-g1") == 1
    assert "traffic" not in names
    assert bare_stack.credentials["operator"]["username"] == "admin"
    bare_stack.down()


FOREGROUND = """
import os, sys
from pathlib import Path
from console.supervisor.processes import Supervisor
supervisor = Supervisor(logs=Path(sys.argv[1]), changed=lambda: None, say=print)
with supervisor.signals():
    sys.exit(supervisor.run_in_foreground([sys.executable, "-c", sys.argv[2]], os.environ))
"""
CLEANS_UP = """
import signal
try:
    print("ready", flush=True)
    signal.pause()
except KeyboardInterrupt:
    print("cleaned up", flush=True)
"""


def test_what_runs_in_the_foreground_is_asked_to_end_with_its_supervisor(tmp_path: Path) -> None:
    """A test run that is told to end still takes down what its tests started."""
    process = subprocess.Popen(
        [sys.executable, "-c", FOREGROUND, str(tmp_path), CLEANS_UP],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout as output:
        assert output.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert output.read() == "cleaned up\n"
    assert process.wait(20) == 0

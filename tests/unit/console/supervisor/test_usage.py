"""Help in a fresh clone: the product's own commands, before anything is installed or started."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from console.supervisor import usage

ROOT = Path(__file__).resolve().parents[4]


def manage(tmp_path: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": os.environ["PATH"],
        "HEADRACE_STATE": str(tmp_path / "none"),
        "HEADRACE_NO_VENV": "1",
    } | more
    return subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_command_of_the_product_is_listed() -> None:
    files = (ROOT / "console" / "management" / "commands").glob("[!_]*.py")
    assert set(usage.COMMANDS) == {path.stem for path in files}


@pytest.mark.parametrize("words", [(), ("help",), ("--help",), ("-h",), ("help", "--state", "x")])
def test_help_without_a_state_lists_the_products_commands(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = manage(tmp_path, *words)
    assert (done.returncode, done.stderr) == (0, "")
    listed = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")]
    assert listed == list(usage.COMMANDS)


def test_help_needs_no_package(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-S", str(ROOT / "manage.py"), "help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert "up " in done.stdout


def test_help_of_one_command_shows_its_options(tmp_path: Path) -> None:
    done = manage(tmp_path, "help", "up")
    assert done.returncode == 0
    assert "--demo" in done.stdout


def test_a_command_that_needs_the_servers_says_in_one_line_that_nothing_runs(
    tmp_path: Path,
) -> None:
    with socket.socket() as taken:  # bound and not listening: nobody answers, nobody else takes it
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = manage(
            tmp_path,
            "reconcile",
            DATABASE_URL=f"postgres://nobody@{address}/none",
            REDIS_URL=f"redis://{address}/0",
            HEADRACE_SECRET_KEY="s" * 50,
            HEADRACE_KEY_PEPPER="p" * 50,
        )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert f"nothing runs on {tmp_path / 'none'}" in done.stderr
    assert "python3 manage.py up" in done.stderr

"""Before anything is installed: arguments, records of an install, one-line failures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from console.supervisor import bootstrap

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project of two empty lock files and a `.venv` made from them."""
    for name in (bootstrap.LOCK, bootstrap.TEST_LOCK):
        (tmp_path / name).write_text(name)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    record(tmp_path, status="ready")
    return tmp_path


def record(project: Path, *, status: str) -> None:
    venv = project / ".venv"
    digest = bootstrap._digest(project / bootstrap.LOCK)
    content = {
        "status": status,
        "python": bootstrap._python_identity(venv),
        bootstrap.LOCK: digest,
    }
    (venv / "headrace.json").write_text(json.dumps(content))


def is_current(project: Path, *names: str) -> bool:
    wanted = {name: bootstrap._digest(project / name) for name in names or (bootstrap.LOCK,)}
    return bootstrap._is_current(project / ".venv", wanted)


@pytest.mark.parametrize("words", [["--state", "there"], ["--state=there"]])
def test_state_is_taken_out_of_the_arguments(words: list[str], tmp_path: Path) -> None:
    argv = ["manage.py", "up", *words, "--demo"]
    assert bootstrap._take_state(argv, tmp_path) == Path.cwd() / "there"
    assert argv == ["manage.py", "up", "--demo"]


def test_state_without_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--state needs a directory"):
        bootstrap._take_state(["manage.py", "up", "--state"], tmp_path)


def test_environment_wins_over_the_states_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = dict.fromkeys(bootstrap.REQUIRED, "of the state")
    (tmp_path / "environment.json").write_text(json.dumps(values))
    for name in bootstrap.REQUIRED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("REDIS_URL", "of the shell")
    bootstrap._load_state(tmp_path)
    assert bootstrap.os.environ["REDIS_URL"] == "of the shell"
    assert bootstrap.os.environ["DATABASE_URL"] == "of the state"


def test_finished_install_is_trusted_until_its_lock_changes(project: Path) -> None:
    assert is_current(project)
    (project / bootstrap.LOCK).write_text("another")
    assert not is_current(project)


def test_interrupted_install_is_not_trusted(project: Path) -> None:
    record(project, status="installing")
    assert not is_current(project)


def test_runtime_install_does_not_pass_for_the_tests(project: Path) -> None:
    assert not is_current(project, bootstrap.LOCK, bootstrap.TEST_LOCK)


def test_install_of_a_vanished_python_is_not_trusted(project: Path) -> None:
    python = project / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to(project / "gone")
    assert not is_current(project)


def test_unreachable_index_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / bootstrap.LOCK).write_text(f"amqp==5.4.2 --hash=sha256:{'0' * 64}\n")
    code = (
        "import pathlib, sys; from console.supervisor import bootstrap\n"
        f"bootstrap.make_environment(pathlib.Path({str(tmp_path)!r}), with_tests=False)"
    )
    environment = {
        "PATH": "/usr/bin:/bin",
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",  # the discard port: nobody listens
        "PIP_NO_CACHE_DIR": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("cannot install: no package index")
    assert not (tmp_path / ".venv").exists()


def test_old_python_gets_the_line_because_manage_py_is_old_syntax() -> None:
    text = (ROOT / "manage.py").read_text()
    check = text.index("sys.version_info < (3, 11)")
    assert check < text.index("from console")
    assert "from __future__" not in text
    assert 'f"' not in text

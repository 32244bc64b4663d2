"""The command line and environment of a vLLM: private, offline, nothing of ours leaks into it."""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from capacity.drivers.base import DriverError
from capacity.drivers.vllm_serve import (
    MAX_SOCKET_PATH_BYTES,
    Serve,
    checked_extra_args,
    kv_addresses,
    private_socket_directory,
    remove_all_sockets,
    remove_sockets,
)


@pytest.fixture(autouse=True)
def sockets_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sockets go to a short directory of this test; pytest's own one is made before."""
    with tempfile.TemporaryDirectory(prefix="h") as directory:
        monkeypatch.setattr("tempfile.tempdir", directory)
        yield


def serve(state: Path, **changed: object) -> Serve:
    given: dict[str, object] = {
        "executable": Path("/venv/bin/vllm"),
        "model": str(state),
        "served_name": "m",
        "port": 8001,
        "name": "p-0",
        "state_dir": state,
    }
    return Serve(**{**given, **changed})


def value_of(argv: list[str], flag: str) -> str:
    return argv[argv.index(flag) + 1]


def test_engine_listens_on_this_machine_only_and_tells_what_the_gateway_needs(
    tmp_path: Path,
) -> None:
    argv = serve(tmp_path, num_gpu_blocks_override=128, max_num_queued_reqs=9).argv
    assert argv[:3] == ["/venv/bin/vllm", "serve", str(tmp_path)]
    assert value_of(argv, "--host") == "127.0.0.1"
    assert value_of(argv, "--num-gpu-blocks-override") == "128"
    assert value_of(argv, "--max-num-queued-reqs") == "9"
    assert value_of(argv, "--scheduling-policy") == "priority"
    needed = {
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
        "--enable-request-id-headers",
        "--enable-server-load-tracking",
    }
    assert needed <= set(argv)
    events = json.loads(value_of(argv, "--kv-events-config"))
    addresses = kv_addresses(tmp_path, "p-0")
    assert events["endpoint"] == addresses["kv_events"]
    assert events["replay_endpoint"] == addresses["kv_replay"]
    assert events["endpoint"].startswith("ipc://")


def test_only_our_cpu_build_gets_cpu_flags(tmp_path: Path) -> None:
    cpu, gpu = serve(tmp_path).argv, serve(tmp_path, is_cpu=False).argv
    assert value_of(cpu, "--dtype") == "float32"
    assert "--enforce-eager" in cpu
    assert "--dtype" not in gpu
    assert "--enforce-eager" not in gpu
    ours, theirs = serve(tmp_path).environment, serve(tmp_path, is_cpu=False).environment
    assert ours["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"  # else all replicas share one core
    assert not {"VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND"} & set(theirs)


def test_our_cpu_build_needs_no_worker_process_unless_it_is_told_to_be_several(
    tmp_path: Path,
) -> None:
    several = serve(tmp_path, extra_args=("--tensor-parallel-size=2",))
    for one, is_one in ((serve(tmp_path), True), (several, False)):
        assert ("--distributed-executor-backend" in one.argv) is is_one
        assert ("VLLM_ENABLE_V1_MULTIPROCESSING" in one.environment) is is_one
    theirs = serve(tmp_path, is_cpu=False)
    assert "--distributed-executor-backend" not in theirs.argv
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in theirs.environment


def test_additional_flags_come_last_and_so_win(tmp_path: Path) -> None:
    argv = serve(tmp_path, extra_args=("--dtype=bfloat16",)).argv
    assert argv[-1] == "--dtype=bfloat16"


def test_engine_knows_no_secret_and_asks_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://secret")
    monkeypatch.setenv("HEADRACE_KEY_PEPPER", "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    environment = serve(tmp_path).environment
    assert "secret" not in json.dumps(environment)
    assert environment["CUDA_VISIBLE_DEVICES"] == "1"
    assert environment["VLLM_NO_USAGE_STATS"] == environment["HF_HUB_OFFLINE"] == "1"
    from_hub = serve(tmp_path, model="org/model", is_cpu=False).environment
    assert "HF_HUB_OFFLINE" not in from_hub


def test_socket_paths_are_short_private_and_differ_by_state(tmp_path: Path) -> None:
    deep = tmp_path / ("y" * 200)
    for name in ("p-0", "p" * 115 + "-0"):
        for address in kv_addresses(deep, name).values():
            assert len(os.fsencode(address.removeprefix("ipc://"))) <= MAX_SOCKET_PATH_BYTES + 1
    assert kv_addresses(tmp_path, "p-0") != kv_addresses(deep, "p-0")
    directory = private_socket_directory(tmp_path)
    assert directory.stat().st_mode & 0o777 == 0o700
    (directory / "p-0.kv").touch()
    (directory / "p-1.kv").touch()
    remove_sockets(tmp_path, "p-0")
    assert [path.name for path in directory.iterdir()] == ["p-1.kv"]
    remove_sockets(tmp_path, "p-1")
    assert not directory.exists()
    remove_sockets(tmp_path, "p-1")
    (private_socket_directory(tmp_path) / "p-2.kv").touch()
    remove_all_sockets(tmp_path)
    assert not directory.exists()


def test_directory_that_others_can_open_is_refused(tmp_path: Path) -> None:
    directory = private_socket_directory(tmp_path)
    directory.chmod(0o755)
    with pytest.raises(DriverError, match="mode 0700"):
        private_socket_directory(tmp_path)
    directory.rmdir()
    directory.symlink_to(tmp_path)
    with pytest.raises(DriverError, match="not a directory of ours"):
        private_socket_directory(tmp_path)


def test_temporary_directory_too_long_for_a_socket_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("t" * 90)))
    with pytest.raises(DriverError, match="set TMPDIR"):
        private_socket_directory(tmp_path)


@pytest.mark.parametrize(
    "word",
    [
        "--api-key=x",
        "--host=0.0.0.0",
        "--port=1",
        "--served-model-name=x",
        "--chat-template=/etc/passwd",
        "--middleware=os.system",
        "--trust-remote-code",
        "--dtype bfloat16",
        "--seed=1 --host=0.0.0.0",
        "--load-format=a/../b",
        "dtype",
        "",
        7,
    ],
)
def test_flags_outside_the_list_are_refused(word: object) -> None:
    with pytest.raises(DriverError, match="is not allowed"):
        checked_extra_args([word])


def test_listed_flags_pass_as_they_are() -> None:
    words = ["--tensor-parallel-size=2", "--enable-expert-parallel", "--gpu-memory-utilization=0.9"]
    assert checked_extra_args(words) == tuple(words)
    with pytest.raises(DriverError, match="must be a list"):
        checked_extra_args("--seed=1")

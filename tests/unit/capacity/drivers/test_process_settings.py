"""Settings of a process pool: each by name and type, refused before anything starts."""

from pathlib import Path

import pytest

from capacity.drivers.base import DriverError, PoolSpec
from capacity.drivers.local import spec_digest
from capacity.drivers.process import ProcessDriver


def check(settings: dict[str, object], block_size_tokens: int = 32) -> None:
    spec = PoolSpec("p", "m", settings, block_size_tokens)
    ProcessDriver(Path("/nonexistent"), Path("/nonexistent")).check(spec)


def test_every_setting_in_its_range_passes(tmp_path: Path) -> None:
    check({})
    check(
        {
            "model": "small",
            "max_num_seqs": 8,
            "max_model_len": 4096,
            "num_gpu_blocks_override": 128,
            "max_num_queued_reqs": 64,
            "kv_space_gib": 2,
            "shutdown_timeout_s": 30,
            "load_limit_s": 120,
            "extra_args": ["--seed=7"],
        }
    )
    check({"model": str(tmp_path)})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"unknown": 1}, "knows no setting 'unknown'"),
        ({"block_size": 32}, "block_size_tokens"),
        ({"max_num_seqs": "8"}, "'max_num_seqs' must be a whole number from 1"),
        ({"max_num_seqs": True}, "'max_num_seqs'"),
        ({"max_num_seqs": 0}, "'max_num_seqs'"),
        ({"kv_space_gib": 0.5}, "'kv_space_gib'"),
        ({"shutdown_timeout_s": -1}, "'shutdown_timeout_s'"),
        ({"load_limit_s": 1}, "'load_limit_s'"),
        ({"model": 5}, "'model' must be a text"),
        ({"model": "huge"}, "neither a local model nor a directory"),
        ({"model": "org/model"}, "a vLLM of your own"),
        ({"extra_args": ["--host=0.0.0.0"]}, "is not allowed"),
        ({"executable": ""}, "'executable' must be a text"),
    ],
)
def test_bad_settings_name_what_is_wrong(settings: dict[str, object], said: str) -> None:
    with pytest.raises(DriverError, match=said):
        check(settings)


def test_cpu_blocks_come_in_multiples_of_32() -> None:
    with pytest.raises(DriverError, match="block_size_tokens must be a multiple of 32"):
        check({}, block_size_tokens=16)


def test_executable_is_a_vllm_that_only_its_owner_can_change(tmp_path: Path) -> None:
    vllm = tmp_path / "vllm"
    for path, said in (
        (str(vllm), "No such file"),
        ("vllm", "absolute"),
        ("/bin/sh", "named vllm"),
    ):
        with pytest.raises(DriverError, match=said):
            check({"executable": path})
    vllm.write_text("#!/bin/sh\n")
    with pytest.raises(DriverError, match="cannot be run"):
        check({"executable": str(vllm)})
    vllm.chmod(0o775)
    with pytest.raises(DriverError, match="others may write"):
        check({"executable": str(vllm)})
    vllm.chmod(0o755)
    check({"executable": str(vllm), "model": "org/model-8b"}, block_size_tokens=16)
    with pytest.raises(DriverError, match="no hub id"):
        check({"executable": str(vllm), "model": "../x"})


def test_start_without_an_installed_vllm_says_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_VLLM_VENV", str(tmp_path / "none"))
    with pytest.raises(DriverError, match="engine install"):
        ProcessDriver(tmp_path / "state", tmp_path).start(PoolSpec("p", "m", {}, 32), 0)
    assert not list((tmp_path / "state" / "replicas").iterdir())


def test_digest_changes_with_anything_a_process_was_started_for() -> None:
    specs = [
        PoolSpec("p", "m", {}, 32),
        PoolSpec("p", "n", {}, 32),
        PoolSpec("p", "m", {"max_num_seqs": 1}, 32),
        PoolSpec("p", "m", {}, 64),
    ]
    assert len({spec_digest(spec) for spec in specs}) == 4
    ordered = PoolSpec("p", "m", {"a": 1, "b": 2}), PoolSpec("p", "m", {"b": 2, "a": 1})
    assert spec_digest(ordered[0]) == spec_digest(ordered[1])

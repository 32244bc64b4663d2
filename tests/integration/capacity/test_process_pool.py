"""A pool of local vLLM as the inventory and reconciling see it; the engine itself: tests/vllm."""

from pathlib import Path

import pytest

from capacity.drivers.process import ProcessDriver
from capacity.fleet import selectors, services
from capacity.fleet.services import inventory, reconcile
from capacity.models import Pool, Replica
from console.audit.rules import SYSTEM
from console.errors import InvalidInput
from tests.engines import ROOT

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A region and a model; the driver keeps this test's state."""
    ours = {"process": ProcessDriver(tmp_path / "state", ROOT)}
    monkeypatch.setattr(reconcile, "drivers", lambda: ours)
    monkeypatch.setattr(inventory, "drivers", lambda: ours)
    services.create_region(slug="eu", name="Europe", actor=SYSTEM)
    services.create_domain(region="eu", slug="a", actor=SYSTEM)
    services.create_model(name="m", context_tokens=4096, actor=SYSTEM)


def make_pool(spec: dict[str, object], block_size_tokens: int = 32) -> None:
    services.create_pool(
        name="p",
        model="m",
        driver="process",
        region="eu",
        domain="a",
        spec=spec,
        block_size_tokens=block_size_tokens,
        desired_replicas=1,
        actor=SYSTEM,
    )


def test_kv_capacity_follows_from_the_settings_that_fix_it() -> None:
    make_pool({"num_gpu_blocks_override": 128})
    assert Pool.objects.get(name="p").kv_capacity_tokens == 4096
    assert selectors.pools_for_snapshot()["p"].takes_priority


def test_kv_capacity_is_not_known_before_an_engine_runs() -> None:
    make_pool({"kv_space_gib": 1})
    assert Pool.objects.get(name="p").kv_capacity_tokens == 0


@pytest.mark.parametrize(
    ("spec", "block_size_tokens", "said"),
    [
        ({"max_num_seqs": "many"}, 32, "'max_num_seqs' must be a whole number"),
        ({"extra_args": ["--host=0.0.0.0"]}, 32, "is not allowed"),
        ({"executable": "/bin/sh"}, 32, "named vllm"),
        ({}, 16, "multiple of 32"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_field(
    spec: dict[str, object], block_size_tokens: int, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said) as refused:
        make_pool(spec, block_size_tokens)
    assert refused.value.field == "spec"


def test_replica_without_an_installed_vllm_fails_with_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_VLLM_VENV", str(tmp_path / "none"))
    make_pool({})
    services.reconcile_pools()
    row = Replica.objects.get(name="p-0")
    assert row.lifecycle == "failed"
    assert "python3 manage.py engine install" in row.cause

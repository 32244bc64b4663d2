"""A rollout of a real vLLM: other settings take over, wrong ones are turned back."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from capacity.drivers.process import ProcessDriver
from capacity.fleet import services as fleet
from capacity.fleet.services import inventory, reconcile
from capacity.models import Pool, Rollout
from capacity.rollouts.services import acts, machine
from console.audit.rules import SYSTEM
from tests import rolling
from tests.conftest import ROOT, processes_of
from tests.engines import wait_for
from tests.rolling import live, settle, starts, until
from tests.vllm.conftest import START_LIMIT_S

pytestmark = [pytest.mark.django_db, pytest.mark.timeout(1200)]
SETTINGS = {
    "model": "tiny",
    "max_num_seqs": 4,
    "num_gpu_blocks_override": 128,
    "max_model_len": 2048,
}
NEWER = {**SETTINGS, "max_num_seqs": 8, "shutdown_timeout_s": 2}


@pytest.fixture(autouse=True)
def state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vllm_environment, store
) -> Iterator[Path]:
    ours = {"process": ProcessDriver(tmp_path, ROOT)}
    for module in (reconcile, inventory, acts, machine):
        monkeypatch.setattr(module, "drivers", lambda: ours)
    yield tmp_path
    for pid in processes_of(tmp_path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not processes_of(tmp_path), 20)


def test_real_engines_are_replaced_and_wrong_ones_turned_back(state: Path) -> None:
    fleet.create_region(slug="eu", name="Europe", actor=SYSTEM)
    fleet.create_domain(region="eu", slug="a", actor=SYSTEM)
    fleet.create_model(name="tiny-vllm", context_tokens=2048, actor=SYSTEM)
    fleet.create_pool(
        name="p",
        model="tiny-vllm",
        driver="process",
        region="eu",
        domain="a",
        spec={**SETTINGS, "shutdown_timeout_s": 2},
        block_size_tokens=32,
        desired_replicas=1,
        actor=SYSTEM,
    )
    settle(lambda: rolling.ready() == 1, START_LIMIT_S)
    rollout_id = rolling.begin(spec=NEWER, engine_version="0.32.0")
    until(rollout_id, "done", START_LIMIT_S)
    assert [one.name for one in live()] == ["p-1"]
    assert starts() == {"p-0": 1, "p-1": 1}
    seen = machine.drivers()["process"].identify(
        inventory.spec_of(Pool.objects.get()), live()[0].handle
    )
    assert seen is not None
    assert seen.serves == ("tiny-vllm",)
    assert seen.root == seen.expected_root
    assert seen.version.startswith("0.32.0")
    pid = live()[0].handle["pid"]
    wrong_id = rolling.begin(engine_version="0.99")
    row: Rollout = until(wrong_id, "rolled_back", START_LIMIT_S)
    assert "its engine is version 0.32.0" in row.cause
    settle(lambda: len(live()) == 1, 60)
    assert live()[0].handle["pid"] == pid

"""R35: the worker is killed at every step of a rollout; each replica is started exactly once."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.db import connection

from capacity.models import Replica, Rollout, RolloutStep
from capacity.rollouts.rules.lanes import LANE_STEPS
from tests import rolling
from tests.engines import ROOT
from tests.rolling import SPEC, begin, starts, steps_of
from tests.rolling_child import NOTHING_TO_MOVE

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(400)]
# The first two leave nothing behind, so the next worker meets the same step; the last moves on.
POINTS = ("engine moved, row not", "decided, not written", "written, not committed", "committed")
REPLICAS = 2


@contextmanager
def doomed_workers(state: Path) -> Iterator["subprocess.Popen[str]"]:
    base, _, _ = os.environ["DATABASE_URL"].rpartition("/")
    environment = {
        **os.environ,
        "DATABASE_URL": f"{base}/{connection.settings_dict['NAME']}",
        "HEADRACE_STATE": str(state),
        "PYTHONPATH": str(ROOT),
    }
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "rolling_child.py")],
        env=environment,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(state / "workers.log").open("a"),
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def run(workers: "subprocess.Popen[str]", point: str) -> int:
    """One worker that dies at `point`; its exit code."""
    assert workers.stdin is not None
    assert workers.stdout is not None
    workers.stdin.write(f"{point}\n")
    workers.stdin.flush()
    return int(workers.stdout.readline())


def test_killed_at_every_step_it_goes_on_and_starts_each_replica_once(
    tmp_path: Path, store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rolling.own_drivers(tmp_path, monkeypatch):
        rolling.make_pool(REPLICAS)
        rollout_id = begin(spec={**SPEC, "max_num_seqs": 32})
        deaths: dict[str, int] = dict.fromkeys(POINTS, 0)
        with doomed_workers(tmp_path) as workers:
            for turn in range(400):
                point = POINTS[turn % len(POINTS)]
                code = run(workers, point)
                assert code in (0, -9, NOTHING_TO_MOVE), (tmp_path / "workers.log").read_text()[
                    -3000:
                ]
                deaths[point] += code == -9
                if Rollout.objects.get(pk=rollout_id).state == "done":
                    break
        assert Rollout.objects.get(pk=rollout_id).state == "done"
        # Every step but each lane's first, which is written together with the lane.
        assert deaths["committed"] == RolloutStep.objects.count() - REPLICAS
        assert deaths["decided, not written"] == deaths["committed"]
        assert deaths["written, not committed"] >= deaths["committed"]
        assert deaths["engine moved, row not"] >= 2 * REPLICAS  # started; told to drain
        spawned = (tmp_path / "spawned").read_text().split()
        assert sorted(spawned) == ["p-2", "p-3"]
        assert starts() == {"p-0": 1, "p-1": 1, "p-2": 1, "p-3": 1}
        for lane in (1, 2):
            assert steps_of(rollout_id, lane) == [step.value for step in LANE_STEPS]
        names = Replica.objects.filter(removed_at=None).values_list("name", flat=True)
        assert set(names) == {"p-2", "p-3"}


def test_two_workers_at_once_take_each_step_once(
    tmp_path: Path, store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R35 (b): as when the broker hands the job to a second worker while the first still works."""
    with rolling.own_drivers(tmp_path, monkeypatch):
        rolling.make_pool(REPLICAS)
        rollout_id = begin()
        with (
            doomed_workers(tmp_path) as one,
            doomed_workers(tmp_path) as other,
            ThreadPoolExecutor(2) as both,
        ):
            codes = list(both.map(lambda workers: run(workers, "lives"), (one, other)))
        assert codes == [0, 0], (tmp_path / "workers.log").read_text()[-3000:]
        assert Rollout.objects.get(pk=rollout_id).state == "done"
        assert sorted((tmp_path / "spawned").read_text().split()) == ["p-2", "p-3"]
        assert starts() == {"p-0": 1, "p-1": 1, "p-2": 1, "p-3": 1}
        for lane in (1, 2):
            assert steps_of(rollout_id, lane) == [step.value for step in LANE_STEPS]

"""R35 (a): a real worker is killed in the middle of a rollout; the next one goes on from there.

Part (b): tests/faults/test_rollout_kills.py; (c), (d): tests/integration/capacity/test_rollouts.py.
"""

import os
import signal
from pathlib import Path

import pytest

from capacity.models import Rollout, RolloutStep
from capacity.rollouts.rules.lanes import LANE_STEPS
from console.jobs.services import ensure_schedule
from console.models import Job
from tests import rolling
from tests.integration.console.test_worker import WORKER, celery
from tests.rolling import begin, starts, steps_of
from tests.stack import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(400)]
GOES_ON_S = 120  # the case's bound


def test_the_next_worker_goes_on_where_the_killed_one_stood(
    tmp_path: Path, store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_STATE", str(tmp_path))
    with rolling.own_drivers(tmp_path, monkeypatch):
        rolling.make_pool(2)
        Job.objects.all().delete()
        ensure_schedule()
        rollout_id = begin(spec={**rolling.SPEC, "load_s": 4})

        def has_begun(step: str, lane: int = 1) -> bool:
            rows = RolloutStep.objects.filter(lane__rollout_id=rollout_id, lane__number=lane)
            return rows.filter(step=step).exists()

        with celery(tmp_path / "beat.log", "beat", "--schedule", str(tmp_path / "unused")):
            with celery(tmp_path / "first.log", *WORKER) as first:
                wait_until(lambda: has_begun("load"), 90, "first worker loads a replica")
                os.kill(first.pid, signal.SIGKILL)
                first.wait(10)
            taken = RolloutStep.objects.filter(lane__rollout_id=rollout_id).count()
            with celery(tmp_path / "second.log", *WORKER):
                wait_until(
                    lambda: RolloutStep.objects.filter(lane__rollout_id=rollout_id).count() > taken,
                    GOES_ON_S,
                    "second worker goes on",
                )
                wait_until(
                    lambda: Rollout.objects.get(pk=rollout_id).state == "done", 180, "rollout done"
                )
        assert starts() == {"p-0": 1, "p-1": 1, "p-2": 1, "p-3": 1}
        for lane in (1, 2):
            assert steps_of(rollout_id, lane) == [step.value for step in LANE_STEPS]

"""A rollout whose new replica breaks costs that replica only: no playbook acts on traffic."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from capacity.fleet import services as fleet
from capacity.models import PlaybookRun, Replica, ReplicaChange, Rollout
from capacity.playbooks.services import ensure_shipped, evaluate_playbooks, set_mode
from routing.models import Override
from tests import rolling
from tests.factories import ACTOR
from tests.rolling import SPEC, begin, live, settle, until, until_step

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def armed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store) -> Iterator[None]:
    with rolling.own_drivers(tmp_path, monkeypatch):
        rolling.make_pool(1)
        ensure_shipped()
        set_mode(name="capacity-lost", mode="armed", actor=ACTOR)
        yield


def kill(name: str) -> None:
    """The engine dies; a pass of reconciling finds it."""
    os.kill(Replica.objects.get(name=name).handle["pid"], signal.SIGKILL)
    seen = ReplicaChange.objects.filter(replica__name=name, after="failed")

    def found() -> bool:
        fleet.reconcile_pools()
        return seen.exists()

    rolling.wait_for(found)


def test_a_new_replica_that_dies_at_start_is_nobodys_loss() -> None:
    rollout_id = begin(spec={**SPEC, "load_s": 600})
    until_step(rollout_id, "load")
    settle(lambda: "pid" in Replica.objects.get(name="p-1").handle)
    kill("p-1")
    assert [(row.name, row.lifecycle) for row in live()] == [("p-0", "ready"), ("p-1", "failed")]
    evaluate_playbooks()
    assert not PlaybookRun.objects.exists()
    assert Rollout.objects.get().state == "running"
    until(rollout_id, "rolled_back")
    evaluate_playbooks()
    assert not PlaybookRun.objects.exists()
    assert not Override.objects.exists()


def test_a_new_replica_that_dies_beside_the_old_one_is_nobodys_loss() -> None:
    rollout_id = begin(warm_s=3600)
    until_step(rollout_id, "warm")
    Replica.objects.filter(name="p-1").update(lifecycle="loading", handle={"failures": 1})
    evaluate_playbooks()
    assert not PlaybookRun.objects.exists()
    Replica.objects.filter(name="p-0").update(lifecycle="loading", handle={"failures": 1})
    evaluate_playbooks()
    assert PlaybookRun.objects.get().start_value == 1.0


def test_the_old_replica_is_a_loss_while_the_new_one_loads() -> None:
    rollout_id = begin(spec={**SPEC, "load_s": 600})
    until_step(rollout_id, "load")
    row = Replica.objects.get(name="p-0")
    Replica.objects.filter(pk=row.pk).update(lifecycle="failed", handle={"failures": 1})
    evaluate_playbooks()
    assert PlaybookRun.objects.get().start_value == 1.0


def test_one_that_was_never_ready_is_no_loss() -> None:
    fleet.set_desired_replicas(pool="p", replicas=2, actor=ACTOR)
    fleet.inventory.ensure_replicas(pool_id=Replica.objects.get().pool_id)
    Replica.objects.filter(name="p-1").update(lifecycle="failed", handle={"failures": 3})
    evaluate_playbooks()
    assert not PlaybookRun.objects.exists()
    settle(lambda: rolling.ready() == 2)
    Replica.objects.filter(name="p-1").update(lifecycle="failed", handle={"failures": 3})
    evaluate_playbooks()
    assert PlaybookRun.objects.get().start_value == 0.5

"""Rollouts on real engine processes: forward, back, paused, aborted, refused."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from capacity.drivers.processes import start_ticks
from capacity.fleet import selectors as fleet_selectors
from capacity.fleet import services as fleet
from capacity.models import Artifact, Model, Pool, Replica, ReplicaChange, Rollout, RolloutLane
from capacity.rollouts import services
from capacity.rollouts.rules.lanes import LANE_STEPS
from capacity.rollouts.services import acts, machine
from console.audit.rules import SYSTEM
from console.errors import Conflict, InvalidInput, NotFound
from console.models import AuditEvent, Job
from tests import rolling
from tests.engines import wait_for
from tests.rolling import ANA, SPEC, begin, live, settle, starts, steps_of, until, until_step

pytestmark = pytest.mark.django_db
NEWER = {**SPEC, "max_num_seqs": 32}


@pytest.fixture(autouse=True)
def drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store) -> Iterator[Path]:
    with rolling.own_drivers(tmp_path, monkeypatch):
        yield tmp_path


def revisions() -> list[int | None]:
    return [row.revision for row in live()]


def test_each_replica_is_replaced_once_through_every_step() -> None:
    rolling.make_pool(2)
    pids = [row.handle["pid"] for row in live()]
    rollout_id = begin(spec=NEWER)
    row = until(rollout_id, "done")
    assert [one.name for one in live()] == ["p-2", "p-3"]
    assert starts() == {"p-0": 1, "p-1": 1, "p-2": 1, "p-3": 1}
    assert [start_ticks(pid) for pid in pids] == [None, None]
    for lane in (1, 2):
        assert steps_of(rollout_id, lane) == [step.value for step in LANE_STEPS]
    pool = Pool.objects.get(name="p")
    assert (pool.revision, pool.spec, pool.surge_replicas) == (2, NEWER, 0)
    assert row.ended_at is not None
    acts_seen = AuditEvent.objects.filter(object_type="rollout").order_by("id")
    assert [event.act for event in acts_seen] == ["rollout.start", "rollout.done"]
    assert acts_seen[0].reason == "a newer build"
    fleet.set_desired_replicas(pool="p", replicas=3, actor=SYSTEM)
    settle(lambda: rolling.ready() == 3)
    assert revisions() == [2, 2, 2]


def test_never_fewer_serve_than_the_pool_desires() -> None:
    rolling.make_pool(2)
    rollout_id = begin()
    serving: list[int] = []

    def seen() -> bool:
        entry = fleet_selectors.pools_for_snapshot()["p"]
        serving.append(sum(not one.is_draining for one in entry.endpoints))
        return Rollout.objects.get(pk=rollout_id).state == "done"

    settle(seen)
    assert min(serving) == 2
    assert max(serving) == 3


def test_a_held_replica_gets_no_work_before_it_passed() -> None:
    rolling.make_pool(1)
    rollout_id = begin(warm_s=3600)
    until_step(rollout_id, "warm")
    new = Replica.objects.get(name="p-1")
    assert (new.lifecycle, new.cause, new.is_held) == (
        "ready",
        "passed the rollout's checks",
        False,
    )
    changes = (
        ReplicaChange.objects.filter(replica=new).order_by("id").values_list("after", flat=True)
    )
    assert list(changes) == ["cold", "loading", "warming", "ready"]
    entry = fleet_selectors.pools_for_snapshot()["p"]
    assert [one.replica_id for one in entry.endpoints] == ["p-0", "p-1"]


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"engine_version": "0.99"}, "its engine is version 0.32.0"),
        ({"spec": {**SPEC, "load_s": 600}, "load_limit_s": 5}, "not loaded within 5 s"),
    ],
)
def test_a_new_replica_that_is_not_right_turns_the_rollout_back(plan, said) -> None:
    rolling.make_pool(1)
    pid = live()[0].handle["pid"]
    rollout_id = begin(**plan)
    if "load_limit_s" in plan:
        until_step(rollout_id, "load")
        RolloutLane.objects.update(step_since=Rollout.objects.get().created_at)
    row = until(rollout_id, "rolled_back")
    assert f"p-1: {said}" in row.cause
    settle(lambda: len(live()) == 1)
    assert [one.handle["pid"] for one in live()] == [pid]
    assert (Pool.objects.get().revision, Pool.objects.get().spec) == (1, SPEC)
    lane = RolloutLane.objects.get()
    assert (lane.result, lane.step) == ("dropped", "dropped")
    acts_seen = AuditEvent.objects.filter(object_type="rollout").order_by("id")
    assert [one.act for one in acts_seen] == [
        "rollout.start",
        "rollout.rolling_back",
        "rollout.rolled_back",
    ]
    assert said in acts_seen[1].reason
    assert starts() == {"p-0": 1, "p-1": 1}


def test_an_engine_that_completes_nothing_is_found_before_it_serves(
    drivers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = drivers / "faults.json"
    faults.write_text(json.dumps({"refuse_status": 500}))
    rolling.make_pool(1)
    rollout_id = begin(spec={**SPEC, "faults": str(faults)})
    until_step(rollout_id, "probe")
    monkeypatch.setattr("capacity.rollouts.rules.lanes.CHECK_LIMIT_S", 0.5)
    row = until(rollout_id, "rolled_back")
    assert "completes nothing" in row.cause
    assert not ReplicaChange.objects.filter(replica__name="p-1", after="ready").exists()


def test_what_breaks_later_brings_earlier_replicas_back_too() -> None:
    rolling.make_pool(2)
    rollout_id = begin(spec=NEWER, warm_s=3600)
    until_step(rollout_id, "warm", lane=1)
    Rollout.objects.update(warm_s=0)
    until_step(rollout_id, "drain", lane=1)
    Rollout.objects.update(warm_s=3600)
    until_step(rollout_id, "warm", lane=2)
    pid = Replica.objects.get(name="p-3").handle["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: start_ticks(pid) is None)
    until(rollout_id, "rolling_back")
    Rollout.objects.update(warm_s=0)
    row = until(rollout_id, "rolled_back")
    assert "p-3: its process ended" in row.cause
    settle(lambda: len(live()) == 2)
    assert revisions() == [1, 1]
    assert all(one.lifecycle == "ready" for one in live())
    assert [lane.result for lane in RolloutLane.objects.order_by("number")] == [
        "done",
        "dropped",
        "done",
    ]
    assert Pool.objects.get().surge_replicas == 0


def test_a_way_back_that_fails_waits_for_a_person_and_can_be_taken_up_again(
    drivers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = drivers / "faults.json"
    rolling.make_pool(1, spec={**SPEC, "faults": str(faults)})
    rollout_id = begin(spec=SPEC)
    until_step(rollout_id, "drain")
    faults.write_text(json.dumps({"refuse_status": 500}))
    services.roll_back(rollout_id=rollout_id, actor=ANA, reason="wrong answers")
    until_step(rollout_id, "probe", lane=2)
    monkeypatch.setattr("capacity.rollouts.rules.lanes.CHECK_LIMIT_S", 0.5)
    row = until(rollout_id, "failed")
    assert "completes nothing" in row.cause
    assert [one.lifecycle for one in live() if not one.is_retired] == ["ready"]
    faults.unlink()
    monkeypatch.setattr("capacity.rollouts.rules.lanes.CHECK_LIMIT_S", 60)
    services.resume(rollout_id=rollout_id, actor=ANA)
    until(rollout_id, "rolled_back")
    settle(lambda: len(live()) == 1)
    assert revisions() == [1]


def test_pause_takes_no_step_and_resume_goes_on_with_fresh_time() -> None:
    rolling.make_pool(1)
    rollout_id = begin()
    until_step(rollout_id, "load")
    services.pause(rollout_id=rollout_id, actor=ANA, reason="look first")
    services.pause(rollout_id=rollout_id, actor=ANA)
    before = steps_of(rollout_id, 1)
    settle(lambda: Replica.objects.get(name="p-1").lifecycle == "warming")
    rolling.work()
    assert steps_of(rollout_id, 1) == before
    since = RolloutLane.objects.get().step_since
    services.resume(rollout_id=rollout_id, actor=ANA)
    assert RolloutLane.objects.get().step_since > since
    until(rollout_id, "done")
    events = AuditEvent.objects.filter(act="rollout.paused")
    assert [event.reason for event in events] == ["look first"]
    with pytest.raises(Conflict) as over:
        services.pause(rollout_id=rollout_id, actor=ANA)
    assert (over.value.code, bool(over.value.hint)) == ("rollout_ended", True)


def test_abort_touches_no_further_replica() -> None:
    """R35 (c)."""
    rolling.make_pool(2)
    rollout_id = begin(warm_s=3600)
    until_step(rollout_id, "warm")
    kept = {one.name: one.handle["pid"] for one in live() if one.name in ("p-0", "p-1")}
    services.abort(rollout_id=rollout_id, actor=ANA, reason="not today")
    services.abort(rollout_id=rollout_id, actor=ANA)
    settle(lambda: len(live()) == 2)
    row = Rollout.objects.get()
    assert (row.state, row.cause) == ("cancelled", "not today")
    assert {one.name: one.handle["pid"] for one in live()} == kept
    assert starts() == {"p-0": 1, "p-1": 1, "p-2": 1}
    assert Pool.objects.get().surge_replicas == 0
    rolling.work()
    assert {one.name: one.handle["pid"] for one in live()} == kept


def test_an_aborted_one_can_be_brought_back() -> None:
    rolling.make_pool(2)
    rollout_id = begin(spec=NEWER)
    until_step(rollout_id, "surge", lane=2)
    services.abort(rollout_id=rollout_id, actor=ANA)
    settle(lambda: len(live()) == 2)
    assert sorted(revisions()) == [1, 2]
    services.roll_back(rollout_id=rollout_id, actor=ANA)
    until(rollout_id, "rolled_back")
    settle(lambda: len(live()) == 2)
    assert revisions() == [1, 1]


def test_a_second_rollout_and_scaling_are_refused_while_one_has_the_pool() -> None:
    """R35 (d), one after the other; at once: the table's constraint, below."""
    rolling.make_pool(1)
    rollout_id = begin(warm_s=3600)
    with pytest.raises(Conflict) as second:
        begin()
    assert (second.value.status, second.value.code) == (409, "rollout_running")
    assert "abort" in second.value.hint
    with pytest.raises(Conflict) as scaled:
        fleet.set_desired_replicas(pool="p", replicas=5, actor=SYSTEM)
    assert scaled.value.code == "rollout_running"
    services.abort(rollout_id=rollout_id, actor=ANA)
    fleet.set_desired_replicas(pool="p", replicas=0, actor=SYSTEM)
    assert Rollout.objects.count() == 1
    pool = Pool.objects.get()
    acts._save_active(Rollout(pool=pool, from_revision=1, to_revision=2))
    with pytest.raises(Conflict):
        acts._save_active(Rollout(pool=pool, from_revision=1, to_revision=2))


def test_a_repeated_call_starts_nothing_and_another_plan_is_refused() -> None:
    rolling.make_pool(1)
    plan = acts.Plan(reason="once")
    first = acts.start(pool="p", plan=plan, actor=ANA, idempotency_key="k-1234567")
    Job.objects.all().delete()
    assert acts.start(pool="p", plan=plan, actor=ANA, idempotency_key="k-1234567") == first
    assert Rollout.objects.count() == 1
    with pytest.raises(Conflict) as other:
        acts.start(pool="p", plan=acts.Plan(reason="twice"), actor=ANA, idempotency_key="k-1234567")
    assert other.value.code == "idempotency_conflict"


@pytest.mark.parametrize(
    ("plan", "field"),
    [
        ({"spec": {"profile": "none"}}, "spec"),
        ({"spec": {"kv_blocks": 10**30}}, "spec"),
        ({"spec": {"kv_blocks": 0}}, "spec"),
        ({"spec": {"kv_block": 4096}}, "spec"),
        ({"load_limit_s": 1}, "load_limit_s"),
        ({"warm_s": 99_999}, "warm_s"),
        ({"drain_limit_s": -1}, "drain_limit_s"),
        ({"artifact": "v9"}, "artifact"),
        ({"engine_version": "x" * 65}, "engine_version"),
    ],
)
def test_what_cannot_be_rolled_out_is_refused_by_field(plan, field) -> None:
    rolling.make_pool(0)
    with pytest.raises(InvalidInput) as refused:
        begin(**plan)
    assert refused.value.field == field
    assert not Rollout.objects.exists()
    with pytest.raises(NotFound):
        begin(pool="none")


def test_an_artifact_reaches_the_engine_and_is_what_it_must_name() -> None:
    rolling.make_pool(1)
    artifact = Artifact.objects.create(
        model=Model.objects.get(), version="v2", location="weights/tiny-v2"
    )
    rollout_id = begin(artifact="v2")
    until(rollout_id, "done")
    assert Pool.objects.get().spec["artifact"] == artifact.location
    settle(lambda: len(live()) == 1)
    driver = machine.drivers()["simulated"]
    seen = driver.identify(fleet.inventory.spec_of(Pool.objects.get()), live()[0].handle)
    assert seen is not None
    assert (seen.root, seen.serves) == ("weights/tiny-v2", ("tiny",))


def test_engines_that_run_elsewhere_are_not_rolled_out_here() -> None:
    rolling.make_pool(0, driver="static", spec={"addresses": ["127.0.0.1:1"]})
    with pytest.raises(InvalidInput) as refused:
        begin()
    assert (refused.value.field, bool(refused.value.hint)) == ("pool", True)


def test_a_pool_without_replicas_is_done_at_once() -> None:
    rolling.make_pool(0)
    rollout_id = begin(spec=NEWER)
    services.advance_rollouts()
    assert Rollout.objects.get(pk=rollout_id).state == "done"
    assert Pool.objects.get().spec == NEWER


def test_calls_carry_no_priority_while_one_engine_would_refuse_it() -> None:
    rolling.make_pool(1, spec={**SPEC, "scheduling_policy": "priority"})
    rollout_id = begin(spec=SPEC, warm_s=3600)
    assert fleet_selectors.pools_for_snapshot()["p"].takes_priority
    until_step(rollout_id, "warm")
    entry = fleet_selectors.pools_for_snapshot()["p"]
    assert (len(entry.endpoints), entry.takes_priority) == (2, False)

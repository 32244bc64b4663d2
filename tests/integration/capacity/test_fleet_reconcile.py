"""Desired replicas become running ones, on real PostgreSQL with real engine processes."""

import os
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from django.db import connection
from django.utils import timezone

from capacity.drivers.processes import read_record, start_ticks
from capacity.drivers.simulated import SimulatedDriver
from capacity.drivers.static import StaticDriver
from capacity.fleet import selectors, services
from capacity.fleet.rules import DRAIN_LEAST_S, DRAIN_LIMIT_S
from capacity.fleet.services import inventory, reconcile
from capacity.models import Replica, ReplicaChange
from console.audit.rules import SYSTEM
from console.errors import Conflict, InvalidInput, NotFound
from console.models import AuditEvent, Job
from routing.contracts.endpoint_state import EndpointState, PoolState, encode_pool_state
from routing.contracts.enums import ReplicaHealth, ReplicaLifecycle
from routing.store import keys
from tests.engines import MODEL, ROOT, engine, wait_for

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Drivers that keep this test's state, and end what it started."""
    ours = {
        "simulated": SimulatedDriver(tmp_path, ROOT),
        "static": StaticDriver("", frozenset(("127.0.0.1",))),
    }
    monkeypatch.setattr(reconcile, "drivers", lambda: ours)
    monkeypatch.setattr(inventory, "drivers", lambda: ours)
    yield tmp_path
    for path in (tmp_path / "replicas").glob("*.json"):
        record = read_record(path)
        if record is not None and record.is_alive:
            os.kill(record.pid, signal.SIGKILL)


@pytest.fixture
def pool() -> str:
    services.create_region(slug="eu", name="Europe", actor=SYSTEM)
    services.create_domain(region="eu", slug="a", actor=SYSTEM)
    services.create_model(name=MODEL, context_tokens=16_384, actor=SYSTEM)
    return make_pool("eu-a", desired_replicas=2)


def make_pool(name: str, **fields: object) -> str:
    given = {"driver": "simulated", "spec": {"profile": "demo", "time_scale": 20}, **fields}
    services.create_pool(
        name=name,
        model=MODEL,
        region="eu",
        domain="a",
        actor=SYSTEM,
        **given,  # type: ignore[arg-type]
    )
    return name


def states() -> list[str]:
    rows = Replica.objects.filter(removed_at=None).order_by("name")
    return list(rows.values_list("lifecycle", flat=True))


def backdate(seconds: float) -> None:
    Replica.objects.update(lifecycle_since=timezone.now() - timedelta(seconds=seconds))


def queued(kind: str) -> int:
    return Job.objects.filter(kind=kind, state="queued").count()


def test_pool_becomes_ready_in_one_pass_and_a_second_changes_nothing(pool: str) -> None:
    Job.objects.all().delete()
    assert services.reconcile_pools() == 2
    assert states() == ["ready", "ready"]
    assert queued("push_snapshot") == 1
    changes = ReplicaChange.objects.filter(replica__name="eu-a-0").order_by("id")
    assert [change.after for change in changes] == ["cold", "loading", "warming", "ready"]
    count = ReplicaChange.objects.count()
    pids = [row.handle["pid"] for row in Replica.objects.order_by("name")]
    services.reconcile_pools()
    assert ReplicaChange.objects.count() == count
    assert [row.handle["pid"] for row in Replica.objects.order_by("name")] == pids
    entry = selectors.pools_for_snapshot()["eu-a"]
    assert (entry.served_model, entry.failure_domain) == (MODEL, "eu/a")
    assert entry.kv_capacity_tokens == 32_768
    assert [one.replica_id for one in entry.endpoints] == ["eu-a-0", "eu-a-1"]
    assert all(one.port and one.ready_at_ms and not one.is_draining for one in entry.endpoints)


def test_killed_replica_is_started_again_in_the_same_pass(pool: str) -> None:
    services.reconcile_pools()
    before = Replica.objects.get(name="eu-a-0").handle["pid"]
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: start_ticks(before) is None)
    services.reconcile_pools()
    row = Replica.objects.get(name="eu-a-0")
    assert (row.lifecycle, row.handle["failures"]) == ("ready", 1)
    assert row.handle["pid"] != before
    causes = ReplicaChange.objects.filter(replica=row, after="failed")
    assert [change.cause for change in causes] == ["its process ended"]
    assert selectors.restarts(["eu-a-0", "eu-a-1"], row.created_at) == {
        "eu-a-0": (1, "its process ended")
    }
    assert selectors.restarts(["eu-a-0"], timezone.now()) == {}


def test_worker_killed_after_the_start_finds_the_same_process(pool: str) -> None:
    services.reconcile_pools()
    before = Replica.objects.get(name="eu-a-0").handle["pid"]
    # As the row was before the killed worker could write it.
    Replica.objects.filter(name="eu-a-0").update(lifecycle="cold", handle={}, host="", port=0)
    services.reconcile_pools()
    row = Replica.objects.get(name="eu-a-0")
    assert (row.lifecycle, row.handle["pid"]) == ("ready", before)


def test_surplus_drains_first_and_is_then_stopped(pool: str, drivers: Path) -> None:
    services.reconcile_pools()
    services.set_desired_replicas(pool=pool, replicas=1, actor=SYSTEM, reason="night")
    services.reconcile_pools()
    assert states() == ["ready", "draining"]
    endpoints = selectors.pools_for_snapshot()["eu-a"].endpoints
    assert [one.is_draining for one in endpoints] == [False, True]
    backdate(DRAIN_LEAST_S + 1)
    pid = Replica.objects.get(name="eu-a-1").handle["pid"]
    services.reconcile_pools()
    assert states() == ["ready"]
    assert start_ticks(pid) is None
    assert not (drivers / "replicas" / "eu-a-1.json").exists()
    gone = Replica.objects.get(name="eu-a-1")
    assert (gone.lifecycle, gone.removed_at is not None) == ("cold", True)
    services.set_desired_replicas(pool=pool, replicas=2, actor=SYSTEM)
    services.reconcile_pools()
    assert states() == ["ready", "ready"]
    assert Replica.objects.count() == 2


def test_replica_that_ends_no_call_is_stopped_at_the_limit(pool: str) -> None:
    services.reconcile_pools()
    services.set_desired_replicas(pool=pool, replicas=0, actor=SYSTEM)
    services.reconcile_pools()
    pids = [row.handle["pid"] for row in Replica.objects.all()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    backdate(DRAIN_LIMIT_S + 1)
    reconcile_stop = reconcile.STOP_DRAIN_S
    try:
        reconcile.STOP_DRAIN_S = 0.2
        services.reconcile_pools()
    finally:
        reconcile.STOP_DRAIN_S = reconcile_stop
    assert states() == []
    assert [start_ticks(pid) for pid in pids] == [None, None]


def test_only_one_worker_reconciles_at_a_time(pool: str) -> None:
    settings = connection.settings_dict
    other = psycopg.connect(
        host=settings["HOST"],
        port=settings["PORT"],
        user=settings["USER"],
        password=settings["PASSWORD"],
        dbname=settings["NAME"],
        autocommit=True,
    )
    with other:
        other.execute("SELECT pg_advisory_lock(%s)", [reconcile._LOCK])
        assert services.reconcile_pools() == 0
        assert states() == []
    other.close()  # as when a worker is killed; the server notices a moment later
    wait_for(lambda: services.reconcile_pools() == 2)


def test_cancelled_job_stops_between_replicas(pool: str) -> None:
    services.reconcile_pools(is_cancelled=lambda: True)
    assert states() == ["cold", "cold"]


def test_row_that_somebody_else_moved_is_left_alone(pool: str) -> None:
    services.reconcile_pools()
    row = Replica.objects.get(name="eu-a-0")
    moved = services.change_replica(
        replica_id=row.pk,
        expected="loading",
        lifecycle="failed",
        cause="late",
        handle={},
    )
    row.refresh_from_db()
    assert (moved, row.lifecycle) == (False, "ready")


def test_static_pool_follows_what_answers(pool: str) -> None:
    with engine() as running:
        addresses = [f"127.0.0.1:{running.port}", "127.0.0.1:1"]
        make_pool("own", driver="static", spec={"addresses": addresses}, desired_replicas=2)
        services.reconcile_pools()
        rows = Replica.objects.filter(pool__name="own").order_by("ordinal")
        assert [row.lifecycle for row in rows] == ["ready", "loading"]
    for _ in range(3):
        services.reconcile_pools()
    assert rows.get(ordinal=0).lifecycle in ("failed", "loading")
    assert "does not answer" in ReplicaChange.objects.filter(after="failed").latest("id").cause


def test_inventory_refuses_what_cannot_work(pool: str) -> None:
    with pytest.raises(Conflict):
        make_pool("eu-a")
    with pytest.raises(InvalidInput) as bad_spec:
        make_pool("p", spec={"profile": "none"})
    assert bad_spec.value.field == "spec"
    with pytest.raises(InvalidInput) as bad_driver:
        make_pool("p", driver="kubernetes")
    assert bad_driver.value.field == "driver"
    with pytest.raises(InvalidInput):
        services.set_desired_replicas(pool=pool, replicas=1000, actor=SYSTEM)
    with pytest.raises(NotFound):
        services.set_desired_replicas(pool="none", replicas=1, actor=SYSTEM)
    with pytest.raises(NotFound):
        services.create_domain(region="nowhere", slug="a", actor=SYSTEM)
    with pytest.raises(InvalidInput):
        services.create_model(name="m", context_tokens=100, bytes_per_token=99, actor=SYSTEM)


def test_each_inventory_write_is_audited(pool: str) -> None:
    services.set_desired_replicas(pool=pool, replicas=3, actor=SYSTEM, reason="launch")
    acts = list(AuditEvent.objects.order_by("id").values_list("act", flat=True))
    assert acts == ["region.create", "domain.create", "model.create", "pool.create", "pool.scale"]
    last = AuditEvent.objects.latest("id")
    assert (last.reason, last.before, last.after) == (
        "launch",
        {"desired_replicas": 2},
        {"desired_replicas": 3},
    )
    assert queued("reconcile_pools") == 1


def test_models_reach_the_snapshot(pool: str) -> None:
    facts = selectors.models_for_snapshot()[MODEL]
    assert (facts.context_tokens, facts.output_cap_tokens, facts.bytes_per_token) == (
        16_384,
        4096,
        2.5,
    )


def test_fleet_page_joins_live_values_and_unknown_is_not_zero(
    pool: str, store, django_assert_num_queries
) -> None:
    services.reconcile_pools()
    now_ms = int(timezone.now().timestamp() * 1000)
    seen = EndpointState(
        replica_id="eu-a-0",
        pool="eu-a",
        at_ms=now_ms,
        health=ReplicaHealth.HUNG,
        running=3,
        kv_usage_ratio=0.25,
        kv_capacity_tokens=1000,
    )
    store.set(keys.pool_state("eu-a"), encode_pool_state(PoolState("eu-a", now_ms, [seen])))
    make_pool("eu-b")
    with django_assert_num_queries(2):
        page = selectors.fleet_page(limit=1)
    first = page.rows[0]
    assert (first.name, first.ready_replicas, page.next_after is not None) == ("eu-a", 2, True)
    live, blind = first.replicas
    assert (live.state, live.lifecycle, live.running, live.kv_free_tokens) == (
        "hung",
        "ready",
        3,
        750,
    )
    assert live.scrape_age_s is not None
    assert live.scrape_age_s < 10
    assert (blind.state, blind.health, blind.running, blind.kv_free_tokens) == (
        ReplicaLifecycle.READY,
        None,
        None,
        None,
    )
    rest = selectors.fleet_page(after=page.next_after, limit=1)
    assert [row.name for row in rest.rows] == ["eu-b"]
    with django_assert_num_queries(3):
        detail = selectors.pool_detail("eu-a")
    assert detail.changes[0].replica.startswith("eu-a-")
    with pytest.raises(NotFound):
        selectors.pool_detail("none")

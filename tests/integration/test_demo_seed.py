import pytest

from capacity.fleet.selectors import pools_for_snapshot
from console.demo.seed import seed_demo
from routing.policies.selectors import live
from telemetry.economics.selectors import inputs
from telemetry.slos.selectors import objectives
from tenants.directory.selectors import tenants_for_snapshot

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_demo_seed_makes_two_tenants_in_two_regions_and_publishes_a_policy(store):
    added = seed_demo({})
    assert [caller["name"] for caller in added["demo_callers"]] == ["acme", "globex"]
    assert [caller["is_noisy"] for caller in added["demo_callers"]] == [False, True]
    assert {pool.region for pool in pools_for_snapshot().values()} == {"eu", "us"}
    assert live("main").number == 1
    assert all(tenant.limits for tenant in tenants_for_snapshot())


def test_seeding_twice_changes_nothing_and_an_interrupted_seed_is_completed(store):
    added = seed_demo({})
    assert seed_demo(added) == {}
    again = seed_demo({})
    assert [caller["name"] for caller in again["demo_callers"]] == ["acme", "globex"]
    assert live("main").number == 1
    assert len(tenants_for_snapshot()) == 2


def test_the_demo_promises_something_and_names_its_assumptions(store):
    seed_demo({})
    assert len(objectives()) == 1
    known = inputs()
    for pool in pools_for_snapshot().values():
        grid, power = known.grid(pool.region), known.power(pool.hardware)
        assert grid is not None
        assert power is not None
        assert "assumption" in grid[0].source
        assert "assumption" in power.source

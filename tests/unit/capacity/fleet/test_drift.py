"""Where record and engines disagree, and what is placed badly."""

from dataclasses import replace

import pytest

from capacity.fleet.rules.drift import (
    Placement,
    PoolSides,
    ReplicaSides,
    drift_of,
    placement_warnings,
)
from routing.contracts.enums import ReplicaHealth, ReplicaLifecycle

READY = ReplicaLifecycle.READY
GOOD = ReplicaSides("p-0", READY, 1, ReplicaHealth.OK, "", "0.32.0", 1000, 16)
POOL = PoolSides("p", 1, 1, 1000, 16, "0.32", False, (GOOD,))


def whats(pool: PoolSides) -> list[str]:
    found = drift_of(pool)
    assert all(one.next_step and one.recorded and one.seen for one in found)
    return [one.what for one in found]


def test_alike_is_no_drift() -> None:
    assert whats(POOL) == []


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"health": ReplicaHealth.LOST}, "state"),
        ({"health": None}, "state"),
        ({"revision": 2}, "revision"),
        ({"kv_capacity_tokens": 900}, "KV capacity, tok"),
        ({"block_size_tokens": 32}, "KV block, tok"),
        ({"engine_version": "0.31"}, "engine version"),
        ({"lifecycle": None}, "replica"),
    ],
)
def test_each_disagreement_is_named(change, what) -> None:
    pool = replace(POOL, replicas=(replace(GOOD, **change),), desired_replicas=0)
    assert whats(pool) == [what]


def test_unknown_is_no_disagreement() -> None:
    blind = replace(GOOD, kv_capacity_tokens=None, block_size_tokens=None, engine_version="")
    assert whats(replace(POOL, replicas=(blind,))) == []
    assert whats(replace(POOL, kv_capacity_tokens=0)) == []


def test_too_few_ready_and_unlike_engines_are_the_pools() -> None:
    other = replace(GOOD, name="p-1", engine_version="0.32.1")
    pool = replace(POOL, replicas=(GOOD, other), desired_replicas=3)
    assert whats(pool) == ["ready replicas", "engine version"]


def test_a_running_rollout_explains_what_differs() -> None:
    other = replace(GOOD, name="p-1", revision=2, kv_capacity_tokens=1, engine_version="0.32.1")
    rolling = replace(POOL, replicas=(GOOD, other), desired_replicas=3, is_rolling=True)
    assert whats(rolling) == []


def test_a_domain_without_the_gpus_and_a_model_in_one_domain_are_warned_of() -> None:
    pools = [Placement("a", "m", "eu/a", 3, 4), Placement("b", "m", "eu/a", 1, 0)]
    found = placement_warnings(pools, {"eu/a": 8})
    assert [(one.what, one.seen) for one in found] == [
        ("GPUs of eu/a", "12 wanted"),
        ("placement of m", "eu/a only"),
    ]
    spread = [Placement("a", "m", "eu/a", 2, 4), Placement("b", "m", "us/b", 1, 8)]
    assert placement_warnings(spread, {"eu/a": 8, "us/b": 8}) == ()


def test_a_provider_that_reports_nothing_is_no_drift() -> None:
    unseen = replace(GOOD, health=None)
    assert drift_of(replace(POOL, replicas=(unseen,)))
    assert not drift_of(replace(POOL, replicas=(unseen,), is_hosted=True))

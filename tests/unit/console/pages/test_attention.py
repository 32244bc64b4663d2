"""The attention list's replicas: judged one by one, worst first."""

from console.pages import attention
from console.web.live_state import SeenPool
from routing.contracts.endpoint_state import EndpointState, PoolState
from routing.contracts.enums import ReplicaHealth


def pool(*states: EndpointState, age_s: float = 0.5) -> SeenPool:
    return SeenPool(PoolState("p", 0, list(states)), age_s)


def test_replicas_are_judged_one_by_one():
    found = attention.of_pool(
        "p",
        pool(
            EndpointState("p-0", "p", 0, ReplicaHealth.OK, kv_usage_ratio=0.2),
            EndpointState("p-1", "p", 0, ReplicaHealth.OK, kv_usage_ratio=0.93),
            EndpointState("p-2", "p", 0, ReplicaHealth.HUNG, reason="no completion for 12 s"),
            EndpointState("p-3", "p", 0, ReplicaHealth.STALE),
            EndpointState("p-4", "p", 0, ReplicaHealth.OK),
        ),
        desired=5,
    )
    assert [strip.tone for strip in attention.worst_first(found)] == ["bad", "warn", "stale"]
    assert "p-2 is hung. no completion for 12 s" in attention.worst_first(found)[0].text


def test_a_silent_collector_is_one_strip_a_pool():
    hung = EndpointState("p-2", "p", 0, ReplicaHealth.HUNG)
    [strip] = attention.of_pool("p", pool(hung, age_s=40), desired=1)
    assert strip.tone == "stale"
    assert attention.of_pool("p", None, desired=0) == []

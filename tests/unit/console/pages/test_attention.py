"""The attention list: worst first, each with its bound and a next step."""

from console.pages import attention
from console.web.live_state import Seen, SeenPool
from routing.contracts.endpoint_state import EndpointState, PoolState
from routing.contracts.enums import ReplicaHealth, StoreMode
from routing.contracts.process import GatewayStatus, ProcessStatus


def gateway(number: int = 7, mode: StoreMode = StoreMode.SHARED, age_s: float = 0.5) -> Seen:
    status = GatewayStatus("g0", "i", 1, "h", 1, 2, 0, 0, number, "main@1", "serving", mode, 0, 0)
    return Seen(status, age_s)


def alive(*without: str, lag_s: float | None = None) -> list[Seen]:
    names = [name for name in attention.EXPECTED if name not in without]
    return [Seen(ProcessStatus(name, 1, 0, 0, lag_s=lag_s), 0.5) for name in names]


def strips(gateways: list[Seen] | None, processes: list[Seen] | None, newest: int | None = 7):
    return attention.of_parts(attention.Parts(gateways, processes, newest))


def test_all_well_is_an_empty_list():
    assert strips([gateway()], alive()) == []


def test_a_store_that_is_away_is_one_strip_with_its_bound():
    [strip] = strips(None, None)
    assert strip.tone == "bad"
    assert "at most 5 min" in strip.text


def test_each_missing_process_says_what_is_lost():
    found = strips([gateway()], alive("ledger", "collector"))
    assert {strip.word for strip in found} == {"ledger gone", "collector gone"}
    assert all(strip.tone == "bad" and strip.url for strip in found)


def test_an_old_report_is_a_missing_process():
    old = [Seen(seen.status, 11.0) for seen in alive() if seen.status.name == "worker"]
    assert [strip.word for strip in strips([gateway()], alive("worker") + old)] == ["worker gone"]


def test_gateways_without_store_or_behind_are_named():
    found = strips([gateway(mode=StoreMode.DEGRADED), gateway(5), gateway(age_s=60)], alive())
    assert [strip.word for strip in found] == ["gone", "degraded", "behind"]
    assert strips([gateway(6)], alive()) == []  # one behind: it is being swapped


def test_no_gateway_at_all_comes_first():
    assert strips([], alive(lag_s=60))[0].word == "no gateway"


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

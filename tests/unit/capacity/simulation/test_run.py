"""A run is a function of its inputs, loses nobody, and keeps what it is told."""

import tracemalloc
from dataclasses import replace

import pytest

from capacity.simulation.measures import MOST_SLICES, growing_bins
from capacity.simulation.run import Run, report_digest
from capacity.simulation.scenario import (
    ClientSpec,
    Fault,
    FaultSpec,
    Order,
    PolicySpec,
    Route,
    Scenario,
    TenantSpec,
)
from capacity.simulation.workload import (
    AgentTask,
    Arrival,
    Phase,
    exponential,
    fixed,
    lognormal,
    merged,
    stream,
)
from routing.contracts.enums import Dimension, LimitScope, WindowKind, WorkClass
from routing.contracts.snapshot import FailurePolicy, Limit, Price
from telemetry.stats.sketch import index_of
from tests.simulating import REFERENCE, fleet, profile, run

BUSY = Phase(0.0, 20.0, 40.0, lognormal(600.0, 1.0, 4000), exponential(60.0))


def troubled(**policy: object) -> Scenario:
    """Three replicas of which one dies and one gets slow, impatient clients, two gateways."""
    return Scenario(
        fleet(REFERENCE, 3),
        60.0,
        tenants=(TenantSpec("a", price=Price(1, 10**9, 10**8, 3 * 10**9)), TenantSpec("b")),
        clients=ClientSpec(patience_s=2.0, retries=2, backoff_s=0.2),
        policy=PolicySpec(failures=FailurePolicy(resend_before_output=True), **policy),  # type: ignore[arg-type]
        faults=(
            FaultSpec(5.0, "e0", Fault.LOST),
            FaultSpec(8.0, "e1", Fault.SLOW, 3.0),
            FaultSpec(12.0, "e0", Fault.BACK),
        ),
        gateways=2,
    )


def traffic(seed: int = 4):
    return merged(
        stream([BUSY], seed, tenant="a"),
        stream([BUSY], seed, tenant="b", work_class=WorkClass.INTERACTIVE),
    )


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("route", list(Route))
def test_nobody_is_lost_and_nothing_stays_held(order: Order, route: Route) -> None:
    done = run(troubled(order=order, route=route), traffic())
    total = done.measures.total()
    assert total.ok + total.left + sum(total.refused.values()) == total.arrived
    assert total.ok > 0
    assert done.book.held_total() == 0
    for gateway in done.gateways:
        assert not gateway.live
        assert gateway.in_flight == 0
        for name, candidate in gateway.candidates.items():
            assert (candidate.in_flight, candidate.held_tokens) == (0, 0)
            ahead = gateway.ahead[name]
            assert (ahead.queued_tokens, ahead.decodes, ahead.context_tokens) == (0, 0, 0)
    for station in done.stations.values():
        assert station.replica.blocks.used_count == 0


def test_same_seed_same_run_to_the_last_digit() -> None:
    first, second = run(troubled(), traffic()).report(), run(troubled(), traffic()).report()
    assert report_digest(first) == report_digest(second)
    assert first["digest"] != run(troubled(), traffic(5)).report()["digest"]


def test_a_run_in_pieces_is_the_same_run() -> None:
    whole = run(troubled(), traffic()).report()
    pieces = Run(troubled(), traffic(), 1)
    seen = []
    while pieces.advance(500):
        seen.append(pieces.progress_ratio)
    assert pieces.report() == whole
    assert seen == sorted(seen)
    assert len(seen) > 5


def test_memory_does_not_grow_with_the_length_of_the_trace() -> None:
    def peak(until_s: float) -> int:
        phase = Phase(0.0, until_s, 20.0, fixed(200), fixed(20))
        small = replace(REFERENCE, kv_blocks=1000)  # every block is used within seconds
        tracemalloc.start()
        run(Scenario(fleet(small), until_s), stream([phase], 1))
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(5.0)  # whatever is made once
    assert peak(200.0) < 1.1 * peak(60.0)


def test_limit_of_a_minute_admits_what_it_says_in_each_minute() -> None:
    limit = Limit(LimitScope.TENANT, Dimension.REQUESTS, WindowKind.MINUTE, 30)
    phase = Phase(0.0, 119.0, 2.0, fixed(10), fixed(1), cv=0.0)
    scenario = Scenario(fleet(REFERENCE), 130.0, tenants=(TenantSpec("t", (limit,)),))
    total = run(scenario, stream([phase], 1)).measures.total()
    assert total.ok == 60
    assert total.refused == {"rate_limited": total.arrived - 60}


def test_spend_limit_counts_what_was_used_and_holds_the_bound() -> None:
    price = Price(1, 10**9, 10**9, 10**9)  # one thousand nano-dollars a token
    limit = Limit(LimitScope.TENANT, Dimension.SPEND_NANOUSD, WindowKind.DAY, 1_000_000)
    scenario = Scenario(fleet(REFERENCE), 60.0, tenants=(TenantSpec("t", (limit,), price=price),))
    # Each uses 100 tokens and holds 500: after six only 400 are left.
    arrivals = [Arrival(float(n * 5), 90, 10, max_tokens=410) for n in range(10)]
    total = run(scenario, arrivals).measures.total()
    assert total.ok == 6
    assert total.spend_nanousd == 600_000
    assert total.refused == {"budget_exceeded": 4}


def test_refused_client_comes_back_when_it_was_told_to() -> None:
    limit = Limit(LimitScope.TENANT, Dimension.REQUESTS, WindowKind.MINUTE, 1)
    scenario = Scenario(
        fleet(REFERENCE),
        200.0,
        tenants=(TenantSpec("t", (limit,)),),
        clients=ClientSpec(retries=1),
    )
    done = run(scenario, [Arrival(1.0, 10, 1), Arrival(2.0, 10, 1)])
    total = done.measures.total()
    assert (done.jobs, total.arrived, total.ok) == (2, 3, 2)


def test_queue_refuses_who_waited_for_longer_than_its_limit() -> None:
    slow = profile(0.01, 0.001)  # 1,000 tokens a second
    policy = PolicySpec(order=Order.FCFS, queue_limit_s=3.0, room_tokens=1)
    arrivals = [Arrival(0.0, 2000, 1) for _ in range(5)]
    done = run(Scenario(fleet(slow), 30.0, policy=policy), arrivals)
    total = done.measures.total()
    assert total.refused["no_capacity"] == total.arrived - total.ok > 0
    assert total.ok >= 2


def test_agent_task_takes_its_steps_in_order() -> None:
    done = Run(Scenario(fleet(REFERENCE), 60.0), (), 1)
    done.add_session(AgentTask(1, 4, 3, 500, 50))
    total = done.to_end().measures.total()
    assert total.ok == 12
    assert total.cached_tokens > 0


def test_slices_beyond_the_bound_share_one() -> None:
    names = [f"t{number}" for number in range(MOST_SLICES + 50)]
    arrivals = (Arrival(n * 0.01, 1, 1, name) for n, name in enumerate(names))
    done = run(Scenario(fleet(profile(0.001)), 60.0), arrivals)
    assert len(done.measures.slices) == MOST_SLICES + 1
    assert done.measures.total().ok == len(names)


@pytest.mark.parametrize(("first_s", "growth_s", "count"), [(0.01, 0.0, 7), (0.01, 3e-4, 500)])
def test_bins_of_growing_gaps_are_those_of_each_gap(
    first_s: float, growth_s: float, count: int
) -> None:
    plain: dict[int, int] = {}
    for step in range(count):
        index = index_of(first_s + step * growth_s)
        plain[index] = plain.get(index, 0) + 1
    assert dict(growing_bins(first_s, growth_s, count)) == plain


def test_slower_replica_takes_less_work_when_the_wait_is_predicted() -> None:
    slow = replace(REFERENCE, times=REFERENCE.times.scaled(4))
    specs = (*fleet(REFERENCE), *[replace(one, id="slow") for one in fleet(slow)])
    phase = Phase(0.0, 60.0, 20.0, fixed(2000), fixed(50))
    scenario = Scenario(specs, 60.0, policy=PolicySpec(route=Route.PREDICTED))
    done = run(scenario, stream([phase], 1))
    steps = {name: one.replica.counters.prefill_tokens for name, one in done.stations.items()}
    assert steps["slow"] < 0.5 * steps["e0"]

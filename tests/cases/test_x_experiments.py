"""Reference experiments X1 to X6 of the design, in virtual time, asserted as ranges and ratios.

The engine is 8B on H100 with rounded coefficients unless a test says otherwise.
"""

from dataclasses import replace

import pytest

from capacity.simulation.chance import Chance
from capacity.simulation.measures import SliceFigures
from capacity.simulation.run import Run
from capacity.simulation.scenario import (
    ClientSpec,
    Fault,
    FaultSpec,
    Order,
    PolicySpec,
    Route,
    Scenario,
    Slo,
)
from capacity.simulation.workload import (
    Arrival,
    Chat,
    Phase,
    exponential,
    fixed,
    lognormal,
    merged,
    stream,
)
from routing.contracts.enums import WorkClass
from routing.contracts.snapshot import FailurePolicy
from tests.simulating import REFERENCE, fleet, profile, run

NEVER_S = 1e9
MOVES_ON = FailurePolicy(resend_before_output=True)


def mean_s(figures: SliceFigures) -> float:
    assert figures.ttft.mean_s is not None
    return figures.ttft.mean_s


def quantile_s(figures: SliceFigures, q: float) -> float:
    found = figures.ttft.quantile(q)
    assert found is not None
    return found


class Turns(Chat):
    """A conversation whose first turn counts apart."""

    def next_after(self, end_s: float) -> list[Arrival]:
        calls = super().next_after(end_s)
        for call in calls:
            call.tenant = "first" if call.input_tokens == self.first_tokens else "later"
        return calls


@pytest.mark.parametrize("kv_tokens", [60_000, 24_000])
@pytest.mark.parametrize(("replicas", "sessions"), [(2, 8), (4, 16)])
def test_x1_cache_aware_routing_halves_the_wait_of_later_turns(
    kv_tokens: int, replicas: int, sessions: int
) -> None:
    engine = profile(4e-3, 110e-6, 5e-9, 0.5e-9, kv_blocks=kv_tokens // 16, token_budget=2048)

    def later(route: Route) -> SliceFigures:
        """Turns 2 to 10 of six seeds."""
        whole = SliceFigures()
        for seed in range(6):
            policy = PolicySpec(route=route, output_q50_tokens=160)
            world = Run(Scenario(fleet(engine, replicas), 120.0, policy=policy), (), seed)
            for number in range(sessions):
                chance = Chance(seed).fork(f"session {number}")
                world.add_session(Turns(number + 1, chance, 10, 600, 314, 160, 0.5))
            whole.merge(world.to_end().measures.total("later"))
        assert whole.ok == 6 * sessions * 9
        return whole

    plain, aware = later(Route.ROUND_ROBIN), later(Route.PREDICTED)
    assert mean_s(plain) / mean_s(aware) >= 1.8
    assert quantile_s(plain, 0.95) / quantile_s(aware, 0.95) >= 3.0


def test_x2_a_tenant_of_long_prompts_does_not_delay_one_of_short_ones() -> None:
    until_s, long_from_s = 150.0, 60.0

    def served(order: Order, long_prefill_tokens: int = 0) -> tuple[SliceFigures, float]:
        """The short tenant, and the fleet's work a second while the other's prompts are long."""
        short = Phase(0.0, until_s, 10.0, fixed(1000), fixed(200))
        before = Phase(0.0, long_from_s, 4.0, fixed(1000), fixed(200))
        after = Phase(long_from_s, until_s, 4.0, fixed(20_000), fixed(200))
        scenario = Scenario(
            fleet(replace(REFERENCE, long_prefill_tokens=long_prefill_tokens), 2),
            until_s,
            from_s=long_from_s,
            policy=PolicySpec(route=Route.PREDICTED, order=order, queue_limit_s=NEVER_S),
        )
        arrivals = merged(stream([short], 1, tenant="a"), stream([before, after], 1, tenant="b"))
        done = run(scenario, arrivals)
        steps = sum(one.replica.counters.prefill_tokens for one in done.stations.values())
        return done.measures.total("a"), steps / until_s

    fcfs, fcfs_rate = served(Order.FCFS)
    fair, fair_rate = served(Order.VTC)
    capped, _rate = served(Order.VTC, 1024)
    assert mean_s(fcfs) / mean_s(fair) >= 10.0
    assert fair_rate >= 0.98 * fcfs_rate
    assert quantile_s(capped, 0.99) < 0.5 * quantile_s(fair, 0.99)
    capped_itl_s, fair_itl_s = capped.itl.quantile(0.99), fair.itl.quantile(0.99)
    assert capped_itl_s is not None
    assert fair_itl_s is not None
    assert capped_itl_s < 0.5 * fair_itl_s


def test_x3_shedding_keeps_goodput_when_a_quarter_of_the_fleet_is_lost() -> None:
    until_s, from_s = 75.0, 45.0

    def after_loss(**policy: float) -> SliceFigures:
        scenario = Scenario(
            fleet(REFERENCE, 4),
            until_s,
            from_s=from_s,
            policy=PolicySpec(route=Route.PREDICTED, failures=MOVES_ON, **policy),  # type: ignore[arg-type]
            faults=(FaultSpec(30.0, "e3", Fault.LOST),),
            slos={WorkClass.STANDARD: Slo(2.0, NEVER_S)},
        )
        phase = Phase(20.0, until_s, 155.0, lognormal(1000.0, 1.0), lognormal(100.0, 1.0))
        return run(scenario, stream([phase], 3)).measures.total()

    plain = after_loss()
    shed = after_loss(shed_ttft_s=1.0, pressure_s=1.0)
    span_s = until_s - from_s
    assert shed.met / span_s >= 120.0
    assert quantile_s(shed, 0.99) <= 0.6
    assert 0.10 <= sum(shed.refused.values()) / shed.arrived <= 0.22
    # The backlog grows by rho - 1 = 0.067 a second: 3 s of it after 45 s.
    assert quantile_s(plain, 0.5) == pytest.approx(3.0, rel=0.15)
    assert quantile_s(plain, 0.99) > 5 * quantile_s(shed, 0.99)
    assert plain.met < 0.7 * shed.met


def test_x4_retries_keep_an_overload_alive_and_a_budget_ends_it() -> None:
    until_s, from_s, rate = 110.0, 90.0, 140.0  # measured from 40 s after the repair on

    def long_after_repair(*, has_budget: bool) -> tuple[SliceFigures, float, float]:
        scenario = Scenario(
            fleet(REFERENCE, 4),
            until_s,
            from_s=from_s,
            clients=ClientSpec(patience_s=3.0, retries=4, hangs_up=False),
            policy=PolicySpec(route=Route.PREDICTED, failures=MOVES_ON, resends_cost=has_budget),
            faults=tuple(
                FaultSpec(at_s, name, fault)
                for at_s, fault in ((30.0, Fault.LOST), (50.0, Fault.BACK))
                for name in ("e2", "e3")
            ),
            slos={WorkClass.STANDARD: Slo(3.0, NEVER_S)},
        )
        arrived = 0

        def arrivals():
            nonlocal arrived
            phase = Phase(10.0, until_s, rate, lognormal(1000.0, 1.0), lognormal(100.0, 1.0))
            for one in stream([phase], 3):
                arrived += one.at_s >= from_s
                yield one

        total = run(scenario, arrivals()).measures.total()
        return total, total.met / arrived, total.arrived / arrived

    _storm, goodput, attempts = long_after_repair(has_budget=False)
    assert goodput < 0.05
    assert attempts >= 3.6
    _calm, goodput, attempts = long_after_repair(has_budget=True)
    assert goodput >= 0.98
    assert attempts <= 1.03


@pytest.mark.parametrize(
    ("load_s", "trigger_s", "design"), [(80.0, 15.0, 9200), (5.0, 15.0, 1900), (0.0, 0.0, 0)]
)
def test_x5_every_second_of_loading_refuses_what_it_lacks(
    load_s: float, trigger_s: float, design: int
) -> None:
    step_s, full_s, rate = 30.0, 35.0, 170.0
    ready_s = step_s + trigger_s + load_s
    until_s = max(ready_s, full_s) + 10.0
    added = [replace(one, ready_at_s=ready_s) for one in fleet(REFERENCE, 6)[2:]]
    scenario = Scenario(
        (*fleet(REFERENCE, 2), *added),
        until_s,
        from_s=step_s,
        policy=PolicySpec(route=Route.PREDICTED, most_in_flight=120),
    )
    lengths = lognormal(1000.0, 1.0), lognormal(100.0, 1.0)
    before = [Phase(15.0, step_s, 40.0, *lengths), Phase(step_s, full_s, rate, *lengths)]
    later = [Phase(full_s, until_s, rate, *lengths)]
    arrivals = merged(stream(before, 3), stream(later, 4, tenant="later"))
    measures = run(scenario, arrivals).measures
    refused = sum(measures.total().refused.values())
    assert refused == pytest.approx((trigger_s + load_s) * (rate - 73.0), rel=0.10, abs=10)
    assert refused == pytest.approx(design, rel=0.10, abs=10)
    # Once the first seconds have filled what is there: their prompts come all at once.
    assert quantile_s(measures.total("later"), 0.99) <= 0.3


def test_x6_breaker_spares_callers_a_replica_that_never_answers() -> None:
    def affected(*, has_breaker: bool) -> tuple[int, int]:
        scenario = Scenario(
            fleet(REFERENCE, 2),
            330.0,
            policy=PolicySpec(first_token_s=2.0, has_breaker=has_breaker, route=Route.ROUND_ROBIN),
            faults=(FaultSpec(0.0, "e0", Fault.HUNG),),
        )
        phase = Phase(0.0, 300.0, 2.0, fixed(100), exponential(10.0))
        total = run(scenario, stream([phase], 2)).measures.total()
        return total.arrived - total.ok, total.arrived

    without, everybody = affected(has_breaker=False)
    assert without == pytest.approx(everybody / 2, abs=1)
    assert affected(has_breaker=True)[0] <= 6

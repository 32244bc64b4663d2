"""Small worlds for the simulator's tests."""

from collections.abc import Iterable

from capacity.simulation.catalogue import named
from capacity.simulation.profiles import EngineProfile, StepTimes
from capacity.simulation.run import Run
from capacity.simulation.scenario import ReplicaSpec, Scenario
from capacity.simulation.workload import Arrival

REFERENCE = named("reference")


def profile(
    t0_s: float = 0.0, c_s: float = 0.0, d_s: float = 0.0, e_s: float = 0.0, **changes: int
) -> EngineProfile:
    limits = {"kv_blocks": 50_000, "token_budget": 8192, **changes}
    return EngineProfile("test", StepTimes(t0_s, c_s, d_s, e_s), **limits)


def fleet(one: EngineProfile, count: int = 1) -> tuple[ReplicaSpec, ...]:
    return tuple(ReplicaSpec(f"e{number}", one) for number in range(count))


def run(scenario: Scenario, arrivals: Iterable[Arrival], seed: int = 1) -> Run:
    return Run(scenario, arrivals, seed).to_end()

"""Simulated requests per CPU second, beside a plain M/M/c of the same arrivals in the same run.

The candidate decides with the real core: limits admitted, endpoints filtered and scored, budgets
and breakers kept, over engines that batch, chunk and page. The baseline only queues for c servers:
on our own event heap, and in simpy where that is installed.
"""

import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from capacity.simulation.catalogue import named
from capacity.simulation.chance import Chance
from capacity.simulation.events import Events
from capacity.simulation.run import Run
from capacity.simulation.scenario import ReplicaSpec, Scenario, TenantSpec
from capacity.simulation.workload import Arrival, Phase, exponential, lognormal, stream
from console.benchmarks.harness import Figure, compare
from routing.contracts.enums import Dimension, LimitScope, WindowKind
from routing.contracts.snapshot import Limit

REPLICAS: Final = 4
RATE_PER_S: Final = 40.0  # rho 0.15 a replica: as busy as a fleet that has a zone to spare
SERVICE_S: Final = 0.5
SERVERS: Final = 40
UNIT: Final = "simulated requests a CPU second"


def run(*, is_quick: bool) -> list[Figure]:
    """Ratios of speed; below 1 is slower than the baseline, which simulates far less."""
    rounds, until_s = (3, 100.0) if is_quick else (9, 600.0)
    found = [
        compare(
            "simulate_against_plain_queue",
            UNIT,
            lambda: _speed(until_s, _plain_queue),
            lambda: _speed(until_s, _whole_fleet),
            rounds,
        )
    ]
    if find_spec("simpy") is None:
        sys.stderr.write("simpy is not installed here: only our own plain queue is the baseline\n")
        return found
    found.append(
        compare(
            "simulate_against_simpy",
            UNIT,
            lambda: _speed(until_s, _simpy_queue),
            lambda: _speed(until_s, _whole_fleet),
            rounds,
        )
    )
    return found


def _arrivals(until_s: float) -> Iterator[Arrival]:
    sizes = lognormal(500.0, 1.0, 8000), exponential(100.0, 2000)
    return stream([Phase(0.0, until_s, RATE_PER_S, *sizes)], seed=1)


def _speed(until_s: float, simulate: Callable[[float], int]) -> float:
    start_s = time.process_time()
    count = simulate(until_s)
    return count / (time.process_time() - start_s)


def _whole_fleet(until_s: float) -> int:
    """Limits that never refuse, so that every request walks the whole way."""
    limits = tuple(
        Limit(LimitScope.TENANT, dimension, WindowKind.MINUTE, 1 << 50)
        for dimension in (Dimension.REQUESTS, Dimension.INPUT_TOKENS, Dimension.OUTPUT_TOKENS)
    )
    profile = named("reference")
    replicas = tuple(ReplicaSpec(f"e{number}", profile) for number in range(REPLICAS))
    scenario = Scenario(replicas, until_s, tenants=(TenantSpec("t", limits),))
    return Run(scenario, _arrivals(until_s), 1).to_end().jobs


def _plain_queue(until_s: float) -> int:
    """M/M/c, first come first served, on the simulator's own heap."""
    events, chance = Events(), Chance(2)
    arrivals, waiting = _arrivals(until_s), [0]
    busy, count = [0], [0]

    def arrive() -> None:
        count[0] += 1
        if (arrival := next(arrivals, None)) is not None:
            events.at(arrival.at_s, arrive)
        if busy[0] < SERVERS:
            busy[0] += 1
            events.after(chance.exponential(SERVICE_S), leave)
        else:
            waiting[0] += 1

    def leave() -> None:
        if waiting[0]:
            waiting[0] -= 1
            events.after(chance.exponential(SERVICE_S), leave)
        else:
            busy[0] -= 1

    events.at(next(arrivals).at_s, arrive)
    while events.run(float("inf"), 1 << 20):
        pass
    return count[0]


def _simpy_queue(until_s: float) -> int:
    """The same in simpy: a process a request, a resource of c."""
    simpy: Any = import_module("simpy")
    world, chance = simpy.Environment(), Chance(2)
    servers = simpy.Resource(world, capacity=SERVERS)
    count = [0]

    def request() -> Iterator[Any]:
        with servers.request() as place:
            yield place
            yield world.timeout(chance.exponential(SERVICE_S))

    def source() -> Iterator[Any]:
        for arrival in _arrivals(until_s):
            yield world.timeout(arrival.at_s - world.now)
            count[0] += 1
            world.process(request())

    world.process(source())
    world.run()
    return count[0]

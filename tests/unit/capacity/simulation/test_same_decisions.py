"""The simulated gateway decides as the real one: its record, replayed through the real fleet.

Every send, end, report and refusal of a simulated run is fed, in order, to the gateway's own
`Fleet` (which keeps load, breakers and reports from a snapshot), and its choice is compared.
"""

from dataclasses import dataclass, field

import pytest

from capacity.simulation import front, sight
from capacity.simulation import run as simulation
from capacity.simulation.requests import Generation
from capacity.simulation.scenario import (
    MONDAY_MS,
    ClientSpec,
    Fault,
    FaultSpec,
    PolicySpec,
    Scenario,
)
from capacity.simulation.workload import Phase, exponential, lognormal, stream
from routing.contracts.endpoint_state import EndpointState, PoolState
from routing.contracts.enums import WorkClass
from routing.contracts.snapshot import (
    SCHEMA_VERSION,
    EndpointEntry,
    FailurePolicy,
    ModelEntry,
    OutagePolicy,
    PolicyEntry,
    PoolEntry,
    Price,
    Snapshot,
    Target,
)
from routing.decision.breaker import Outcome
from routing.decision.filters import Candidate, Need
from routing.decision.retry import Verdict
from routing.decision.select import Choice, Group, select
from routing.gateway.fleet import Fleet
from tests.simulating import REFERENCE, fleet


def snapshot(names: list[str]) -> Snapshot:
    endpoints = tuple(EndpointEntry(name, "127.0.0.1", 9000 + n) for n, name in enumerate(names))
    pool = PoolEntry("pool", "m", "", "", "", REFERENCE.kv_tokens, 16, endpoints)
    model = ModelEntry("model", 8192, 8192, 4.0, (Target("pool"),), (Price(1, 0, 0, 0),))
    policy = PolicyEntry(
        "p", 1, "", WorkClass.STANDARD, 8192, 1, {}, FailurePolicy(), OutagePolicy()
    )
    return Snapshot(SCHEMA_VERSION, 1, 0, policy, {}, {}, {"model": model}, {}, {"pool": pool})


@dataclass
class Twin:
    """The real fleet, told what the simulated gateway was told."""

    fleet: Fleet = field(default_factory=Fleet)
    choices: int = 0
    differences: list[str] = field(default_factory=list)

    def choose(self, need: Need, now_s: float) -> Choice | None:
        self.choices += 1
        return select(self.fleet.groups("model"), need, now_s)


class Twinned(front.Gateway):
    """A simulated gateway that tells its twin everything, and compares each choice."""

    twin: Twin

    def _choose(self, flight: front.Flight, groups: list[Group]) -> Candidate | None:
        mine = super()._choose(flight, groups)
        amounts = flight.amounts
        need = Need(
            flight.id,
            amounts.input_tokens,
            amounts.kv_tokens,
            flight.attempts,
            tried=flight.tried,
        )
        real = self.twin.choose(need, self.events.now_s)
        if (mine and mine.id) != (real and real.candidate.id):
            self.twin.differences.append(flight.id)
        return mine

    def _real(self, flight: front.Flight) -> Candidate:
        return self.twin.fleet.endpoints[flight.station].candidate

    def _send(self, flight: front.Flight, candidate: Candidate) -> None:
        self.twin.fleet.endpoints[candidate.id].began(flight.amounts.kv_tokens)
        super()._send(flight, candidate)

    def _release(self, flight: front.Flight) -> Candidate:
        self.twin.fleet.endpoints[flight.station].ended(flight.amounts.kv_tokens)
        return super()._release(flight)

    def _failed(
        self, flight: front.Flight, verdict: Verdict, outcome: Outcome = Outcome.FAILURE
    ) -> None:
        if verdict.counts:
            self._real(flight).breaker.observe(outcome, self.events.now_s)
        if verdict.pause_s:
            self._real(flight).paused_until_s = self.events.now_s + verdict.pause_s
        super()._failed(flight, verdict, outcome)

    def done(self, flight: front.Flight, generation: Generation) -> None:
        self._real(flight).breaker.observe(Outcome.SUCCESS, self.events.now_s)
        super().done(flight, generation)

    def _probed(self, candidate: Candidate) -> None:
        real = self.twin.fleet.endpoints[candidate.id].candidate.breaker
        station = self.stations[candidate.id]
        real.probe_ended(self.events.now_s, succeeded=not (station.is_lost or station.is_hung))
        super()._probed(candidate)

    def report(self, name: str, load: tuple[int, int, float]) -> None:
        super().report(name, load)
        mine = self.candidates[name].report
        assert mine is not None
        at_ms = MONDAY_MS + round(self.events.now_s * 1000)
        running, waiting, ratio = load
        state = EndpointState(name, "pool", at_ms, mine.health, "", running, waiting, ratio)
        told = PoolState("pool", at_ms, [state])
        self.twin.fleet.take_report(told, self.events.now_s, at_ms)


@pytest.mark.parametrize("seed", [1, 2])
def test_every_choice_is_the_real_fleets(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    replicas = fleet(REFERENCE, 3)
    twin = Twinned.twin = Twin()
    twin.fleet.take_snapshot(snapshot([one.id for one in replicas]), 0.0, 0)
    for endpoint in twin.fleet.endpoints.values():
        endpoint.candidate.ready_at_s = sight.LONG_AGO_S
    monkeypatch.setattr(simulation, "Gateway", Twinned)
    scenario = Scenario(
        replicas,
        30.0,
        clients=ClientSpec(patience_s=4.0, retries=1, backoff_s=0.1),
        policy=PolicySpec(failures=FailurePolicy(resend_before_output=True), first_token_s=3.0),
        faults=(
            FaultSpec(8.0, "e0", Fault.HUNG),
            FaultSpec(15.0, "e1", Fault.SLOW, 3.0),
        ),
    )
    phase = Phase(0.0, 25.0, 60.0, lognormal(800.0, 1.0, 6000), exponential(80.0))
    run = simulation.Run(scenario, stream([phase], seed), seed).to_end()
    assert twin.differences == []
    assert twin.choices > 1400
    for name, endpoint in twin.fleet.endpoints.items():
        mine = run.gateways[0].candidates[name]
        assert endpoint.candidate.breaker.phase is mine.breaker.phase
        assert (endpoint.candidate.in_flight, endpoint.candidate.held_tokens) == (
            mine.in_flight,
            mine.held_tokens,
        )

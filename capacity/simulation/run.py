"""The loop: a workload, gateways that decide by `routing.decision`, a fleet, measures.

    run = Run(scenario, arrivals, seed)
    while run.advance(EVENTS): ...   # the caller may show progress, or stop
    run.report()

The same scenario, arrivals and seed give the same report, to the last digit.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from capacity.simulation.book import Book
from capacity.simulation.chance import Chance
from capacity.simulation.events import Events
from capacity.simulation.flight import Flight, amounts_of
from capacity.simulation.front import Gateway
from capacity.simulation.measures import Measures
from capacity.simulation.pair import Pair
from capacity.simulation.requests import Generation
from capacity.simulation.scenario import Fault, FaultSpec, ReplicaSpec, Scenario
from capacity.simulation.station import Station
from capacity.simulation.workload import Arrival, Session
from routing.decision.types import Refusal

MODEL: Final = "model"
MOST_BACKOFF_S: Final = 30.0


@dataclass(slots=True, eq=False)
class _Job:
    """What a client wants, over all its tries."""

    arrival: Arrival
    tries: int = 0
    is_served: bool = False
    is_abandoned: bool = False


class Run:
    """One run. Memory grows with what is in flight and with the number of slices, not with time."""

    def __init__(self, scenario: Scenario, arrivals: Iterable[Arrival], seed: int) -> None:
        """`arrivals` are read one by one, in order of time."""
        self.scenario = scenario
        self.seed = seed
        self.events = Events()
        self.measures = Measures()
        self._arrivals: Iterator[Arrival] = iter(arrivals)
        self._chance = Chance(seed).fork("clients")
        self._tenants = {tenant.id: tenant for tenant in scenario.tenants}
        self._flights: dict[str, tuple[Gateway, Flight]] = {}
        self._count = 0
        self._digest = hashlib.sha256()
        self.jobs = 0
        self.last_end_s = 0.0  # when the last call so far ended, however
        self.book = Book(scenario.tenants, MODEL, scenario.start_ms)
        self.stations: dict[str, Station | Pair] = {
            spec.id: self._station(spec) for spec in scenario.replicas
        }
        self.gateways = [
            Gateway(
                f"g{number}",
                scenario.policy,
                self.events,
                self.stations,
                self.book,
                self._tenants,
                self._ended,
            )
            for number in range(scenario.gateways)
        ]
        self._plan()

    def _station(self, spec: ReplicaSpec) -> Station | Pair:
        if spec.prefill is None:
            return Station(spec, self.events, self._first, self._done)
        return Pair(spec, spec.prefill, self.events, self._first, self._done)

    def _plan(self) -> None:
        events, scenario = self.events, self.scenario
        for spec in scenario.replicas:
            if spec.ready_at_s <= 0:
                self._ready(spec)
            elif spec.ready_at_s <= scenario.until_s:
                events.at(spec.ready_at_s, self._ready, spec)
        for fault in scenario.faults:
            events.at(fault.at_s, self._strike, fault)
        if scenario.from_s > 0:
            events.at(scenario.from_s, self.measures.clear)
        events.at(0.0, self._scrape)
        self._read_next()

    # -- progress

    def advance(self, most_events: int) -> bool:
        """Up to `most_events` events; False when the run is over."""
        return self.events.run(self.scenario.until_s, most_events)

    def to_end(self) -> "Run":
        """All of it at once."""
        while self.advance(1 << 20):
            pass
        return self

    @property
    def progress_ratio(self) -> float:
        """How much of the virtual time is over, 0..1."""
        return min(1.0, self.events.now_s / self.scenario.until_s)

    @property
    def digest(self) -> str:
        """SHA-256 over every arrival, choice and end, in order: equal only for equal runs."""
        return self._digest.hexdigest()

    def add_session(self, session: Session, at_s: float = 0.0) -> None:
        """Let a session send its first calls from `at_s` on."""
        for arrival in session.next_after(at_s):
            self.events.at(arrival.at_s, self._arrive, arrival)

    # -- clients

    def _read_next(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is not None and arrival.at_s <= self.scenario.until_s:
            self.events.at(arrival.at_s, self._arrive_open, arrival)

    def _arrive_open(self, arrival: Arrival) -> None:
        self._read_next()
        self._arrive(arrival)

    def _arrive(self, arrival: Arrival) -> None:
        self.jobs += 1
        self._try(_Job(arrival))

    def _try(self, job: _Job) -> None:
        arrival, now_s = job.arrival, self.events.now_s
        self._count += 1
        gateway = self.gateways[self._count % len(self.gateways)]
        figures = self.measures.of(arrival.tenant, arrival.work_class)
        figures.arrived += 1
        amounts = amounts_of(arrival, self._tenants.get(arrival.tenant))
        flight = Flight(f"r{self._count}", arrival, job, figures, now_s, amounts)
        self._flights[flight.id] = (gateway, flight)
        job.tries += 1
        patience_s = self.scenario.clients.patience_s
        if patience_s:
            self.events.after(patience_s, self._lose_patience, gateway, flight)
        gateway.accept(flight, resends=job.tries - 1)

    def _lose_patience(self, gateway: Gateway, flight: Flight) -> None:
        if flight.first_s is not None or flight.is_over:
            return
        if self.scenario.clients.hangs_up:
            gateway.leave(flight)
            return
        flight.figures.left += 1
        job: _Job = flight.job
        flight.job = _Job(flight.arrival, is_abandoned=True)
        self._after(job, None)

    def _ended(self, flight: Flight, refusal: Refusal | None) -> None:
        self._flights.pop(flight.id, None)
        self.last_end_s = self.events.now_s
        job: _Job = flight.job
        code = refusal.reason.value if refusal else ""
        tried = flight.tried[-1] if flight.tried else ""
        self._digest.update(f"{flight.id} {tried} {self.events.now_s!r} {code}\n".encode())
        self._after(job, refusal)

    def _after(self, job: _Job, refusal: Refusal | None) -> None:
        """A try is over for its client: the next one, or what comes after the job."""
        clients = self.scenario.clients
        if job.is_abandoned:
            return
        if job.is_served or job.tries > clients.retries or not self._comes_again(refusal):
            self._next_of(job)
            return
        delay_s = min(MOST_BACKOFF_S, clients.backoff_s * 2 ** (job.tries - 1))
        delay_s *= self._chance.unit()
        if refusal is not None and clients.heeds_hints and refusal.retry_after_s is not None:
            delay_s = refusal.retry_after_s
        self.events.after(delay_s, self._try, job)

    def _comes_again(self, refusal: Refusal | None) -> bool:
        """A refusal without a hint says that coming again does not help."""
        heeds = self.scenario.clients.heeds_hints
        return refusal is None or not heeds or refusal.retry_after_s is not None

    def _next_of(self, job: _Job) -> None:
        session = job.arrival.session
        if session is not None:
            self.add_session(session, self.events.now_s)

    # -- stations

    def _first(self, request_id: str) -> None:
        gateway, flight = self._flights[request_id]
        gateway.first(flight)

    def _done(self, request_id: str, generation: Generation) -> None:
        gateway, flight = self._flights[request_id]
        flight.job.is_served = True
        self._measure(flight)
        gateway.done(flight, generation)

    def _measure(self, flight: Flight) -> None:
        figures, now_s = flight.figures, self.events.now_s
        figures.ok += 1
        figures.e2e.add(now_s - flight.accepted_s)
        slo = self.scenario.slos[flight.arrival.work_class]
        first_s = flight.first_s if flight.first_s is not None else now_s
        itl_s = (now_s - first_s) / max(1, flight.made_tokens - 1)
        if first_s - flight.accepted_s <= slo.ttft_s and itl_s <= slo.itl_s:
            figures.met += 1

    def _ready(self, spec: ReplicaSpec) -> None:
        for gateway in self.gateways:
            gateway.list_replica(spec)

    def _strike(self, fault: FaultSpec) -> None:
        station = self.stations[fault.replica]
        if fault.fault is Fault.LOST:
            lost = [self._flights[request_id] for request_id in station.crash()]
            for gateway in self.gateways:
                gateway.residency[fault.replica].forget()
            for gateway, flight in lost:
                gateway.lost(flight)
        elif fault.fault is Fault.BACK:
            station.come_back()
        elif fault.fault is Fault.HUNG:
            station.hang()
        else:
            station.slow_down(fault.factor)

    def _scrape(self) -> None:
        running = waiting = 0
        kv_ratio = 0.0
        for name, station in self.stations.items():
            load = station.load()
            running, waiting = running + load.running, waiting + load.waiting
            kv_ratio += load.kv_ratio
            for gateway in self.gateways:
                if name in gateway.candidates:
                    gateway.report(name, load)
        self.measures.sample(running, waiting, kv_ratio / len(self.stations))
        for gateway in self.gateways:
            gateway.tick()
        self.events.after(self.scenario.scrape_s, self._scrape)

    # -- what it shows

    def report(self) -> dict[str, Any]:
        """Figures of everything that ended from `from_s` on, as JSON values."""
        span_s = self.scenario.until_s - self.scenario.from_s
        measures = self.measures
        samples = max(1, measures.samples)
        weights = {name: tenant.weight for name, tenant in self._tenants.items()}
        total = measures.total()
        footprint = self.scenario.footprint()
        return {
            "seed": self.seed,
            "digest": self.digest,
            "virtual_s": self.scenario.until_s,
            "measured_s": span_s,
            "jobs": self.jobs,
            "events": self.events.total,
            "total": total.as_json(span_s),
            "slices": {
                f"{tenant}/{work_class.value}": one.as_json(span_s)
                for (tenant, work_class), one in sorted(measures.slices.items())
            },
            "jain": measures.jain(weights),
            "kv_ratio_mean": measures.kv_ratio_sum / samples,
            "kv_ratio_max": measures.kv_ratio_max,
            "running_mean": measures.running_sum / samples,
            "waiting_mean": measures.waiting_sum / samples,
            "energy_kwh": footprint and footprint.energy_kwh,
            "gco2e": footprint and footprint.total_g,
            "per_answer": {
                "spend_nanousd": total.spend_nanousd / total.ok if total.ok else None,
                "gco2e": footprint.total_g / total.ok if footprint and total.ok else None,
            },
        }


def report_digest(report: dict[str, Any]) -> str:
    """SHA-256 of a report, whatever the order of its names."""
    return hashlib.sha256(json.dumps(report, sort_keys=True).encode()).hexdigest()

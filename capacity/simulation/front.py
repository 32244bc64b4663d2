"""A gateway in virtual time: the steps of `routing.gateway.walk`, deciding by the same functions.

reserve -> queue -> route -> send -> first token -> settle. What the real one does with sockets is
here a call of a `Station`; candidates, breakers, budgets and counters are the gateway's own types,
kept as its `Fleet` and `Relay` keep them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from capacity.simulation.book import Book
from capacity.simulation.events import Events
from capacity.simulation.flight import (
    FULL,
    NOBODY,
    RESENT,
    SHED,
    TOO_LARGE,
    TOO_LATE,
    Ended,
    Flight,
)
from capacity.simulation.pair import Pair
from capacity.simulation.requests import EngineRequest, Generation, NeverFitsError
from capacity.simulation.scenario import Order, PolicySpec, ReplicaSpec, Route, TenantSpec
from capacity.simulation.sight import candidate_of, is_pressed, step_model
from capacity.simulation.station import Load, Station
from capacity.simulation.waiting import Waiting
from capacity.simulation.workload import Arrival
from routing.contracts.enums import ReplicaHealth
from routing.contracts.pricing import spend_nanousd
from routing.decision.breaker import Outcome
from routing.decision.fairness import work_of
from routing.decision.filters import Candidate, Need, Report
from routing.decision.predict import Ahead, StepModel, most_with_affinity, scorer, ttft_s
from routing.decision.residency import Residency, entries_for
from routing.decision.retry import Kind, RetryBudgets, Verdict, judge, judge_unreached, may_resend
from routing.decision.select import Group, select
from routing.decision.types import Amounts, Reason, Refusal

PROBE_S: Final = 0.1


@dataclass(slots=True)
class Gateway:
    """One gateway: its own view of the fleet, over shared stations and the shared book."""

    id: str
    policy: PolicySpec
    events: Events
    stations: Mapping[str, Station | Pair]
    book: Book
    tenants: dict[str, TenantSpec]
    ended: Ended
    live: dict[str, Flight] = field(default_factory=dict)
    candidates: dict[str, Candidate] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    budgets: RetryBudgets = field(init=False)
    waiting: Waiting = field(init=False)
    ahead: dict[str, Ahead] = field(default_factory=dict)
    residency: dict[str, Residency] = field(default_factory=dict)
    models: dict[str, StepModel] = field(default_factory=dict)
    in_flight: int = 0
    _turn: int = 0

    def __post_init__(self) -> None:
        """Empty budgets and queue."""
        failures = self.policy.failures
        self.budgets = RetryBudgets(failures.retry_per_success, failures.retry_burst)
        weights = {name: tenant.weight for name, tenant in self.tenants.items()}
        self.waiting = Waiting(self.policy.order, weights)

    def list_replica(self, spec: ReplicaSpec) -> None:
        """A replica takes work from now on."""
        profile = spec.profile
        self.candidates[spec.id] = candidate_of(spec)
        self.ahead[spec.id] = Ahead()
        entries = entries_for(profile.kv_tokens, profile.block_tokens)
        self.residency[spec.id] = Residency(entries)
        self.models[spec.id] = step_model(profile)
        by_pool: dict[str, list[Candidate]] = {}
        for one in self.candidates.values():
            by_pool.setdefault(one.pool, []).append(one)
        self.groups = [Group(1, 1.0, members) for members in by_pool.values()]
        self.dispatch()

    # -- a call comes

    def accept(self, flight: Flight, *, resends: int) -> None:
        """Reserve, then queue or send."""
        arrival, policy = flight.arrival, self.policy
        if resends and policy.resends_cost and not self._may_resend(arrival.tenant):
            self._end(flight, RESENT)
            return
        if policy.pressure_s and is_pressed(
            arrival.work_class, policy.pressure_s, self.candidates, self.models, self.ahead
        ):
            self._end(flight, SHED)
            return
        held = self.book.reserve(
            arrival.tenant, arrival.work_class, flight.amounts, self.events.now_s
        )
        if isinstance(held, Refusal):
            self._end(flight, held)
            return
        flight.held = held
        self.live[flight.id] = flight
        if policy.order is Order.NONE:
            self._route(flight, NOBODY)
            return
        work = work_of(arrival.input_tokens, 0, policy.output_q50_tokens)
        self.waiting.put(flight.id, arrival.tenant, work, self.events.now_s, policy.queue_limit_s)
        self.dispatch()

    def _may_resend(self, tenant: str) -> bool:
        return self.budgets.take(self.groups[0].candidates[0].pool, tenant) if self.groups else True

    def dispatch(self) -> None:
        """Send what is queued, in the queue's order, while a replica has room."""
        while len(self.waiting) and (open_groups := self._with_room()):
            costs = self.waiting.is_by_cost
            chosen = self.waiting.next(self.events.now_s, self._least_uncached if costs else None)
            if chosen is None:
                return
            self._route(self.live[chosen], NOBODY, open_groups)

    def _with_room(self) -> list[Group]:
        """Groups of the replicas that have less uncomputed prompt than their bound."""
        found = []
        for group in self.groups:
            members = [
                one
                for one in group.candidates
                if self.ahead[one.id].queued_tokens
                < (self.policy.room_tokens or self.models[one.id].budget_tokens)
                and not self._is_full(one)
                and one.breaker.allows()
            ]
            if members:
                found.append(group._replace(candidates=members))
        return found

    def _least_uncached(self, request_id: str) -> float:
        arrival = self.live[request_id].arrival
        hit = max(self._hit(name, arrival) for name in self.candidates)
        return float(arrival.input_tokens - hit)

    def _is_full(self, candidate: Candidate) -> bool:
        most = self.policy.most_in_flight
        return bool(most) and candidate.in_flight >= most

    def _hit(self, replica: str, arrival: Arrival) -> int:
        if not arrival.hashes:
            return 0
        size = self.stations[replica].spec.profile.block_tokens
        return self.residency[replica].held(arrival.hashes) * size

    # -- route, send

    def _route(self, flight: Flight, otherwise: Refusal, groups: list[Group] | None = None) -> None:
        groups = self.groups if groups is None else groups
        if self.policy.most_in_flight:
            groups = [
                group._replace(candidates=[c for c in group.candidates if not self._is_full(c)])
                for group in groups
            ]
            otherwise = FULL if otherwise is NOBODY else otherwise
        chosen = self._choose(flight, groups)
        if chosen is None or (
            flight.attempts and not self.budgets.take(chosen.pool, flight.arrival.tenant)
        ):
            self._give_up(flight, otherwise)
            return
        if self._is_shed(flight, chosen):
            self._give_up(flight, SHED)
            return
        self._send(flight, chosen)

    def _choose(self, flight: Flight, groups: list[Group]) -> Candidate | None:
        now_s = self.events.now_s
        if self.policy.route is Route.ROUND_ROBIN:
            return self._in_turn(flight, groups)
        amounts = flight.amounts
        need = Need(
            flight.id,
            amounts.input_tokens,
            amounts.kv_tokens,
            flight.attempts,
            tried=flight.tried,
        )
        if self.policy.route is Route.CORE:
            choice = select(groups, need, now_s)
        else:
            score = scorer(
                self.models.__getitem__,
                self.ahead.__getitem__,
                lambda name: self._hit(name, flight.arrival),
                output_q50_tokens=self.policy.output_q50_tokens,
                affinity_most=most_with_affinity(self.in_flight, len(self.candidates)),
            )
            choice = select(groups, need, now_s, score)
        return choice.candidate if choice else None

    def _in_turn(self, flight: Flight, groups: list[Group]) -> Candidate | None:
        able = [
            one
            for group in groups
            for one in group.candidates
            if one.breaker.allows() and one.id not in flight.tried
        ]
        if not able:
            return None
        self._turn += 1
        return able[self._turn % len(able)]

    def _is_shed(self, flight: Flight, candidate: Candidate) -> bool:
        limit_s = self.policy.shed_ttft_s
        if not limit_s:
            return False
        tokens = flight.arrival.input_tokens
        hit = min(self._hit(candidate.id, flight.arrival), tokens - 1)
        ahead = self.ahead[candidate.id]
        return ttft_s(self.models[candidate.id], ahead, tokens, hit) > limit_s

    def _send(self, flight: Flight, candidate: Candidate) -> None:
        arrival, name = flight.arrival, candidate.id
        flight.attempts += 1
        flight.figures.attempts += 1
        flight.tried += (name,)
        flight.station, flight.sent_s = name, self.events.now_s
        flight.uncached = arrival.input_tokens - self._hit(name, arrival)
        candidate.in_flight += 1
        candidate.held_tokens += flight.amounts.kv_tokens
        self.in_flight += 1
        self.ahead[name].sent(flight.uncached)
        station = self.stations[name]
        if station.is_lost:  # the connection is refused
            self._failed(flight, judge_unreached())
            return
        if arrival.hashes:
            self.residency[name].sent(arrival.hashes)
        request = EngineRequest(
            flight.id, arrival.input_tokens, arrival.output_tokens, block_hashes=arrival.hashes
        )
        try:
            station.submit(request, flight)
        except NeverFitsError:
            verdict = Verdict(Kind.CALLER, TOO_LARGE, counts=False)
            self._failed(flight, verdict)

    # -- what became of it

    def first(self, flight: Flight) -> None:
        """Its first token is here."""
        now_s = self.events.now_s
        flight.first_s = now_s
        flight.figures.ttft.add(now_s - flight.accepted_s)
        self.ahead[flight.station].started(flight.uncached, flight.arrival.input_tokens)
        if len(self.waiting):
            self.dispatch()

    def done(self, flight: Flight, generation: Generation) -> None:
        """The answer is whole."""
        candidate = self._release(flight)
        candidate.breaker.observe(Outcome.SUCCESS, self.events.now_s)
        arrival = flight.arrival
        self.budgets.succeeded(candidate.pool, arrival.tenant)
        self._settle(flight, generation.cached_tokens)
        self._end(flight, None)

    def lost(self, flight: Flight) -> None:
        """Its replica died. What had begun is cut, the rest may go elsewhere."""
        if flight.first_s is None:
            self._failed(flight, judge(502, "", None, is_draining=False))
            return
        candidate = self._release(flight)
        candidate.breaker.observe(Outcome.FAILURE, self.events.now_s)
        self._settle(flight, 0)
        flight.figures.refused["cut"] += 1
        self._end(flight, None)

    def leave(self, flight: Flight) -> None:
        """Its caller left: close the upstream, charge what was used."""
        if flight.is_over:
            return
        flight.figures.left += 1
        if flight.station:
            self.stations[flight.station].abort(flight.id)
            self._release(flight)
            self._settle(flight, 0)
        else:
            self.waiting.drop(flight.id)
            self._settle(flight, None)
        self._end(flight, None)

    def tick(self) -> None:
        """Deadlines, queue limits and probes; called once a scrape."""
        now_s, limit_s = self.events.now_s, self.policy.first_token_s
        late = [
            one
            for one in self.live.values()
            if one.station and one.first_s is None and now_s - one.sent_s >= limit_s
        ]
        for flight in late:
            self.stations[flight.station].abort(flight.id)
            refusal = Refusal(Reason.UPSTREAM_TIMEOUT, "No first token within its limit.")
            self._failed(flight, Verdict(Kind.LOST, refusal), Outcome.HUNG)
        for request_id in self.waiting.expired(now_s):
            self._give_up(self.live[request_id], TOO_LATE)
        for candidate in self.candidates.values():
            if candidate.breaker.wants_probe(now_s):
                candidate.breaker.probe_started()
                self.events.after(PROBE_S, self._probed, candidate)
        self.dispatch()

    def report(self, name: str, load: Load) -> None:
        """What the collector says of a replica: running, waiting, KV ratio."""
        candidate, station = self.candidates[name], self.stations[name]
        health = ReplicaHealth.LOST if station.is_lost else ReplicaHealth.OK
        candidate.report = Report(self.events.now_s, health, *load, candidate.in_flight)

    def _probed(self, candidate: Candidate) -> None:
        station = self.stations[candidate.id]
        succeeded = not (station.is_lost or station.is_hung)
        candidate.breaker.probe_ended(self.events.now_s, succeeded=succeeded)
        if succeeded:
            self.dispatch()

    def _failed(self, flight: Flight, verdict: Verdict, outcome: Outcome = Outcome.FAILURE) -> None:
        """Nothing was sent to the caller: try elsewhere if policy and budget allow it."""
        now_s = self.events.now_s
        candidate = self._release(flight)
        if verdict.counts and self.policy.has_breaker:
            candidate.breaker.observe(outcome, now_s)
        if verdict.pause_s:
            candidate.paused_until_s = now_s + verdict.pause_s
        flight.was_lost = flight.was_lost or verdict.kind is Kind.LOST
        flight.made_tokens = 0
        failures = self.policy.failures
        if may_resend(
            verdict,
            attempts=flight.attempts,
            max_attempts=failures.attempts,
            resend_lost=failures.resend_before_output,
        ):
            self._route(flight, verdict.refusal)
        else:
            self._give_up(flight, verdict.refusal)

    def _release(self, flight: Flight) -> Candidate:
        candidate = self.candidates[flight.station]
        candidate.in_flight -= 1
        candidate.held_tokens -= flight.amounts.kv_tokens
        self.in_flight -= 1
        self.ahead[flight.station].ended(
            flight.uncached, flight.arrival.input_tokens, has_started=flight.first_s is not None
        )
        flight.station = ""
        return candidate

    def _give_up(self, flight: Flight, refusal: Refusal) -> None:
        self.waiting.drop(flight.id)
        self._settle(flight, None)
        self._end(flight, refusal)

    def _settle(self, flight: Flight, cached: int | None) -> None:
        """End the reservation; `cached` None: nothing was used."""
        held, flight.held = flight.held, None
        if held is None:
            return
        arrival, figures = flight.arrival, flight.figures
        if cached is None:
            self.book.settle(held, None)
            return
        made, tokens = flight.made_tokens, arrival.input_tokens
        spend = 0
        if (tenant := self.tenants.get(arrival.tenant)) is not None:
            spend = spend_nanousd(tenant.price, tokens, cached, made)
        self.book.settle(held, Amounts(tokens, made, spend, 0))
        work = work_of(tokens - cached, cached, made)
        figures.input_tokens += tokens
        figures.cached_tokens += cached
        figures.output_tokens += made
        figures.spend_nanousd += spend
        figures.work += work
        self.waiting.settled(flight.id, work)

    def _end(self, flight: Flight, refusal: Refusal | None) -> None:
        flight.is_over = True
        self.live.pop(flight.id, None)
        if refusal is not None:
            flight.figures.refused[refusal.reason.value] += 1
        self.ended(flight, refusal)
        if len(self.waiting):
            self.dispatch()

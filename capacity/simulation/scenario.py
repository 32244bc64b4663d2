"""What a simulation is given: plain values, so that a run is known by its scenario and its seed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from capacity.simulation.profiles import EngineProfile
from routing.contracts.enums import WorkClass
from routing.contracts.snapshot import FailurePolicy, Limit, Price
from telemetry.stats.carbon import Footprint, Inputs, footprint

NO_PRICE = Price(0, 0, 0, 0)
MONDAY_MS = 1_767_571_200_000  # 5 January 2026, 00:00 UTC: where a run's time 0 stands by default


class Route(StrEnum):
    """How an endpoint is chosen: as gateways do today, by predicted TTFT, or in turn."""

    CORE = "core"
    PREDICTED = "predicted"
    ROUND_ROBIN = "round_robin"


class Order(StrEnum):
    """Who goes first when replicas have no room; `NONE` sends at once, as gateways do today."""

    NONE = "none"
    FCFS = "fcfs"
    VTC = "vtc"
    DLPM = "dlpm"


class Fault(StrEnum):
    """What happens to a replica."""

    LOST = "lost"
    BACK = "back"
    HUNG = "hung"
    SLOW = "slow"


@dataclass(frozen=True, slots=True)
class PrefillPart:
    """An engine that computes a replica's prompts, and how long each token's KV takes to move."""

    profile: EngineProfile
    transfer_s_per_token: float


@dataclass(frozen=True, slots=True)
class Electricity:
    """What a replica's footprint stands on: its GPUs, the power of one, and the site."""

    gpus: int
    inputs: Inputs


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """One replica; it takes work from `ready_at_s` on. With `prefill` its profile only decodes."""

    id: str
    profile: EngineProfile
    pool: str = "pool"
    ready_at_s: float = 0.0
    prefill: PrefillPart | None = None
    electricity: Electricity | None = None


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """At `at_s` something happens to a replica; `factor` is how much slower a slow one is."""

    at_s: float
    replica: str
    fault: Fault
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """A tenant's limits, its weight in queues, and what its tokens cost."""

    id: str
    limits: tuple[Limit, ...] = ()
    weight: float = 1.0
    price: Price = NO_PRICE


@dataclass(frozen=True, slots=True)
class ClientSpec:
    """How callers behave: `patience_s` is how long they wait for the first token (0: for ever).

    After a refusal, a failure or their own time-out they come again at most `retries` times, after
    the gateway's hint if they heed it, else after `backoff_s * 2^n` with full jitter. One that does
    not hang up (a proxy keeps its connection) leaves its abandoned call running.
    """

    patience_s: float = 0.0
    retries: int = 0
    backoff_s: float = 0.5
    heeds_hints: bool = True
    hangs_up: bool = True


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """What the gateways are told.

    `shed_ttft_s` refuses when the best predicted TTFT is above it, `most_in_flight` bounds a
    replica, `pressure_s` is the queue that counts as full for the classes' ceilings
    (`decision.shed`); each off at 0. `resends_cost`: a client's resend takes of the retry budget,
    and is refused without. `room_tokens` is how much uncomputed prompt a replica may have before a
    queue holds the next back (0: one step's budget). `first_token_s` is the deadline after which an
    endpoint counts as hung.
    """

    route: Route = Route.CORE
    order: Order = Order.NONE
    shed_ttft_s: float = 0.0
    pressure_s: float = 0.0
    most_in_flight: int = 0
    failures: FailurePolicy = field(default_factory=FailurePolicy)
    resends_cost: bool = False
    has_breaker: bool = True
    first_token_s: float = 60.0
    queue_limit_s: float = 60.0
    room_tokens: int = 0
    output_q50_tokens: int = 200


@dataclass(frozen=True, slots=True)
class Slo:
    """Targets of one request, in seconds: its first token and its mean gap between tokens."""

    ttft_s: float
    itl_s: float


DEFAULT_SLOS: Mapping[WorkClass, Slo] = {
    WorkClass.INTERACTIVE: Slo(0.5, 0.05),
    WorkClass.STANDARD: Slo(2.0, 0.1),
    WorkClass.BATCH: Slo(float("inf"), float("inf")),
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """One experiment without its workload.

    It ends at `until_s`; what ended before `from_s` is not measured. `scrape_s` is how often
    gateways hear of their replicas, `start_ms` the Unix time of second 0 (windows of limits).
    """

    replicas: tuple[ReplicaSpec, ...]
    until_s: float
    from_s: float = 0.0
    tenants: tuple[TenantSpec, ...] = ()
    clients: ClientSpec = ClientSpec()
    policy: PolicySpec = PolicySpec()
    faults: tuple[FaultSpec, ...] = ()
    slos: Mapping[WorkClass, Slo] = field(default_factory=lambda: DEFAULT_SLOS)
    gateways: int = 1
    scrape_s: float = 1.0
    start_ms: int = MONDAY_MS

    def footprint(self) -> Footprint | None:
        """Of the fleet while it is measured, busy or idle, a replica's from when it takes work.

        None unless every replica says what it runs on: unknown is not nothing.
        """
        total = Footprint()
        for one in self.replicas:
            if one.electricity is None:
                return None
            powered_s = max(0.0, self.until_s - max(self.from_s, one.ready_at_s))
            part = footprint(powered_s * one.electricity.gpus, one.electricity.inputs)
            total = total.plus(part)
        return total

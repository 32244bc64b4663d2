"""Reasons why an endpoint cannot take a request: hard ones, and those that load alone gives."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from routing.contracts.enums import ReplicaHealth
from routing.decision.breaker import Breaker, Phase

if TYPE_CHECKING:
    from routing.decision.affinity import Affinity


SLOW_START_S: Final = 60.0  # where the policy does not say


class Why(StrEnum):
    """Why an endpoint is passed over."""

    TRIED = "tried"
    DRAINING = "draining"
    NO_WEIGHT = "no_weight"
    PAUSED = "paused"
    BREAKER = "breaker"
    SLOW_START = "slow_start"
    LOST = "lost"
    KV_FULL = "kv_full"
    NO_ADAPTER = "no_adapter"
    REGION = "region"
    SLOW = "slow"


@dataclass(frozen=True, slots=True)
class Report:
    """What the collector last said of an endpoint; None fields are unknown, never zero.

    `at_s` is the gateway's monotonic time of the scrape, `own_in_flight` what this gateway had
    there when it took the report in.
    """

    at_s: float
    health: ReplicaHealth
    running: int | None
    waiting: int | None
    kv_usage_ratio: float | None
    own_in_flight: int


@dataclass(slots=True)
class Candidate:
    """An endpoint as its gateway keeps it: mutable, read by the rules, never written by them.

    `ready_at_s` is since when it serves: since it became ready, or recovered. `paused_until_s` is
    set by an upstream's 429; `in_flight` and `held_tokens` are this gateway's own unfinished work
    there. `adapters` are the names that it lists as loaded beside its own model; None: it was not
    asked, or has not answered yet. `adapter_breakers` judge what it does for one of those.
    `in_failing_region` and `pace_ratio` come from its neighbours: see `regions` and `outlier`.
    """

    id: str
    pool: str
    breaker: Breaker
    kv_capacity_tokens: int = 0
    is_draining: bool = False
    ready_at_s: float = 0.0
    paused_until_s: float = 0.0
    in_flight: int = 0
    held_tokens: int = 0
    report: Report | None = None
    adapters: frozenset[str] | None = None
    adapter_breakers: dict[str, Breaker] = field(default_factory=dict)
    in_failing_region: bool = False
    pace_ratio: float = 1.0


@dataclass(slots=True)
class Need:
    """What the choice must satisfy; built once an attempt and never changed (not frozen: the cost).

    `tried` are endpoints that this request already failed on; `affinity` its past, if it has one.
    `slow_start_s` is the policy's.
    """

    request_id: str
    input_tokens: int
    kv_tokens: int
    attempt: int = 0
    stale_after_s: float = 3.0
    tried: tuple[str, ...] = ()
    affinity: "Affinity | None" = None
    slow_start_s: float = SLOW_START_S


class Load(NamedTuple):
    """Load of an endpoint as far as it is known; `kv_ratio` counts this request as there.

    Stale: nothing recent was reported, so all of it is this gateway's own accounting.
    """

    is_stale: bool
    running: int
    waiting: int
    kv_ratio: float


KV_FULL_RATIO = 1.0


def load_of(candidate: Candidate, need: Need, now_s: float) -> Load:
    """Own work in progress, and what the report shows beyond it.

    Others' work is what was reported above our own at that moment. KV usage reported with nothing
    running or waiting is cache that yields, so it counts as free.
    """
    own = candidate.in_flight
    capacity = candidate.kv_capacity_tokens
    kv_own = (candidate.held_tokens + need.kv_tokens) / capacity if capacity > 0 else 0.0
    report = candidate.report
    if report is None or now_s - report.at_s > need.stale_after_s:
        return Load(True, own, 0, kv_own)
    waiting = report.waiting or 0
    reported = (report.running or 0) + waiting
    if reported and report.kv_usage_ratio is not None:
        kv_own = max(kv_own, report.kv_usage_ratio + (need.kv_tokens / capacity if capacity else 0))
    total = own + max(0, reported - report.own_in_flight)
    waiting = min(waiting, total)
    return Load(False, total - waiting, waiting, kv_own)


def why_not(  # noqa: PLR0911 one line a reason, in order, is the clearest form
    candidate: Candidate, weight: float, need: Need, load: Load, now_s: float
) -> Why | None:
    """First reason that rules the endpoint out, or None; some are soft: see `select`."""
    if candidate.id in need.tried:
        return Why.TRIED
    if candidate.is_draining:
        return Why.DRAINING
    if weight <= 0:
        return Why.NO_WEIGHT
    if candidate.paused_until_s > now_s:
        return Why.PAUSED
    if candidate.breaker.phase is Phase.OPEN:
        return Why.BREAKER
    if candidate.report is not None and candidate.report.health is ReplicaHealth.LOST:
        return Why.LOST
    if candidate.in_failing_region:
        return Why.REGION
    if candidate.pace_ratio == 0:
        return Why.SLOW
    if load.kv_ratio > KV_FULL_RATIO:
        return Why.KV_FULL
    return None

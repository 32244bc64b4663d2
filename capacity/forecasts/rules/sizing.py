"""How many replicas a demand needs, and what binds (decision-core, section 2).

First cut by the closed forms of `capacity.simulation.closed_forms`. Compute is spent up to the
utilisation that keeps mean ITL in its target, KV up to `KV_SHARE` of what fits: the engine needs
the rest for prompts that have just arrived.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil, inf

from capacity.simulation.closed_forms import (
    Demand,
    highest_utilisation,
    kv_tokens,
    utilisation,
)
from capacity.simulation.profiles import EngineProfile

KV_SHARE = 0.9
QUARTER = 0.25
_TINY = 1e-9  # a quotient that is whole but for its last bits is that whole number


class Binds(StrEnum):
    """What sets the number of replicas."""

    COMPUTE = "compute"
    KV = "kv"
    LATENCY = "latency"  # no utilisation meets the ITL target: more replicas do not help


@dataclass(frozen=True, slots=True)
class Need:
    """Replicas of a pool. `replicas` is None when no number meets the target."""

    replicas: int | None
    by_compute: float
    by_kv: float
    rps_per_replica: float
    binds: Binds


def need_of(
    profile: EngineProfile,
    demands: Sequence[Demand],
    itl_target_s: float,
    *,
    retry_ratio: float = 0.0,
) -> Need:
    """`R0`: replicas that carry the demand, its resends included, within a mean ITL.

    `retry_ratio` is the retry budget: at worst every request is followed by that share of another.
    """
    planned = [replace(it, rate_rps=it.rate_rps * (1 + retry_ratio)) for it in demands]
    rate = sum(demand.rate_rps for demand in planned)
    allowed = highest_utilisation(profile.times, itl_target_s)
    if allowed <= 0:
        return Need(None, inf, inf, 0.0, Binds.LATENCY)
    by_compute = utilisation(profile.times, planned) / allowed
    by_kv = kv_tokens(planned, itl_target_s) / (KV_SHARE * profile.kv_tokens)
    binding = max(by_compute, by_kv)
    return Need(
        replicas=max(1, whole(binding)) if rate else 0,
        by_compute=by_compute,
        by_kv=by_kv,
        rps_per_replica=rate / binding if binding else 0.0,
        binds=Binds.KV if by_kv > by_compute else Binds.COMPUTE,
    )


def whole(value: float) -> int:
    """Rounded up, without paying a replica for the last bits of a quotient."""
    return ceil(value - _TINY)


def with_domain_lost(replicas: int, domains: int) -> int:
    """Replicas over equal domains such that `replicas` stay when one is lost.

    A multiple of `domains`. Raises `ValueError` for one domain: nothing is left of it.
    """
    if domains < 2:
        raise ValueError("losing the only domain leaves nothing: plan a second one")
    return whole(replicas / (1 - 1 / domains) / domains) * domains


def with_share_lost(replicas: int, share: float) -> int:
    """Replicas such that `replicas` stay when `share` of them is lost (0 <= share < 1)."""
    return whole(replicas / (1 - share))


def after_loss(rho: float, share_lost: float) -> float:
    """Utilisation of the rest once `share_lost` of the replicas is gone."""
    return rho / (1 - share_lost)


def highest_before_loss(rho_allowed: float, share_lost: float) -> float:
    """Utilisation to plan at, so that the rest stays within `rho_allowed` after the loss."""
    return rho_allowed * (1 - share_lost)


def share_to_shed(rho: float, rho_allowed: float) -> float:
    """Share of the demand to refuse so that utilisation stays within `rho_allowed`."""
    return max(0.0, 1 - rho_allowed / rho) if rho > 0 else 0.0


def retry_factor(
    failure: float, attempts: int, *, layers: int = 1, budget: float | None = None
) -> float:
    """Load that callers' attempts make of one request.

    Each of `layers` tries up to `attempts` times while it fails; a retry budget keeps each layer
    at `1 + budget` whatever fails.
    """
    factor = sum(failure**number for number in range(attempts))
    if budget is not None:
        factor = min(factor, 1 + budget)
    return float(factor**layers)


@dataclass(frozen=True, slots=True)
class Plan:
    """Replicas now, with one domain lost, and with a quarter lost; the largest is the answer."""

    need: Need
    domain_lost: int | None
    quarter_lost: int | None

    @property
    def replicas(self) -> int | None:
        """The largest; None when no number of replicas meets the target."""
        if self.need.replicas is None:
            return None
        return max(self.need.replicas, self.domain_lost or 0, self.quarter_lost or 0)

    @property
    def set_by(self) -> str:
        """Which of the three asks for the most."""
        if self.need.replicas is None:
            return "latency target"
        if self.domain_lost == self.replicas:
            return "one domain lost"
        if self.quarter_lost == self.replicas:
            return "a quarter lost"
        return "demand"


def plan_of(need: Need, domains: int) -> Plan:
    """What else a need asks for; one domain alone cannot be planned to be lost (None)."""
    if not need.replicas:
        return Plan(need, None, None)
    return Plan(
        need,
        with_domain_lost(need.replicas, domains) if domains > 1 else None,
        with_share_lost(need.replicas, QUARTER),
    )

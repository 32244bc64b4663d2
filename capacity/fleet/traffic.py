"""What part of a pool's requests each replica gets, and may get while its slow start lasts."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from capacity.fleet.selectors import ReplicaRow
from routing.contracts.enums import ReplicaLifecycle
from routing.decision.slow_start import shares, weight_of
from telemetry.replicas.selectors import slow_start_s, tries_of

OVER_S: Final = 60


@dataclass(frozen=True, slots=True)
class Traffic:
    """One replica's part in its pool, as ratios.

    `had_ratio` is of the requests of the last minute; None without any, or while nobody counts.
    `most_ratio` is what its age allows it beside the others that are ready; None if it is not. A
    gateway may allow one that has just recovered less.
    """

    had_ratio: float | None = None
    most_ratio: float | None = None
    is_young: bool = False


def traffic_of(replicas: Sequence[ReplicaRow], now: datetime) -> dict[str, Traffic]:
    """By replica's name; two round trips to the store."""
    now_ms = int(now.timestamp() * 1000)
    tries = tries_of(
        [one.name for one in replicas], since_ms=now_ms - OVER_S * 1000, until_ms=now_ms
    )
    counted = {name: one.requests for name, one in (tries or {}).items()}
    total = sum(counted.values())
    ready = [one for one in replicas if one.lifecycle == ReplicaLifecycle.READY]
    lasts_s = slow_start_s()
    weights = [weight_of((now - one.since).total_seconds(), lasts_s) for one in ready]
    most = dict(zip((one.name for one in ready), shares(weights), strict=True))
    young = {one.name for one, weight in zip(ready, weights, strict=True) if weight < 1}
    return {
        one.name: Traffic(
            had_ratio=counted[one.name] / total if total and one.name in counted else None,
            most_ratio=most.get(one.name),
            is_young=one.name in young,
        )
        for one in replicas
    }

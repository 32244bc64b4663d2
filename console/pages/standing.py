"""Where the installation stands now, for the overview's page and its REST counterpart."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from capacity.fleet.grid import PoolSums, sums_of
from capacity.fleet.selectors import fleet_page
from capacity.playbooks.selectors import active_runs
from capacity.rollouts.selectors import off_course
from console.pages import attention
from console.pages.conditions import report, strips_of
from console.pages.figures import Headline, headline
from console.web import live_state
from console.web.keyset import MAX_LIMIT
from console.web.tables import Strip
from routing.overrides.selectors import overrides
from telemetry.economics.rules import Economics
from telemetry.economics.selectors import period
from telemetry.slos.selectors import objectives, states
from tenants.work.rules import Outcomes

TASKS_SINCE = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Standing:
    """What needs a person, worst first; the figures; and the first page of pools."""

    strips: tuple[Strip, ...]
    headline: Headline
    has_objectives: bool
    economics: Economics
    outcomes: Outcomes
    pools: tuple[PoolSums, ...]
    has_more_pools: bool


def standing(now: datetime) -> Standing:
    """Everything of it, in a fixed number of queries."""
    strips = strips_of(report())  # first: what it waits for, nothing below waits for again
    pools = fleet_page(limit=MAX_LIMIT)
    sums = tuple(sums_of(pool) for pool in pools.rows)
    seen = live_state.pool_states(pool.name for pool in pools.rows)
    if seen is not None:
        for pool in pools.rows:
            strips += attention.of_pool(pool.name, seen.get(pool.name), pool.desired_replicas)
    runs = active_runs(attention.MAX_SHOWN)
    strips += attention.of_runs(runs)
    in_force = overrides(only_active=True, limit=attention.MAX_SHOWN).rows
    strips += attention.of_overrides(in_force, runs)
    strips += attention.of_rollouts(off_course(now, attention.MAX_SHOWN))
    promised = objectives()
    strips += attention.of_objectives(states(promised, now=now))
    found = period(now - TASKS_SINCE, now)
    figures = headline(sums, promised, attention.queue_ages(seen or {}))
    return Standing(
        strips=tuple(attention.worst_first([*strips, *attention.of_classes(figures.classes)])),
        headline=figures,
        has_objectives=bool(promised),
        economics=found.economics,
        outcomes=found.outcomes,
        pools=sums,
        has_more_pools=pools.next_after is not None,
    )

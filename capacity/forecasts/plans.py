"""Replicas that each pool's model takes: from its demand, its profile and its failure domains.

Closed forms only (`capacity.forecasts.rules.sizing`); no simulation, so tails are not in it. A pool
is judged as if all replicas of its model were of its kind: those of every pool that serves the
model are counted against the model's demand, and so are their domains.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Q

from capacity.forecasts.history import LEDGER
from capacity.forecasts.rules.backtest import DAY_AHEAD, HOUR_AHEAD
from capacity.forecasts.rules.demand import (
    MEASURED_MINUTES,
    MINUTE,
    Rates,
    Seen,
    binned,
    demands_of,
    measured,
)
from capacity.forecasts.rules.series import HOUR, hour_of
from capacity.forecasts.rules.sizing import Plan, need_of, plan_of
from capacity.models import Forecast, Pool, PoolPlan
from capacity.models.forecast import MEASURES
from capacity.profiles.selectors import pools_with_profile, profile_of
from capacity.simulation.profiles import EngineProfile
from routing.contracts.enums import ReplicaLifecycle
from tenants.ledger.demand import model_hours, model_minutes, served_sizes

POOLS_MAX = 500  # planned in one run
ITL_TARGET_S = 0.050  # mean time between tokens: the interactive class's target
RETRY_RATIO = 0.1  # at worst one request in ten is sent again (the retry budget)
_P95 = 2  # place in a point
DAY_BASIS, HOUR_BASIS = "p95, next 24 h", "p95, next hour"
BUSIEST_BASIS = "busiest of last 24 h"
MINUTES_BASIS, NEW_BASIS = "last {} min", "last {} min, all so far"  # of whole minutes


@dataclass(frozen=True, slots=True)
class Planned:
    """A model's demand in its largest hour, and where it is taken from.

    `rates` None: it began to be asked for less than a whole minute ago.
    """

    basis: str
    rates: Rates | None


def plans_of(run_id: int, now: datetime, as_of: datetime) -> list[PoolPlan]:
    """Unsaved rows of every pool, by name."""
    pools = list(pools_with_profile().select_related("domain").order_by("name")[:POOLS_MAX])
    ready = _ready_counts()
    planned = demand_by_model(now, as_of)
    sizes = served_sizes(since=now - timedelta(days=1))
    seen = {model: binned(rows) for model, rows in sizes.items()}
    rows = []
    for pool in pools:
        peers = [one for one in pools if one.model_id == pool.model_id]
        row = PoolPlan(
            run_id=run_id,
            pool=pool.name,
            model=pool.model.name,
            domains=len({one.domain_id for one in peers}),
            ready_replicas=sum(ready.get(one.pk, 0) for one in peers),
        )
        of_model = planned.get(pool.model.name), seen.get(pool.model.name, [])
        rows.append(_planned(row, profile_of(pool), *of_model))
    return rows


def demand_by_model(now: datetime, as_of: datetime) -> dict[str, Planned]:
    """Each model's largest hour: forecast if there is one, else what was seen.

    Seen is the larger of the busiest hour and the last minutes: traffic that has just begun is
    lost in the mean of its first hour.
    """
    busiest: dict[str, list[int]] = {}
    began: dict[str, datetime] = {}
    for row in model_hours(since=as_of - 24 * HOUR, until=as_of):
        began.setdefault(row.model, row.hour_at)  # oldest first
        peak = busiest.setdefault(row.model, [0, 0, 0])
        for at, measure in enumerate(MEASURES):
            peak[at] = max(peak[at], getattr(row, measure))
    found = _just_seen(now, began)
    for model, sums in busiest.items():
        rates, just = Rates(*sums), found.get(model)
        if just is None or just.rates is None or _tokens(just.rates) <= _tokens(rates):
            found[model] = Planned(BUSIEST_BASIS, rates)
    for horizon, basis in ((HOUR_AHEAD, HOUR_BASIS), (DAY_AHEAD, DAY_BASIS)):
        found |= {
            model: Planned(basis, rates) for model, rates in _forecast(horizon, as_of).items()
        }
    return found


def _forecast(horizon_h: int, as_of: datetime) -> dict[str, Rates]:
    """p95 of each measure's largest hour, for models that have all three as of now."""
    rows = Forecast.objects.filter(
        source=LEDGER, tenant="", horizon_h=horizon_h, as_of=as_of, is_latest=True, short_h=0
    )
    peaks: dict[str, dict[str, float]] = {}
    for row in rows:
        peaks.setdefault(row.model, {})[row.measure] = max(point[_P95] for point in row.points)
    return {
        model: Rates(*(by_measure[name] for name in MEASURES))
        for model, by_measure in peaks.items()
        if len(by_measure) == len(MEASURES)
    }


def _just_seen(now: datetime, began: Mapping[str, datetime]) -> dict[str, Planned]:
    """Demand of the last minutes of each model; `began` is its first known whole hour."""
    since = hour_of(now - (MEASURED_MINUTES + 1) * MINUTE)
    found = {}
    for model, minutes in model_minutes(since=since, until=now).items():
        is_new = began.get(model, since) >= since
        just = measured(minutes, now, is_new=is_new)
        if just is None:
            found[model] = Planned("", None)
            continue
        rates, count = just
        is_short = count < MEASURED_MINUTES
        basis = NEW_BASIS if is_short else MINUTES_BASIS
        found[model] = Planned(basis.format(count), rates)
    return found


def _tokens(rates: Rates) -> float:
    return rates.input_tokens + rates.output_tokens


def _ready_counts() -> Mapping[int, int]:
    is_ready = Q(replicas__removed_at=None, replicas__lifecycle=ReplicaLifecycle.READY.value)
    rows: Any = Pool.objects.annotate(ready=Count("replicas", filter=is_ready))
    return dict(rows.values_list("pk", "ready"))


def _planned(
    row: PoolPlan, profile: EngineProfile | None, planned: Planned | None, seen: Sequence[Seen]
) -> PoolPlan:
    if profile is None:
        row.trouble = "No engine profile is known, so its speed is not: name one under Profiles."
        return row
    row.profile = profile.name
    if planned is None:
        row.trouble = (
            "No request of this model came in the day before this was planned: forecast again"
            " once it has traffic."
        )
        return row
    if planned.rates is None:
        row.trouble = "Its first requests came less than two minutes ago: forecast again soon."
        return row
    demands = demands_of(seen, planned.rates)
    plan = plan_of(need_of(profile, demands, ITL_TARGET_S, retry_ratio=RETRY_RATIO), row.domains)
    row.basis = planned.basis
    row.rate_rps = planned.rates.requests / 3600
    row.input_tokens_per_s = planned.rates.input_tokens / 3600
    row.output_tokens_per_s = planned.rates.output_tokens / 3600
    row.itl_target_s = ITL_TARGET_S
    return _with_need(row, plan)


def _with_need(row: PoolPlan, plan: Plan) -> PoolPlan:
    row.need_now = plan.need.replicas
    row.need_domain_lost = plan.domain_lost
    row.need_quarter_lost = plan.quarter_lost
    row.set_by = plan.set_by
    row.binds = plan.need.binds.value
    return row

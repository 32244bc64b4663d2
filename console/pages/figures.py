"""The overview's figures: what the store says of the last hour, and what a task costs.

One definition each, shown on hover where the page has room:

- goodput in SLO: requests of the last 15 minutes (and the running one) that kept their objective,
  over those that were judged (`telemetry.slos.rules`);
- queue age: how long the oldest request that waits in an engine's queue has waited at least, over
  all replicas that report; known to a scrape interval of a second (`telemetry.collector.rules`);
- refused per minute by reason: the last five whole minutes;
- spend per hour: settled in the last 59 whole minutes and the running one;
- cost per success, GPU-seconds and grams CO2e per task: tasks whose outcome was reported in the
  last 24 hours (`tenants.work.rules`, `telemetry.economics.rules`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from capacity.fleet.grid import PoolSums, is_fresh
from capacity.fleet.selectors import ReplicaRow
from console.web import live_state
from telemetry.live.selectors import published
from telemetry.slices.selectors import ClassMinute, class_minutes, recent_total
from telemetry.slos.rules import ObjectiveView, judge, objective_of
from telemetry.slos.selectors import goodput
from telemetry.stats import sketch
from telemetry.stats.burn import Judged
from telemetry.stats.windows import SliceSum

HISTORY_MINUTES = 59  # and the running one
GOODPUT_MINUTES = 15  # and the running one
REFUSED_MINUTES = 5  # whole ones
CLASSES_SHOWN = 12
REASONS_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Refusals:
    """Refusals per minute over `REFUSED_MINUTES`; `reasons` most first."""

    per_min: float
    reasons: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class ClassRow:
    """One model and class: TTFT p95 minute by minute, now, and against its objective."""

    model: str
    work_class: str
    requests: int
    ttft_p95_ms: float | None
    history: tuple[float | None, ...]
    objective: ObjectiveView | None
    judged: Judged | None

    @property
    def label(self) -> str:
        """Model and class in words."""
        return f"{self.model or 'before a model was known'} / {self.work_class or 'no class'}"

    @property
    def is_over(self) -> bool:
        """Whether fewer requests than promised kept the objective."""
        if self.judged is None or self.objective is None or self.judged.good_ratio is None:
            return False
        return self.judged.good_ratio < self.objective.target_ratio


@dataclass(frozen=True, slots=True)
class Headline:
    """The figures of the first row; None is unknown. Lists hold one value a minute."""

    age_s: float | None
    ttft_p95_ms: float | None
    ttft: list[float | None]
    queue_age_s: float | None
    waiting: int | None
    kv_max_ratio: float | None
    goodput: Judged | None
    refusals: Refusals | None
    refused: list[float | None]
    spend_hour_nanousd: int | None
    spend: list[float | None]
    classes: tuple[ClassRow, ...]

    @property
    def is_stale(self) -> bool:
        """Whether the collector stopped publishing."""
        return self.age_s is None or self.age_s > live_state.STALE_AFTER_S

    @property
    def goodput_ratio(self) -> float | None:
        """Goodput in SLO (0..1)."""
        return self.goodput.good_ratio if self.goodput else None


def headline(
    sums: Sequence[PoolSums],
    objectives: Sequence[ObjectiveView],
    queue_ages_s: Sequence[float | None],
) -> Headline:
    """Live figures with their last hour: three round trips to the store, no query."""
    live = published(by_pool=True).total
    total = live.rows[0] if live and live.rows else None
    points = recent_total(HISTORY_MINUTES)
    whole = points[:-1]  # the running minute would always look like a fall
    minutes = class_minutes(HISTORY_MINUTES + 1)
    fresh = [one for row in sums for one in row.pool.replicas if is_fresh(one)]
    return Headline(
        age_s=live_state.age_of_ms(live.at_ms) if live else None,
        ttft_p95_ms=_ms(total.ttft_p95_s) if total else None,
        ttft=[_ms(point.ttft_p95_s) for point in whole],
        queue_age_s=max((age for age in queue_ages_s if age is not None), default=None),
        waiting=_waiting(fresh),
        kv_max_ratio=max(
            (one.kv_usage_ratio for one in fresh if one.kv_usage_ratio is not None), default=None
        ),
        goodput=goodput(minutes[-GOODPUT_MINUTES - 1 :], objectives),
        refusals=_refusals(minutes) if minutes else None,
        refused=[float(point.refused) for point in whole],
        spend_hour_nanousd=sum(point.spend_nanousd for point in points) if points else None,
        spend=[float(point.spend_nanousd) for point in whole],
        classes=_classes(minutes, objectives),
    )


def _waiting(fresh: Sequence[ReplicaRow]) -> int | None:
    known = [one.waiting for one in fresh if one.waiting is not None]
    return sum(known) if known else None


def _refusals(minutes: Sequence[ClassMinute]) -> Refusals:
    counts: dict[str, int] = {}
    for minute in minutes[-REFUSED_MINUTES - 1 : -1]:
        for counted in minute.sums.values():
            for reason, count in counted.refused.items():
                counts[reason] = counts.get(reason, 0) + count
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return Refusals(
        per_min=sum(counts.values()) / REFUSED_MINUTES,
        reasons=tuple((name, count / REFUSED_MINUTES) for name, count in ordered),
    )


def _classes(
    minutes: Sequence[ClassMinute], objectives: Sequence[ObjectiveView]
) -> tuple[ClassRow, ...]:
    recent: dict[tuple[str, str], SliceSum] = {}
    for minute in minutes[-GOODPUT_MINUTES - 1 :]:
        for key, counted in minute.sums.items():
            if key[0]:  # refused before a model was known: counted among refusals
                recent.setdefault(key, SliceSum()).merge(counted)
    busiest = sorted(recent, key=lambda key: (-recent[key].requests, key))[:CLASSES_SHOWN]
    return tuple(_class(key, recent[key], minutes, objectives) for key in busiest)


def _class(
    key: tuple[str, str],
    counted: SliceSum,
    minutes: Sequence[ClassMinute],
    objectives: Sequence[ObjectiveView],
) -> ClassRow:
    objective = objective_of(*key, objectives)
    history = [
        _ms(sketch.quantile(minute.sums[key].ttft_s, 0.95)) if key in minute.sums else None
        for minute in minutes[:-1]
    ]
    return ClassRow(
        model=key[0],
        work_class=key[1],
        requests=counted.requests,
        ttft_p95_ms=_ms(sketch.quantile(counted.ttft_s, 0.95)),
        history=tuple(history),
        objective=objective,
        judged=judge(counted, objective) if objective else None,
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000

"""Which objective judges a request, and how many of a minute's requests kept it.

`total` counts ended requests that the caller did not cancel, and those that were refused for want
of capacity: a refusal by the caller's own limit, or of a request that is itself at fault, breaks no
promise. Not good are: slower than the
threshold (from merged sketches, so within 1 % of it), failed, refused for capacity. A request that
fails after a slow first token counts as bad twice, never as good.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from telemetry.stats.burn import Judged
from telemetry.stats.sketch import index_of
from telemetry.stats.windows import SliceSum

TTFT, E2E = "ttft", "e2e"
# Refusals that are the fleet's fault (routing.decision.types.Reason), not the caller's.
OF_CAPACITY = ("no_capacity", "model_unavailable", "upstream_rate_limited", "shutting_down")


@dataclass(frozen=True, slots=True)
class ObjectiveView:
    """An objective as pages and rules use it."""

    id: int
    work_class: str
    model: str
    metric: str
    threshold_ms: int
    target_ratio: float

    @property
    def label(self) -> str:
        """Whose it is, in words."""
        return f"{self.model or 'any model'} / {self.work_class or 'any class'}"

    @property
    def promise(self) -> str:
        """What it asks, in words."""
        metric = "TTFT" if self.metric == TTFT else "end to end"
        return f"{self.target_ratio * 100:g} % {metric} within {self.threshold_ms:,} ms"


def objective_of(
    model: str, work_class: str, objectives: Iterable[ObjectiveView]
) -> ObjectiveView | None:
    """The most specific objective for a model and class; None when nothing is promised."""
    fitting = [
        one for one in objectives if one.model in ("", model) and one.work_class in ("", work_class)
    ]
    return max(fitting, key=lambda one: (bool(one.model), bool(one.work_class)), default=None)


def judge(counted: SliceSum, objective: ObjectiveView) -> Judged:
    """How a minute's requests of one model and class kept their objective."""
    bins = counted.ttft_s if objective.metric == TTFT else counted.e2e_s
    edge = index_of(objective.threshold_ms / 1000)
    slow = sum(count for index, count in bins.items() if index > edge)
    shed = sum(counted.refused.get(reason, 0) for reason in OF_CAPACITY)
    total = max(0, counted.requests - counted.cancelled) + shed
    return Judged(total=total, good=max(0, total - slow - counted.failed - shed))


def judge_all(
    sums: Mapping[tuple[str, str], SliceSum], objectives: Iterable[ObjectiveView]
) -> dict[int, Judged]:
    """By objective id, over (model, class) sums of a window; each request is judged once."""
    known = list(objectives)
    found: dict[int, Judged] = {}
    for (model, work_class), counted in sums.items():
        objective = objective_of(model, work_class, known)
        if objective is not None:
            before = found.get(objective.id, Judged())
            now = judge(counted, objective)
            found[objective.id] = Judged(before.total + now.total, before.good + now.good)
    return found


def whole(judged: Iterable[Judged]) -> Judged:
    """The sum."""
    parts = list(judged)
    return Judged(sum(part.total for part in parts), sum(part.good for part in parts))

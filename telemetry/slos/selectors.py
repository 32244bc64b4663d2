"""Objectives, goodput now, and burn over the windows of the alarm rules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

from django.db.models import Q, Sum
from django.utils import timezone

from console.errors import NotFound
from telemetry.models import Objective, ObjectiveMinute
from telemetry.slices.selectors import ClassMinute
from telemetry.slos.rules import ObjectiveView, judge_all, whole
from telemetry.stats.burn import BUDGET_MIN, WINDOWS_MIN, Alarm, Judged, alarm, burn

MAX_OBJECTIVES = 200


@dataclass(frozen=True, slots=True)
class ObjectiveState:
    """An objective with what its windows (minutes) held.

    `alarm` is the worst rule that fires, `burn_1h` None without requests in the last hour.
    """

    objective: ObjectiveView
    windows: dict[int, Judged]
    alarm: Alarm | None
    burn_1h: float | None


def objectives() -> tuple[ObjectiveView, ...]:
    """All of them, the most general first: one query."""
    rows = Objective.objects.order_by("model", "work_class")[:MAX_OBJECTIVES]
    return tuple(map(_view, rows))


def objective(objective_id: int) -> ObjectiveView:
    """One of them. Raises `NotFound`."""
    row = Objective.objects.filter(pk=objective_id).first()
    if row is None:
        raise NotFound("No such objective.")
    return _view(row)


def states(known: Sequence[ObjectiveView], *, now: datetime | None = None) -> list[ObjectiveState]:
    """Windows of every objective: one query over judged minutes."""
    end = (now or timezone.now()).replace(second=0, microsecond=0)
    sums = {
        f"{name}_{minutes}": Sum(
            name, filter=Q(minute_at__gte=end - timedelta(minutes=minutes)), default=0
        )
        for minutes in WINDOWS_MIN
        for name in ("total", "good")
    }
    rows = (
        ObjectiveMinute.objects.filter(
            minute_at__gte=end - timedelta(minutes=max(WINDOWS_MIN)), minute_at__lt=end
        )
        .order_by()
        .values("objective_id")
        .annotate(**{f"sum_{name}": value for name, value in sums.items()})
    )
    found: dict[int, Mapping[str, Any]] = {
        row["objective_id"]: cast("Mapping[str, Any]", row) for row in rows
    }
    return [_state(one, found.get(one.id)) for one in known]


def budgets(*, now: datetime | None = None) -> dict[int, Judged]:
    """What each objective judged in the window of its budget, by id: one query."""
    end = (now or timezone.now()).replace(second=0, microsecond=0)
    found = judged_between(since=end - timedelta(minutes=BUDGET_MIN), until=end)
    return {one.id: judged for one, judged in found}


def judged_between(*, since: datetime, until: datetime) -> list[tuple[ObjectiveView, Judged]]:
    """Every objective with what it judged in `[since, until)`, as it was judged then."""
    rows = (
        ObjectiveMinute.objects.filter(minute_at__gte=since, minute_at__lt=until)
        .order_by()
        .values("objective_id")
        .annotate(all_total=Sum("total"), all_good=Sum("good"))
    )
    found = {row["objective_id"]: Judged(row["all_total"], row["all_good"]) for row in rows}
    return [(one, found.get(one.id, Judged())) for one in objectives()]


def goodput(minutes: Sequence[ClassMinute], known: Sequence[ObjectiveView]) -> Judged | None:
    """Requests of these minutes that kept their objective; None where nothing is promised."""
    if not known or not minutes:
        return None
    return whole(judged for minute in minutes for judged in judge_all(minute.sums, known).values())


def _state(one: ObjectiveView, row: Mapping[str, Any] | None) -> ObjectiveState:
    windows = {
        minutes: Judged(row[f"sum_total_{minutes}"], row[f"sum_good_{minutes}"])
        if row
        else Judged()
        for minutes in WINDOWS_MIN
    }
    return ObjectiveState(
        objective=one,
        windows=windows,
        alarm=alarm(windows, one.target_ratio),
        burn_1h=burn(windows[60], one.target_ratio),
    )


def _view(row: Objective) -> ObjectiveView:
    return ObjectiveView(
        row.pk, row.work_class, row.model, row.metric, row.threshold_ms, row.target_ratio
    )

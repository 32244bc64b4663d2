"""Define objectives; judge the minutes that have ended."""

from datetime import UTC, datetime, timedelta

from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone

from console.audit.rules import Actor
from console.audit.services import record
from console.errors import InvalidInput, NotFound
from routing.contracts.enums import WorkClass
from telemetry.models import Objective, ObjectiveMinute
from telemetry.slices.selectors import class_minutes
from telemetry.slos.rules import E2E, TTFT, judge_all
from telemetry.slos.selectors import MAX_OBJECTIVES, objectives
from tenants.directory.selectors import model_id_of

JUDGED_AGAIN = 10  # minutes: a gateway's late report changes a minute that was judged before
KEPT = timedelta(days=35)  # the budget's 30 days and some
DROPPED_MAX = 20_000
MINUTE_S = 60


@transaction.atomic
def set_objective(
    *,
    work_class: str,
    model: str,
    metric: str,
    threshold_ms: int,
    target_ratio: float,
    actor: Actor,
    reason: str = "",
) -> int:
    """Promise something for a class and model (empty: any), or change it; returns its id.

    Minutes judged so far stay as they were judged. Raises `InvalidInput` naming the field.
    """
    work_class, model = work_class.strip(), model.strip()
    if work_class and work_class not in set(WorkClass):
        raise InvalidInput("There is no such class.", field="work_class", hint=", ".join(WorkClass))
    if model:
        model_id_of(model)  # one that is never asked for has no traffic to judge
    if metric not in (TTFT, E2E):
        raise InvalidInput("This is no metric.", field="metric", hint="ttft or e2e.")
    if not 1 <= threshold_ms <= 600_000:
        raise InvalidInput("From 1 ms to 600,000 ms.", field="threshold_ms")
    if not 0.5 <= target_ratio <= 0.9999:
        raise InvalidInput("From 0.5 to 0.9999.", field="target_ratio", hint="0.99 is usual.")
    row = Objective.objects.select_for_update().filter(work_class=work_class, model=model).first()
    if row is None and Objective.objects.count() >= MAX_OBJECTIVES:
        raise InvalidInput(
            f"At most {MAX_OBJECTIVES} objectives.",
            field="model",
            hint="An empty class or model covers many.",
        )
    before = _facts(row) if row else None
    row = row or Objective(work_class=work_class, model=model)
    row.metric, row.threshold_ms, row.target_ratio = metric, threshold_ms, target_ratio
    try:
        row.full_clean()
    except ValidationError as error:
        field, found = next(iter(error.message_dict.items()))
        raise InvalidInput(found[0], field=field) from error
    row.save()
    record(
        actor=actor,
        act="objective_changed" if before else "objective_set",
        object_type="objective",
        object_id=str(row.pk),
        reason=reason,
        before=before,
        after=_facts(row),
    )
    return row.pk


@transaction.atomic
def remove_objective(*, objective_id: int, actor: Actor, reason: str = "") -> None:
    """Promise it no longer; its judged minutes go with it. Raises `NotFound`."""
    row = Objective.objects.select_for_update().filter(pk=objective_id).first()
    if row is None:
        raise NotFound("No such objective.")
    record(
        actor=actor,
        act="objective_removed",
        object_type="objective",
        object_id=str(row.pk),
        reason=reason,
        before=_facts(row),
    )
    row.delete()


def judge_minutes(*, now: datetime | None = None) -> int:
    """Judge the ended minutes of the last ten, again where they were judged; how many rows.

    Safe to repeat. A minute that the store no longer knows is left as it stands.
    """
    known = objectives()
    if not known:
        return 0
    end = int((now or timezone.now()).timestamp()) // MINUTE_S
    rows = [
        ObjectiveMinute(
            objective_id=number,
            minute_at=datetime.fromtimestamp(found.minute * MINUTE_S, UTC),
            total=judged.total,
            good=judged.good,
        )
        for found in class_minutes(JUDGED_AGAIN, until_minute=end)
        for number, judged in judge_all(found.sums, known).items()
    ]
    ObjectiveMinute.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["objective", "minute_at"],
        update_fields=["total", "good"],
    )
    return len(rows)


def drop_old(*, now: datetime | None = None) -> int:
    """Delete judged minutes older than `KEPT`, at most `DROPPED_MAX`; how many."""
    oldest = ObjectiveMinute.objects.filter(minute_at__lt=(now or timezone.now()) - KEPT)
    chosen = oldest.order_by("minute_at").values("pk")[:DROPPED_MAX]
    return ObjectiveMinute.objects.filter(pk__in=chosen).delete()[0]


def _facts(row: Objective) -> dict[str, object]:
    return {
        "work_class": row.work_class,
        "model": row.model,
        "metric": row.metric,
        "threshold_ms": row.threshold_ms,
        "target_ratio": row.target_ratio,
    }

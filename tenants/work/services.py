"""How a task ended, as its tenant reports it."""

from django.db import transaction
from django.utils import timezone

from console.errors import Conflict, InvalidInput, NotFound
from routing.contracts.enums import TaskOutcome
from tenants.models import WorkTask


@transaction.atomic
def report_outcome(
    *, tenant_id: int, task: str, outcome: str, score_ratio: float | None, source: str
) -> WorkTask:
    """Record a task's outcome; the first one stands and the same one again changes nothing.

    `source` says who reported: a key's prefix or a person. Raises `NotFound` for a task without a
    booked request (so that reports are bounded by traffic), `Conflict` when another outcome is
    known, `InvalidInput` for what is no outcome.
    """
    if outcome not in set(TaskOutcome):
        raise InvalidInput(
            "This is no outcome.",
            field="outcome",
            hint=f"One of: {', '.join(TaskOutcome)}.",
        )
    if score_ratio is not None and not 0 <= score_ratio <= 1:
        raise InvalidInput("A score is from 0 to 1.", field="score_ratio")
    row = WorkTask.objects.select_for_update().filter(tenant_id=tenant_id, task=task).first()
    if row is None:
        raise NotFound(
            "No request of this task has been booked.",
            field="task_id",
            hint="Rows follow a request's end within seconds: send the report again.",
        )
    if row.outcome:
        if (row.outcome, row.score_ratio) == (outcome, score_ratio):
            return row
        raise Conflict(
            f"This task has already reported {row.outcome}.",
            field="outcome",
            hint="The first outcome stands. Name a new attempt's task differently.",
        )
    row.outcome, row.score_ratio = outcome, score_ratio
    row.outcome_at, row.outcome_source = timezone.now(), source[:16]
    row.save(update_fields=["outcome", "score_ratio", "outcome_at", "outcome_source"])
    return row

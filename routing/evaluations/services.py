"""Record an evaluation, and withdraw one that was wrong."""

from django.db import transaction
from django.utils import timezone

from capacity.fleet.services import PUSH_SNAPSHOT
from console.audit.rules import Actor
from console.audit.services import record
from console.errors import InvalidInput, NotFound
from console.jobs.services import enqueue
from console.validation import save_valid
from routing.evaluations.selectors import EvaluationView, view_of
from routing.models import Evaluation
from tenants.directory.selectors import model_id_of


@transaction.atomic
def record_evaluation(
    *, model: str, stands_in: str, score_ratio: float, note: str, actor: Actor
) -> EvaluationView:
    """State how well `stands_in` does in place of `model`. Changes nothing that is served.

    Raises `InvalidInput` with the field: a model that the catalogue does not have, the same one
    twice, a score outside 0..1, no note.
    """
    model_id_of(model)
    _known_stand_in(stands_in)
    if model == stands_in:
        hint = "Name the other model."
        raise InvalidInput("A model is its own equal.", field="stands_in", hint=hint)
    if not 0 <= score_ratio <= 1:
        hint = "Use the share of cases that went as well."
        raise InvalidInput("The score is from 0 to 1.", field="score_ratio", hint=hint)
    if not note.strip():
        hint = "Name the cases and the measure."
        raise InvalidInput("Say what was compared.", field="note", hint=hint)
    row = Evaluation(
        model=model,
        stands_in=stands_in,
        score_ratio=score_ratio,
        note=note.strip(),
        author_id=actor.user_id,
        author_label=actor.label,
        created_at=timezone.now(),
    )
    save_valid(row, taken="This evaluation exists.")
    view = view_of(row)
    record(
        actor=actor,
        act="evaluation.record",
        object_type="evaluation",
        object_id=str(row.pk),
        reason=view.note,
        after={"model": model, "stands_in": stands_in, "score_ratio": score_ratio},
    )
    return view


@transaction.atomic
def withdraw_evaluation(*, evaluation_id: int, actor: Actor) -> tuple[EvaluationView, bool]:
    """Let it count no more; it, and whether this act did it. Fallbacks that name it end with it.

    Raises `NotFound`.
    """
    row = Evaluation.objects.select_for_update().filter(pk=evaluation_id).first()
    if row is None:
        raise NotFound("No such evaluation.")
    if row.withdrawn_at is not None:
        return view_of(row), False
    row.withdrawn_at, row.withdrawn_by = timezone.now(), actor.label
    row.save(update_fields=["withdrawn_at", "withdrawn_by"])
    record(
        actor=actor,
        act="evaluation.withdraw",
        object_type="evaluation",
        object_id=str(row.pk),
        before={"model": row.model, "stands_in": row.stands_in},
        after={"withdrawn_at": row.withdrawn_at.isoformat()},
    )
    enqueue(PUSH_SNAPSHOT, dedupe_key=PUSH_SNAPSHOT)
    return view_of(row), True


def _known_stand_in(name: str) -> None:
    try:
        model_id_of(name)
    except InvalidInput as error:
        raise InvalidInput(error.message, field="stands_in", hint=error.hint) from error

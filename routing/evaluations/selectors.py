"""Evaluations for pages and REST, and those that policies may name."""

from dataclasses import dataclass
from datetime import datetime

from console.errors import NotFound
from console.web.keyset import DEFAULT_LIMIT, Page, cut
from routing.models import Evaluation

MAX_STANDING = 10_000  # more than all pairs that a policy could name; the newest count


@dataclass(frozen=True, slots=True)
class EvaluationView:
    """An evaluation as pages and REST show it; `name` is what policies call it.

    `state` is `active` or `withdrawn`.
    """

    id: int
    name: str
    model: str
    stands_in: str
    score_ratio: float
    note: str
    author: str
    created_at: datetime
    withdrawn_at: datetime | None
    withdrawn_by: str
    state: str


def evaluation(evaluation_id: int) -> EvaluationView:
    """One evaluation. Raises `NotFound`."""
    row = Evaluation.objects.filter(pk=evaluation_id).first()
    if row is None:
        raise NotFound("No such evaluation.")
    return view_of(row)


def evaluations(
    *, before_id: int | None = None, limit: int = DEFAULT_LIMIT
) -> Page[EvaluationView]:
    """Newest first, withdrawn ones too."""
    rows = Evaluation.objects.order_by("-id")
    if before_id is not None:
        rows = rows.filter(pk__lt=before_id)
    return cut([view_of(row) for row in rows[: limit + 1]], limit, lambda one: one.id)


def standing() -> frozenset[tuple[str, str, str]]:
    """(name, model asked for, model that stands in) of each that is not withdrawn: one query."""
    rows = Evaluation.objects.filter(withdrawn_at=None).order_by("-id")
    found = rows.values_list("pk", "model", "stands_in")[:MAX_STANDING]
    return frozenset((name_of(pk), model, other) for pk, model, other in found)


def name_of(evaluation_id: int) -> str:
    """What a policy calls it."""
    return f"ev-{evaluation_id}"


def view_of(row: Evaluation) -> EvaluationView:
    """The row as pages and REST show it."""
    return EvaluationView(
        id=row.pk,
        name=name_of(row.pk),
        model=row.model,
        stands_in=row.stands_in,
        score_ratio=row.score_ratio,
        note=row.note,
        author=row.author_label,
        created_at=row.created_at,
        withdrawn_at=row.withdrawn_at,
        withdrawn_by=row.withdrawn_by,
        state="active" if row.withdrawn_at is None else "withdrawn",
    )

"""Reads of tasks. Every read names whose tasks it may see: None is every tenant's."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db import connection
from django.db.models import Sum

from console.errors import NotFound
from console.web.keyset import MAX_LIMIT, Page, take
from routing.contracts.enums import SettleKind
from tenants.ledger.selectors import Totals, of_tenants
from tenants.models import Usage, UsageAdjustment, WorkTask, WorkTaskPart
from tenants.work.rules import LOOP_REPEATS, Outcomes

MAX_STEPS = 500  # of one task on its page; REST pages on
MAX_CHILDREN = 50
MAX_LOOPS = 20
RECENT_TASKS = 500  # newest tasks of a period that are looked through for loops
OPEN = "open"  # a filter's word for tasks without an outcome


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task. `outcome` is empty until it is reported."""

    id: int
    tenant_id: int
    tenant: str
    task: str
    kind: str
    parent: str
    session: str
    first_at: datetime
    last_at: datetime
    outcome: str
    score_ratio: float | None
    outcome_at: datetime | None
    outcome_source: str
    sums: Totals

    @property
    def duration(self) -> timedelta:
        """From its first request's start to its last one's end."""
        return self.last_at - self.first_at


@dataclass(frozen=True, slots=True)
class PartRow:
    """What a task took of one model or named resource in one pool."""

    model: str
    pool: str
    sums: Totals


@dataclass(frozen=True, slots=True)
class StepRow:
    """One call of a task as the ledger holds it; `net_nanousd` with adjustments."""

    request_id: str
    step: str
    model: str
    pool: str
    replica: str
    status: str
    error_code: str
    started_at: datetime
    first_token_at: datetime | None
    ended_at: datetime
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    net_nanousd: int

    @property
    def took(self) -> timedelta:
        """Accept to end."""
        return self.ended_at - self.started_at


@dataclass(frozen=True, slots=True)
class Loop:
    """The same step on the same model again and again, inside one task."""

    task_id: int
    task: str
    tenant: str
    step: str
    model: str
    calls: int
    spend_nanousd: int


@dataclass(frozen=True, slots=True)
class KindRow:
    """Tasks of one kind that started in a period."""

    tenant: str
    kind: str
    tasks: int
    succeeded: int
    failed: int
    sums: Totals


@dataclass(frozen=True, slots=True)
class PoolWork:
    """Tokens that tasks with an outcome took in one pool: what GPU time is shared out by."""

    pool: str
    uncached_tokens: int
    cached_tokens: int
    output_tokens: int


def tasks_page(
    *,
    tenant_ids: frozenset[int] | None,
    after: str | None,
    limit: int,
    kind: str = "",
    outcome: str = "",
    task: str = "",
) -> Page[TaskRow]:
    """Tasks, newest first; two queries at any length. Raises `InvalidInput` for a bad cursor."""
    rows = of_tenants(WorkTask.objects.all(), tenant_ids)
    if kind:
        rows = rows.filter(kind=kind)
    if outcome:
        rows = rows.filter(outcome="" if outcome == OPEN else outcome)
    if task:
        rows = rows.filter(task=task)
    page = take(
        rows.select_related("tenant"), order=("-id",), after=after, limit=min(limit, MAX_LIMIT)
    )
    return Page(_with_sums(page.rows), page.next_after, page.limit)


def task_by_id(*, tenant_ids: frozenset[int] | None, task_id: int) -> TaskRow:
    """One task. Raises `NotFound` also for another tenant's."""
    found = _with_sums(
        of_tenants(WorkTask.objects.all(), tenant_ids)
        .filter(pk=task_id)
        .select_related("tenant")[:1]
    )
    if not found:
        raise NotFound("No such task.")
    return found[0]


def parts_of(task_id: int) -> tuple[PartRow, ...]:
    """What a task took by model and pool, dearest first, at most `MAX_LIMIT`."""
    rows = WorkTaskPart.objects.filter(task_id=task_id)
    rows = rows.order_by("-spend_nanousd", "model", "pool")[:MAX_LIMIT]
    return tuple(PartRow(row.model, row.pool, Totals.of(vars(row))) for row in rows)


def steps_of(task: TaskRow, *, after: str | None = None, limit: int = MAX_STEPS) -> Page[StepRow]:
    """Calls of a task in the order of their start (of their ids): two queries."""
    rows = Usage.objects.filter(tenant_id=task.tenant_id, task_id=task.task)
    rows = rows.exclude(kind=SettleKind.VOID.value)
    page = take(rows, order=("request_id",), after=after, limit=min(limit, MAX_STEPS))
    ids = [row.request_id for row in page.rows]
    adjusted: dict[UUID, int] = dict(
        UsageAdjustment.objects.filter(request_id__in=ids)
        .values("request_id")
        .annotate(total=Sum("spend_nanousd"))
        .values_list("request_id", "total")
    )
    return page.map(lambda row: _step(row, int(adjusted.get(row.request_id, 0))))


def children_of(task: TaskRow) -> tuple[TaskRow, ...]:
    """Tasks that name this one as their parent, newest first, at most `MAX_CHILDREN`."""
    rows = WorkTask.objects.filter(tenant_id=task.tenant_id, parent=task.task).exclude(parent="")
    return _with_sums(rows.select_related("tenant").order_by("-id")[:MAX_CHILDREN])


def outcomes(*, tenant_ids: frozenset[int] | None, since: datetime, until: datetime) -> Outcomes:
    """Tasks whose outcome was reported in [since, until): one query."""
    return ended_work(tenant_ids=tenant_ids, since=since, until=until)[0]


def ended_work(
    *, tenant_ids: frozenset[int] | None, since: datetime, until: datetime
) -> tuple[Outcomes, tuple[PoolWork, ...]]:
    """`outcomes`, and the tokens that these tasks took by pool: one query."""
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH ended AS (SELECT id, outcome FROM tenants_worktask"
            "  WHERE outcome_at >= %s AND outcome_at < %s"
            "  AND (%s::bigint[] IS NULL OR tenant_id = ANY(%s::bigint[])))"
            " SELECT p.pool, coalesce(sum(p.input_tokens - p.cached_tokens), 0),"
            "  coalesce(sum(p.cached_tokens), 0), coalesce(sum(p.output_tokens), 0),"
            "  coalesce(sum(p.spend_nanousd), 0), NULL, NULL"
            " FROM ended e JOIN tenants_worktaskpart p ON p.task_id = e.id GROUP BY p.pool"
            " UNION ALL SELECT NULL, 0, 0, 0, 0, count(*) FILTER (WHERE outcome = 'success'),"
            "  count(*) FILTER (WHERE outcome = 'failure') FROM ended ORDER BY 1",
            [since, until, _ids(tenant_ids), _ids(tenant_ids)],
        )
        found = cursor.fetchall()
    counts = next(row for row in found if row[0] is None)
    pools = [row for row in found if row[0] is not None]
    ended = Outcomes(int(counts[5]), int(counts[6]), sum(int(row[4]) for row in pools))
    return ended, tuple(PoolWork(row[0], *map(int, row[1:4])) for row in pools if row[0])


def kinds(
    *, tenant_ids: frozenset[int] | None, since: datetime, until: datetime, limit: int = MAX_LIMIT
) -> tuple[KindRow, ...]:
    """Tasks that started in [since, until) by tenant and kind, dearest first: one query."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT n.slug, t.kind, count(DISTINCT t.id),"
            " count(DISTINCT t.id) FILTER (WHERE t.outcome = 'success'),"
            " count(DISTINCT t.id) FILTER (WHERE t.outcome = 'failure'),"
            " coalesce(sum(p.requests), 0), coalesce(sum(p.failed), 0),"
            " coalesce(sum(p.cancelled), 0), coalesce(sum(p.input_tokens), 0),"
            " coalesce(sum(p.cached_tokens), 0), coalesce(sum(p.output_tokens), 0),"
            " coalesce(sum(p.spend_nanousd), 0)"
            " FROM tenants_worktask t JOIN tenants_tenant n ON n.id = t.tenant_id"
            " LEFT JOIN tenants_worktaskpart p ON p.task_id = t.id"
            " WHERE t.first_at >= %s AND t.first_at < %s"
            " AND (%s::bigint[] IS NULL OR t.tenant_id = ANY(%s::bigint[]))"
            " GROUP BY n.slug, t.kind ORDER BY 12 DESC, n.slug, t.kind LIMIT %s",
            [since, until, _ids(tenant_ids), _ids(tenant_ids), min(limit, MAX_LIMIT)],
        )
        found = cursor.fetchall()
    return tuple(
        KindRow(row[0], row[1], row[2], row[3], row[4], Totals(*map(int, row[5:]))) for row in found
    )


def loops(
    *, tenant_ids: frozenset[int] | None, since: datetime, task_id: int | None = None
) -> tuple[Loop, ...]:
    """Steps that repeat inside a task, most often first, at most `MAX_LOOPS`: one query.

    Looks through the `RECENT_TASKS` tasks that were active last since then, or through one task.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH recent AS (SELECT id, tenant_id, task FROM tenants_worktask"
            "  WHERE last_at >= %s AND (%s::bigint IS NULL OR id = %s::bigint)"
            "  AND (%s::bigint[] IS NULL OR tenant_id = ANY(%s::bigint[]))"
            "  ORDER BY last_at DESC LIMIT %s)"
            " SELECT r.id, r.task, n.slug, u.step, u.model, count(*), sum(u.spend_nanousd)"
            " FROM recent r JOIN tenants_tenant n ON n.id = r.tenant_id"
            " JOIN tenants_usage u ON u.tenant_id = r.tenant_id AND u.task_id = r.task"
            " WHERE u.task_id <> '' AND u.step <> '' AND u.kind <> 'v'"
            " GROUP BY r.id, r.task, n.slug, u.step, u.model HAVING count(*) >= %s"
            " ORDER BY 6 DESC, 7 DESC, r.id LIMIT %s",
            [
                since, task_id, task_id, _ids(tenant_ids), _ids(tenant_ids), RECENT_TASKS,
                LOOP_REPEATS, MAX_LOOPS,
            ],
        )  # fmt: skip
        found = cursor.fetchall()
    return tuple(
        Loop(row[0], row[1], row[2], row[3], row[4], int(row[5]), int(row[6])) for row in found
    )


def _ids(tenant_ids: frozenset[int] | None) -> list[int] | None:
    return None if tenant_ids is None else sorted(tenant_ids)


def _with_sums(rows: Iterable[WorkTask]) -> tuple[TaskRow, ...]:
    found = list(rows)
    if not found:
        return ()
    sums = {
        row["task_id"]: Totals.of(row)
        for row in WorkTaskPart.objects.filter(task__in=found)
        .order_by()
        .values("task_id")
        .annotate(**{name: Sum(name) for name in Totals.__slots__})
    }
    return tuple(_task(row, sums.get(row.pk, Totals())) for row in found)


def _task(row: WorkTask, sums: Totals) -> TaskRow:
    return TaskRow(
        id=row.pk,
        tenant_id=row.tenant_id,
        tenant=row.tenant.slug,
        task=row.task,
        kind=row.kind,
        parent=row.parent,
        session=row.session,
        first_at=row.first_at,
        last_at=row.last_at,
        outcome=row.outcome,
        score_ratio=row.score_ratio,
        outcome_at=row.outcome_at,
        outcome_source=row.outcome_source,
        sums=sums,
    )


def _step(row: Usage, adjusted_nanousd: int) -> StepRow:
    return StepRow(
        request_id=str(row.request_id),
        step=row.step,
        model=row.model,
        pool=row.pool,
        replica=row.replica,
        status=row.status,
        error_code=row.error_code,
        started_at=row.started_at,
        first_token_at=row.first_token_at,
        ended_at=row.ended_at,
        input_tokens=row.input_tokens,
        cached_tokens=row.cached_tokens,
        output_tokens=row.output_tokens,
        net_nanousd=row.spend_nanousd + adjusted_nanousd,
    )

"""Sums of tasks, kept in the transaction of the rows that they sum (see `tables`)."""

from collections.abc import Mapping
from dataclasses import asdict

from tenants.ledger.cursors import Cursor, as_json
from tenants.ledger.rules.booking import RollupSums, TaskKey, TaskMark
from tenants.ledger.rules.lines import instant

BY_HEADER = "header"


def add_tasks(
    cursor: Cursor,
    tasks: Mapping[TaskKey, RollupSums],
    marks: Mapping[tuple[int, str], TaskMark],
) -> None:
    """Add a batch to its tasks: the task's own row first, then its sums by model and pool.

    Rows are written in order of task, so that two writers never wait for each other in a circle.
    An outcome that is known already stays.
    """
    if marks:
        _mark(cursor, marks)
    rows = [
        {"tenant_id": tenant, "task_id": task, "model": model, "pool": pool, **asdict(sums)}
        for (tenant, task, model, pool), sums in sorted(tasks.items())
    ]
    cursor.execute(
        "INSERT INTO tenants_worktaskpart AS p (task_id, model, pool, requests, failed, cancelled,"
        " input_tokens, cached_tokens, output_tokens, spend_nanousd)"
        " SELECT t.id, r.model, r.pool, r.requests, r.failed, r.cancelled, r.input_tokens,"
        " r.cached_tokens, r.output_tokens, r.spend_nanousd"
        " FROM json_to_recordset(%s::json) AS r(tenant_id bigint, task_id text, model text,"
        " pool text, requests bigint, failed bigint, cancelled bigint, input_tokens bigint,"
        " cached_tokens bigint, output_tokens bigint, spend_nanousd bigint)"
        " JOIN tenants_worktask t ON t.tenant_id = r.tenant_id AND t.task = r.task_id"
        " ON CONFLICT (task_id, model, pool) DO UPDATE SET"
        " requests = p.requests + excluded.requests, failed = p.failed + excluded.failed,"
        " cancelled = p.cancelled + excluded.cancelled,"
        " input_tokens = p.input_tokens + excluded.input_tokens,"
        " cached_tokens = p.cached_tokens + excluded.cached_tokens,"
        " output_tokens = p.output_tokens + excluded.output_tokens,"
        " spend_nanousd = p.spend_nanousd + excluded.spend_nanousd",
        [as_json(rows)],
    )


def _mark(cursor: Cursor, marks: Mapping[tuple[int, str], TaskMark]) -> None:
    rows = [
        {
            "tenant_id": tenant,
            "task": task,
            "kind": mark.kind,
            "parent": mark.parent_id,
            "session": mark.session,
            "first_at": instant(mark.first_ms).isoformat(),
            "last_at": instant(mark.last_ms).isoformat(),
            "outcome": mark.outcome,
            "score_ratio": mark.score,
            "outcome_at": None if mark.outcome_ms is None else instant(mark.outcome_ms).isoformat(),
            "outcome_source": BY_HEADER if mark.outcome else "",
        }
        for (tenant, task), mark in sorted(marks.items())
    ]
    cursor.execute(
        "INSERT INTO tenants_worktask AS t (tenant_id, task, kind, parent, session, first_at,"
        " last_at, outcome, score_ratio, outcome_at, outcome_source)"
        " SELECT tenant_id, task, kind, parent, session, first_at, last_at, outcome, score_ratio,"
        " outcome_at, outcome_source FROM json_populate_recordset(NULL::tenants_worktask, %s::json)"
        " ON CONFLICT (tenant_id, task) DO UPDATE SET"
        " kind = coalesce(nullif(excluded.kind, ''), t.kind),"
        " parent = coalesce(nullif(excluded.parent, ''), t.parent),"
        " session = coalesce(nullif(excluded.session, ''), t.session),"
        " first_at = least(t.first_at, excluded.first_at),"
        " last_at = greatest(t.last_at, excluded.last_at),"
        " outcome = CASE WHEN t.outcome = '' THEN excluded.outcome ELSE t.outcome END,"
        " score_ratio = CASE WHEN t.outcome = '' THEN excluded.score_ratio"
        " ELSE t.score_ratio END,"
        " outcome_at = CASE WHEN t.outcome = '' THEN excluded.outcome_at ELSE t.outcome_at END,"
        " outcome_source = CASE WHEN t.outcome = '' THEN excluded.outcome_source"
        " ELSE t.outcome_source END",
        [as_json(rows)],
    )

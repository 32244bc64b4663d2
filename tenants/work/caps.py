"""Caps on tasks: where a live one stands, and which calls a cap refused.

Standing is read from the counters that admit calls; what cannot be read is None, never 0. Refused
calls are shape rows: kept for a week, text-free.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import cast

from django.db import connection
from django.utils import timezone
from redis import Redis
from redis.exceptions import RedisError

from console.web.store import store
from routing.contracts.enums import Dimension
from routing.contracts.snapshot import TaskCaps, bucket_of
from routing.store import keys
from routing.store.packed import read_counter
from routing.store.pooled import node_of
from routing.store.workflow import RECORD_FIELDS, read_record
from tenants.ledger.rules.shapes import first_day_kept
from tenants.work.selectors import TaskRow

MAX_STOPS = 20  # refused calls of one task that are shown
MAX_STOPPED = 20  # tasks of a period that are shown
# The scopes in both queries are the index `shape_stopped_tasks`'s own: only then is it used.


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a live task stands; money in nano-dollars. `caps` None: a child's parent, or rebuilt.

    `steps` and `spend_nanousd` are of calls that have ended, `held_*` of those that run.
    """

    started_at: datetime
    caps: TaskCaps | None
    steps: int
    held_steps: int
    spend_nanousd: int
    held_nanousd: int

    @property
    def lasted_s(self) -> int:
        """Since its first call."""
        return int((timezone.now() - self.started_at).total_seconds())


@dataclass(frozen=True, slots=True)
class Stop:
    """A call that a cap of the task (`scope` task) or of its parent (parent_task) refused."""

    request_id: str
    at: datetime
    model: str
    step: str
    limit: str
    scope: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """A task with refused calls in a period; `id` None: no call of it has ever been booked."""

    id: int | None
    tenant: str
    task: str
    limit: str
    scope: str
    calls: int
    last_at: datetime


def standing_of(task: TaskRow) -> Standing | None:
    """Where the task stands now; None if it is not live, is not capped, or the store is away."""
    tenant_id = str(task.tenant_id)
    bucket = bucket_of(tenant_id)
    try:
        return _read(node_of(store(), keys.bucket_meta(bucket)), bucket, tenant_id, task.task)
    except RedisError:
        return None


def _read(client: Redis, bucket: int, tenant_id: str, task: str) -> Standing | None:
    first = client.pipeline(transaction=False)
    first.hmget(keys.task_record(bucket, tenant_id, task), *RECORD_FIELDS)
    first.hmget(keys.bucket_meta(bucket), "epoch", "state", "run_id")
    first.info("server")
    fields, (epoch, state, run_id), server = first.execute()
    record = read_record(cast("Sequence[bytes | None]", fields))
    # Counters of an earlier run of the server are a lost store's.
    is_known = state == b"ready" and run_id.decode() == keys.run_name(server["run_id"])
    if record is None or not is_known:
        return None
    base = f"w:{keys.task_base(tenant_id, task)}:{record.start_ms}"
    raw = client.get(f"{keys.bucket_tag(bucket)}:{epoch.decode()}:{base}")
    counted = read_counter(cast("bytes | None", raw))
    steps, spend = Dimension.REQUESTS.value, Dimension.SPEND_NANOUSD.value
    return Standing(
        started_at=datetime.fromtimestamp(record.start_ms / 1000, UTC),
        caps=record.caps,
        steps=counted.get(steps, 0),
        held_steps=counted.get(f"{steps}_h", 0),
        spend_nanousd=counted.get(spend, 0),
        held_nanousd=counted.get(f"{spend}_h", 0),
    )


def stops_of(task: TaskRow) -> tuple[Stop, ...]:
    """Its refused calls, newest first, at most `MAX_STOPS`: one query."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT request_id, arrived_at, model, step, refused_limit, refused_scope"
            " FROM tenants_shape WHERE refused_scope IN ('task', 'parent_task')"
            " AND tenant_id = %s AND task_id = %s AND day >= %s"
            " ORDER BY day DESC, request_id DESC LIMIT %s",
            [task.tenant_id, task.task, _first_day(), MAX_STOPS],
        )
        found = cursor.fetchall()
    return tuple(Stop(str(row[0]), *row[1:]) for row in found)


def stopped_tasks(*, tenant_ids: frozenset[int] | None, since: datetime) -> tuple[Stopped, ...]:
    """Tasks that a cap has stopped since then, the last first, at most `MAX_STOPPED`: one query."""
    ids = None if tenant_ids is None else sorted(tenant_ids)
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH stopped AS (SELECT tenant_id, task_id, count(*) AS calls,"
            "  max(arrived_at) AS last_at,"
            "  (array_agg(refused_limit ORDER BY day DESC, request_id DESC))[1] AS name,"
            "  (array_agg(refused_scope ORDER BY day DESC, request_id DESC))[1] AS scope"
            "  FROM tenants_shape WHERE refused_scope IN ('task', 'parent_task')"
            "  AND day >= %s AND arrived_at >= %s"
            "  AND (%s::bigint[] IS NULL OR tenant_id = ANY(%s::bigint[]))"
            "  GROUP BY tenant_id, task_id ORDER BY last_at DESC LIMIT %s)"
            " SELECT t.id, n.slug, s.task_id, s.name, s.scope, s.calls, s.last_at"
            " FROM stopped s JOIN tenants_tenant n ON n.id = s.tenant_id"
            " LEFT JOIN tenants_worktask t ON t.tenant_id = s.tenant_id AND t.task = s.task_id"
            " ORDER BY s.last_at DESC",
            [since.date(), since, ids, ids, MAX_STOPPED],
        )
        return tuple(Stopped(*row) for row in cursor.fetchall())


def _first_day() -> date:
    return first_day_kept(int(timezone.now().timestamp() * 1000))

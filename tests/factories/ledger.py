"""The ledger's own rows, as its writer would leave them: calls, their sums, tasks, refusals."""

import random
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection
from django.utils import timezone

from routing.contracts.ids import day_of, uuid7
from tenants.models import ApiKey, Shape, Usage, UsageRollup, WorkTask, WorkTaskPart
from tests.factories.world import World

_ROLLUP_NAMES = (
    "grain", "start_at", "tenant_id", "project_id", "key_id", "model", "pool", "work_class",
    "region",
)  # fmt: skip
_ROLLUP_SUMS = (
    "requests", "failed", "cancelled", "input_tokens", "cached_tokens", "output_tokens",
    "spend_nanousd",
)  # fmt: skip
# What refused: code, limit, scope, and when the caller was told to come back.
REFUSALS = (
    ("rate_limited", "input_tokens_per_minute", "tenant", 21_000),
    ("budget_exceeded", "spend_per_day", "tenant", None),
    ("concurrency_limited", "concurrency", "tenant", 1_500),
    ("rate_limited", "requests_per_minute", "key", 40_000),
    ("no_capacity", "kv_tokens", "pool", 900),
)


def make_usage(world: World, slug: str, count: int, **fields: Any) -> list[str]:
    """Ledger rows of a tenant within the last hour, and the rollups that they add up to."""
    key = ApiKey.objects.get(pk=world.keys[slug].id)
    draw = random.Random(f"{slug}{count}")
    now_ms = time.time_ns() // 1_000_000
    made = []
    for number in range(count):
        at_ms = now_ms - 1000 - number * 60_000 // max(count // 30, 1)
        made.append(_usage_row(key, at_ms, draw, fields))
    with connection.cursor() as cursor:
        for day in {row.day for row in made}:
            cursor.execute("SELECT headrace_ensure_partition('tenants_usage', %s)", [day])
    Usage.objects.bulk_create(made)
    _roll_up(made)
    ids = [str(row.request_id) for row in made]
    world.served.setdefault(slug, []).extend(ids)
    return ids


def make_tasks(world: World, slug: str, count: int, **fields: Any) -> list[int]:
    """Tasks of four calls each, all of the same step, with their sums; ended in turn."""
    made = []
    for number in range(count):
        name = f"{slug}-task-{count}-{number}"
        named = {"task_id": name, "task_kind": "triage", "step": "2/3", "status": "ok", **fields}
        name = named["task_id"] = f"{named['task_id']}{number if fields else ''}"
        ids = make_usage(world, slug, 4, **named)
        rows = list(Usage.objects.filter(request_id__in=ids))
        outcome = ("success", "failure", "")[number % 3]
        task = WorkTask.objects.create(
            tenant_id=world.tenants[slug],
            task=name,
            kind=named["task_kind"],
            first_at=min(row.started_at for row in rows),
            last_at=max(row.ended_at for row in rows),
            outcome=outcome,
            outcome_at=timezone.now() - timedelta(seconds=1) if outcome else None,
            outcome_source="header" if outcome else "",
        )
        for model, pool in {(row.model, row.pool) for row in rows}:
            part = [row for row in rows if (row.model, row.pool) == (model, pool)]
            sums = {
                total: sum(getattr(row, total) for row in part)
                for total in ("input_tokens", "cached_tokens", "output_tokens", "spend_nanousd")
            }
            WorkTaskPart.objects.create(
                task=task, model=model, pool=pool, requests=len(part), **sums
            )
        made.append(task.pk)
    world.task_id = made[0]
    return made


def make_refusals(world: World, slug: str, count: int, **fields: Any) -> list[str]:
    """Shape rows of refused calls of the last minutes, newest first, as the ledger writes them."""
    draw = random.Random(f"refused {slug}{count}")
    now_ms = time.time_ns() // 1_000_000
    rows = []
    for number in range(count):
        at_ms = now_ms - 2000 - number * 3000
        request_id = uuid7(at_ms, draw.getrandbits(74))
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
        code, limit, scope, wait_ms = REFUSALS[number % len(REFUSALS)]
        values: dict[str, Any] = {
            "day": day_of(request_id),
            "request_id": request_id,
            "tenant_id": world.tenants[slug],
            "model": "llama-8b",
            "work_class": "standard",
            "arrived_at": at,
            "ended_at": at,
            "outcome": f"refused:{code}",
            "max_tokens": 400,
            "input_tokens": draw.randint(80, 9000),
            "cached_tokens": 0,
            "output_tokens": 0,
            "session": "",
            "task_id": "",
            "task_kind": "",
            "step": "",
            "resend_count": 0,
            "pool": "",
            "replica": "",
            "prefix_hashes": [],
            "key_id": world.keys[slug].id,
            "refused_code": code,
            "refused_status": 503 if code == "no_capacity" else 429,
            "refused_limit": limit,
            "refused_scope": scope,
            "retry_after_ms": wait_ms,
        }
        rows.append(Shape(**{**values, **fields}))
    with connection.cursor() as cursor:
        for day in {row.day for row in rows}:
            cursor.execute("SELECT headrace_ensure_partition('tenants_shape', %s)", [day])
    Shape.objects.bulk_create(rows)
    made = [str(row.request_id) for row in rows]
    world.refusals.setdefault(slug, []).extend(made)
    return made


def _usage_row(key: ApiKey, at_ms: int, draw: random.Random, fields: dict[str, Any]) -> Usage:
    request_id = uuid7(at_ms, draw.getrandbits(74))
    start = datetime.fromtimestamp(at_ms / 1000, UTC)
    input_tokens, output_tokens = draw.randint(80, 9000), draw.randint(10, 900)
    cached = draw.randint(0, input_tokens)
    fate = draw.choices(["ok", "failed", "cancelled"], [90, 6, 4])[0]
    values: dict[str, Any] = {
        "day": day_of(request_id),
        "request_id": request_id,
        "kind": "s",
        "tenant_id": key.tenant_id,
        "key_id": key.pk,
        "project_id": key.project_id,
        "model_asked": "llama-8b",
        "model": "llama-8b",
        "pool": "eu-a-8b",
        "replica": f"eu-a-8b-{draw.randint(0, 1)}",
        "region": "eu",
        "work_class": "standard",
        "status": fate,
        "usage_source": "reported" if fate == "ok" else "counted",
        "is_suspicious": False,
        "is_stream": True,
        "http_status": 200,
        "error_code": "upstream_error" if fate == "failed" else "",
        "started_at": start,
        "first_token_at": start + timedelta(milliseconds=draw.randint(80, 900)),
        "ended_at": start + timedelta(milliseconds=draw.randint(950, 9000)),
        "input_tokens": input_tokens,
        "cached_tokens": cached,
        "output_tokens": output_tokens,
        "reasoning_tokens": 0,
        "spend_nanousd": (input_tokens - cached) * 600 + cached * 60 + output_tokens * 2400,
        "held_input_tokens": input_tokens,
        "held_output_tokens": 4096,
        "held_nanousd": 12_000_000,
        "attempts": 1,
        "policy": "main@1",
        "price_version": 1,
        "gateway": "g0",
        "upstream_request_id": "",
        "task_id": "",
        "task_kind": "",
        "step": "",
        "hops_us": {},
        "legs": [],
    }
    return Usage(**{**values, **fields})


def _roll_up(rows: list[Usage]) -> None:
    sums: dict[tuple[Any, ...], UsageRollup] = {}
    for row in rows:
        for grain, start in (
            ("m", row.ended_at.replace(second=0, microsecond=0)),
            ("h", row.ended_at.replace(minute=0, second=0, microsecond=0)),
            ("d", row.ended_at.replace(hour=0, minute=0, second=0, microsecond=0)),
        ):
            slot = (grain, start, row.tenant_id, row.key_id, row.model)
            rollup = sums.setdefault(
                slot,
                UsageRollup(
                    grain=grain,
                    start_at=start,
                    tenant_id=row.tenant_id,
                    project_id=row.project_id,
                    key_id=row.key_id,
                    model=row.model,
                    pool=row.pool,
                    work_class=row.work_class,
                    region=row.region,
                ),
            )
            rollup.requests += 1
            rollup.failed += row.status == "failed"
            rollup.cancelled += row.status == "cancelled"
            for name in ("input_tokens", "cached_tokens", "output_tokens", "spend_nanousd"):
                setattr(rollup, name, getattr(rollup, name) + getattr(row, name))
    for fresh in sums.values():
        present = UsageRollup.objects.filter(
            **{name: getattr(fresh, name) for name in _ROLLUP_NAMES}
        ).first()
        for name in _ROLLUP_SUMS if present else ():
            setattr(fresh, name, getattr(fresh, name) + getattr(present, name))
        fresh.pk = present.pk if present else None
        fresh.save()

"""A small world for page tests: people of every role, tenants, keys, a fleet, usage, live states.

Rows go through the services where those exist; the ledger's own rows are written as its writer
would.
"""

import random
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection
from django.utils import timezone

from capacity.fleet.services import create_domain, create_model, create_pool, create_region
from capacity.models import Pool, Replica, Rollout
from capacity.rollouts.rules.judging import Bar, judge
from capacity.rollouts.services import acts, machine
from capacity.rollouts.services.judging import note_judgement
from capacity.rollouts.services.steps import open_lane
from console.accounts.services import issue_token
from console.audit.rules import Actor
from console.models import Role, User
from routing.contracts.endpoint_state import EndpointState, PoolState, encode_pool_state
from routing.contracts.enums import ReplicaHealth, StoreMode
from routing.contracts.ids import day_of, uuid7
from routing.contracts.process import GatewayStatus, ProcessStatus, encode_status
from routing.evaluations.services import record_evaluation
from routing.hooks.services import add_hook
from routing.policies.rules.document import in_order
from routing.policies.selectors import live
from routing.policies.services import publish, save_draft
from routing.policies.text import to_text
from routing.store import keys
from telemetry.slos.services import set_objective
from telemetry.stats.sketch import index_of
from telemetry.stats.tries import Tries
from tenants.directory.services import add_member, create_tenant
from tenants.keys.services import IssuedKey, issue_key
from tenants.models import ApiKey, Limit, Shape, Usage, UsageRollup, WorkTask, WorkTaskPart
from tenants.prices.services import add_pool_price, add_price, add_resource_price
from tenants.quotas.services import set_limit
from tenants.requests.services import ask_for_more

ACTOR = Actor(user_id=None, label="test")
PASSWORD = "correct horse battery"
USD = 10**9
KV_TOKENS = 100_000
_ROLLUP_NAMES = (
    "grain", "start_at", "tenant_id", "project_id", "key_id", "model", "pool", "work_class",
    "region",
)  # fmt: skip
_ROLLUP_SUMS = (
    "requests", "failed", "cancelled", "input_tokens", "cached_tokens", "output_tokens",
    "spend_nanousd",
)  # fmt: skip
GRANTS = ["policy.publish", "quota.grant", "rollout.run"]
# What refused: code, limit, scope, and when the caller was told to come back.
REFUSALS = (
    ("rate_limited", "input_tokens_per_minute", "tenant", 21_000),
    ("budget_exceeded", "spend_per_day", "tenant", None),
    ("concurrency_limited", "concurrency", "tenant", 1_500),
    ("rate_limited", "requests_per_minute", "key", 40_000),
    ("no_capacity", "kv_tokens", "pool", 900),
)


@dataclass
class World:
    """What was made, by name."""

    people: dict[str, User] = field(default_factory=dict)
    tenants: dict[str, int] = field(default_factory=dict)
    keys: dict[str, IssuedKey] = field(default_factory=dict)
    pools: list[str] = field(default_factory=list)
    rollouts: list[int] = field(default_factory=list)
    task_id: int = 0
    objective_id: int = 0
    requests: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, list[str]] = field(default_factory=dict)
    draft: str = ""
    evaluation: int = 0


def make_people(world: World) -> None:
    """One person of each role; members belong to the first tenant."""
    for name, role, grants in (
        ("ana", Role.OPERATOR, GRANTS),
        ("ola", Role.OPERATOR, []),
        ("ada", Role.ADMIN, []),
        ("aud", Role.AUDITOR, []),
        ("tina", Role.NONE, []),
        ("vic", Role.NONE, []),
        ("nobody", Role.NONE, []),
    ):
        user = User(username=name, role=role, grants=grants)
        user.set_unusable_password()
        user.save()
        world.people[name] = user
    first = next(iter(world.tenants.values()))
    for name, role in (("tina", "tenant_admin"), ("vic", "tenant_viewer")):
        add_member(tenant_id=first, user_id=world.people[name].pk, role=role, actor=ACTOR)


def make_members(world: World, slug: str, count: int) -> list[User]:
    """Viewers of a tenant, each with an API token."""
    made = []
    for number in range(count):
        user = User.objects.create(username=f"viewer-{number:03d}", email=f"v{number}@x.example")
        add_member(
            tenant_id=world.tenants[slug], user_id=user.pk, role="tenant_viewer", actor=ACTOR
        )
        issue_token(user_id=user.pk, name="t", actor=ACTOR)
        made.append(user)
    return made


def make_tenant(
    world: World, slug: str, name: str = "", *, key_name: str = "support bot", zone: str = "UTC"
) -> int:
    """A tenant with a key and a limit of each kind; all but one limit as rows: most of the work."""
    tenant_id = create_tenant(slug=slug, name=name or slug.title(), timezone=zone, actor=ACTOR)
    world.tenants[slug] = tenant_id
    world.keys[slug] = issue_key(tenant_id=tenant_id, name=key_name, actor=ACTOR)
    usd = {"scope": "tenant", "dimension": "usd", "window": "d", "amount": 100 * USD}
    set_limit(tenant_id=tenant_id, actor=ACTOR, **usd)
    others = [
        Limit(tenant_id=tenant_id, scope="tenant", dimension=name, window=window, amount=amount)
        for name, window, amount in (
            ("in", "m", 150_000), ("out", "m", 60_000), ("req", "m", 600), ("conc", "g", 10),
        )
    ]  # fmt: skip
    of_key = {"scope": "key", "key_id": world.keys[slug].id, "dimension": "req", "window": "m"}
    Limit.objects.bulk_create([*others, Limit(tenant_id=tenant_id, amount=300, **of_key)])
    return tenant_id


def make_quota_request(world: World, slug: str, dimension: str = "in", reason: str = "") -> int:
    """A tenant asks for twice its limit of that dimension."""
    limit = Limit.objects.get(tenant_id=world.tenants[slug], scope="tenant", dimension=dimension)
    world.requests[slug] = ask_for_more(
        tenant_id=world.tenants[slug],
        limit_id=limit.pk,
        amount=2 * limit.amount,
        reason=reason or "The launch on Monday doubles our traffic.",
        until=timezone.now() + timedelta(days=7),
        actor=ACTOR,
    )
    return world.requests[slug]


def make_fleet(world: World, pools: dict[str, int], model: str = "llama-8b") -> None:
    """A priced model, a region, and pools with that many ready replicas."""
    create_model(name=model, context_tokens=16_384, bytes_per_token=3.0, actor=ACTOR)
    create_region(slug="eu", name="Europe", actor=ACTOR)
    create_domain(region="eu", slug="eu-a", actor=ACTOR)
    add_price(
        model=model,
        input_nanousd=600_000_000,
        cached_nanousd=60_000_000,
        output_nanousd=2_400_000_000,
        actor=ACTOR,
    )
    make_pools(world, pools, model)


def make_pools(world: World, pools: dict[str, int], model: str = "llama-8b") -> None:
    """Pools with that many ready replicas."""
    now = timezone.now()
    for at, (name, count) in enumerate(pools.items()):
        pool_id = create_pool(
            name=name,
            model=model,
            driver="simulated",
            region="eu",
            domain="eu-a",
            hardware="sim-h200",
            spec={"profile": "demo"},
            desired_replicas=count,
            actor=ACTOR,
        )
        world.pools.append(name)
        Replica.objects.filter(pool_id=pool_id).delete()
        Replica.objects.bulk_create(
            Replica(
                pool=Pool.objects.get(pk=pool_id),
                name=f"{name}-{ordinal}",
                ordinal=ordinal,
                host="127.0.0.1",
                port=30_000 + 100 * at + ordinal,
                lifecycle="ready",
                lifecycle_since=now - timedelta(minutes=7 * (ordinal + 1)),
            )
            for ordinal in range(count)
        )


def make_single_prices(world: World, pool: str, count: int) -> None:
    """Prices of resources and of a pool's GPU-seconds, and a limit on each resource of acme."""
    for _ in range(count):
        version = add_resource_price(resource="db:orders", unit_nanousd=2_000, actor=ACTOR)
        add_pool_price(pool=pool, gpu_second_nanousd=694_445, actor=ACTOR)
        set_limit(
            tenant_id=world.tenants["acme"],
            scope="resource",
            resource=f"tool:t{version}",
            dimension="req",
            window="m",
            amount=10,
            actor=ACTOR,
        )


def make_policy(world: World, model: str = "llama-8b", versions: int = 1) -> None:
    """Published versions of the policy `main`."""
    for number in range(1, versions + 1):
        publish(
            policy="main",
            document={
                "schema_version": 1,
                "name": "main",
                "note": f"version {number}",
                "models": {
                    model: {"targets": [{"pool": pool, "weight": number} for pool in world.pools]}
                },
            },
            base=number - 1 or None,
            note=f"weights {number}",
            actor=Actor(world.people["ana"].pk, "ana") if world.people else ACTOR,
        )


def make_hook(name: str = "pii") -> None:
    """A webhook that no policy names yet."""
    url, secret = "https://guard.example.com/check", "a-secret-of-the-factories"
    add_hook(name=name, kind="webhook", url=url, secret=secret, purpose="Names", actor=ACTOR)


def make_evaluations(world: World, count: int = 1) -> None:
    """Records that a second model of the catalogue may stand in for the first."""
    if not world.evaluation:
        create_model(name="llama-70b", context_tokens=16_384, bytes_per_token=3.0, actor=ACTOR)
    for number in range(count):
        made = record_evaluation(
            model="llama-8b",
            stands_in="llama-70b",
            score_ratio=0.93,
            note=f"200 support questions, judged by two people, round {number}.",
            actor=ACTOR,
        )
        world.evaluation = made.id


def make_rollout(world: World, pool: str, *, reason: str = "a newer build") -> int:
    """A rollout of a pool with one lane under way, judged as far as it goes; its id."""
    rollout_id = acts.start(pool=pool, plan=acts.Plan(reason=reason), actor=ACTOR)
    machine.advance_once(rollout_id)
    machine.advance_once(rollout_id)
    sides = Tries(31, 1, {9: {index_of(0.21): 30}}), Tries(240, 0, {9: {index_of(0.18): 240}})
    found = judge((sides[0], sides[0]), (sides[1], sides[1]), Bar())
    note_judgement(open_lane(Rollout.objects.get(pk=rollout_id)), found)
    world.rollouts.append(rollout_id)
    return rollout_id


def make_draft(world: World, changed: str = '"stale_after_s": 9') -> str:
    """A draft of `main` on its live version with one change; returns its tag."""
    current = live("main")
    assert current is not None
    text = to_text(in_order(current.document)).replace('"stale_after_s": 3', changed)
    return save_draft(
        policy="main",
        text=text,
        base=current.number,
        note="slower scrapes",
        actor=Actor(world.people["ana"].pk, "ana"),
    ).tag


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
    return [str(row.request_id) for row in made]


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


def make_objective(world: World, **fields: Any) -> None:
    """Half a second to the first token, for 99 % of everything."""
    values = {"work_class": "", "model": "", "metric": "ttft", "threshold_ms": 500}
    world.objective_id = set_objective(**{**values, "target_ratio": 0.99, "actor": ACTOR, **fields})


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


def beat(store: Any, *, age_ms: int = 0, gateways: int = 2, snapshot: int = 1) -> None:
    """Every process and gateway reports, `age_ms` ago."""
    now_ms = time.time_ns() // 1_000_000 - age_ms
    for number, name in enumerate(("console", "worker", "beat", "collector", "ledger")):
        status = ProcessStatus(
            name=name,
            pid=4000 + number,
            started_at_ms=now_ms - 7_200_000,
            at_ms=now_ms,
            version="0.1.0",
            lag_s=0.2 if name in ("collector", "ledger") else None,
        )
        store.hset(keys.PROCESSES, f"{name}:{status.pid}", encode_status(status))
    for number in range(gateways):
        gateway = GatewayStatus(
            gateway_id=f"g{number}",
            incarnation=f"i{number}",
            pid=5000 + number,
            host="127.0.0.1",
            port=8100,
            admin_port=8200 + number,
            started_at_ms=now_ms - 7_200_000,
            at_ms=now_ms,
            snapshot_number=snapshot,
            policy="main@1",
            state="serving",
            store_mode=StoreMode.SHARED,
            in_flight=3 + number,
            journal_pending=0,
            version="0.1.0",
        )
        store.hset(keys.GATEWAYS, gateway.gateway_id, encode_status(gateway))


def scrape(store: Any, pool: str, *, age_ms: int = 0, **by_ordinal: Any) -> None:
    """The collector's report on every replica of a pool; `r3={...}` changes replica 3."""
    now_ms = time.time_ns() // 1_000_000 - age_ms
    states = []
    for replica in Replica.objects.filter(pool__name=pool).order_by("ordinal"):
        draw = random.Random(replica.name)
        values: dict[str, Any] = {
            "replica_id": replica.name,
            "pool": pool,
            "at_ms": now_ms,
            "health": ReplicaHealth.OK,
            "running": draw.randint(0, 12),
            "waiting": draw.randint(0, 3),
            "kv_usage_ratio": draw.random(),
            "kv_capacity_tokens": KV_TOKENS,
            "block_size_tokens": 16,
            "prompt_tokens_per_s": draw.random() * 9000,
            "generation_tokens_per_s": draw.random() * 900,
            "prefix_hit_ratio": draw.random(),
            "engine_version": "0.32.0+sim",
        }
        states.append(EndpointState(**{**values, **by_ordinal.get(f"r{replica.ordinal}", {})}))
    store.set(keys.pool_state(pool), encode_pool_state(PoolState(pool, now_ms, states)))
    store.sadd(keys.POOLS_WITH_STATE, pool)

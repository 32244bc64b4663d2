"""People of every role, tenants with keys and limits, and what they ask for."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.utils import timezone

from console.accounts.services import issue_token
from console.audit.rules import Actor
from console.models import Role, User
from telemetry.slos.services import set_objective
from tenants.directory.services import add_member, create_tenant
from tenants.keys.services import IssuedKey, issue_key
from tenants.models import Limit
from tenants.quotas.services import set_limit
from tenants.requests.services import ask_for_more

ACTOR = Actor(user_id=None, label="test")
PASSWORD = "correct horse battery"
USD = 10**9
GRANTS = ["policy.publish", "quota.grant", "rollout.run"]


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
    served: dict[str, list[str]] = field(default_factory=dict)
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


def make_objective(world: World, **fields: Any) -> None:
    """Half a second to the first token, for 99 % of everything."""
    values = {"work_class": "", "model": "", "metric": "ttft", "threshold_ms": 500}
    world.objective_id = set_objective(**{**values, "target_ratio": 0.99, "actor": ACTOR, **fields})

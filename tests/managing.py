"""Rows in PostgreSQL, a real gateway that runs what is pushed from them, and REST between.

The test stands in for the worker: it pushes the snapshot that the act has queued.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.test import Client
from django.utils import timezone

from capacity.models import Replica
from console.accounts.services import issue_token
from console.models import Job
from routing.contracts.snapshot import bucket_of
from routing.policies.services import push_snapshot
from tenants.directory.services import create_tenant
from tenants.keys.services import issue_key
from tests import factories
from tests.factories import ACTOR, World
from tests.stack import GatewayProcess, open_buckets, start_gateway
from tests.upstream import UpstreamThread

SECONDS_TO_TAKE_EFFECT = 5  # the bound that the cases set from saving to refusing


def managed_world(upstream: UpstreamThread, *slugs: str) -> World:
    """Tenants with a key each and no limits; `llama-8b` served by one replica: the upstream."""
    world = World()
    for slug in slugs:
        tenant_id = create_tenant(slug=slug, name=slug.title(), actor=ACTOR)
        world.tenants[slug] = tenant_id
        world.keys[slug] = issue_key(tenant_id=tenant_id, name="bot", actor=ACTOR)
    factories.make_people(world)
    factories.make_fleet(world, {"p-a": 1})
    host, port = upstream.address
    Replica.objects.update(host=host, port=port)
    factories.make_policy(world)
    return world


@contextmanager
def managed_gateway(
    world: World, store: Any, state: Path, *, has_ledger: bool = False, **env: str
) -> Iterator[GatewayProcess]:
    """A gateway that runs the pushed snapshot; killed at the end.

    Without a ledger writer (`has_ledger`) counters are opened here.
    """
    push_snapshot()
    if not has_ledger:
        open_buckets(store, {bucket_of(str(pk)) for pk in world.tenants.values()})
    pepper = {"HEADRACE_KEY_PEPPER": os.environ["HEADRACE_KEY_PEPPER"]}
    with start_gateway(None, os.environ["REDIS_URL"], state, **pepper, **env) as gateway:
        try:
            yield gateway
        finally:
            gateway.process.kill()
            gateway.process.wait(10)


class Manager:
    """One person at the REST API; each accepted write reaches the gateways."""

    def __init__(self, world: World, name: str = "ada") -> None:
        user = world.people[name]
        named = f"{name} {timezone.now().isoformat()}"
        self.secret = issue_token(user_id=user.pk, name=named, actor=ACTOR).secret

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """The response; a write that queued a push is pushed."""
        answer = getattr(Client(), method)(
            f"/api/v1/{path}",
            **({} if body is None else {"data": json.dumps(body)}),
            content_type="application/json",
            headers={"Authorization": f"Bearer {self.secret}", **headers},
        )
        if Job.objects.filter(kind="push_snapshot", state="queued").delete()[0]:
            push_snapshot()
        return answer

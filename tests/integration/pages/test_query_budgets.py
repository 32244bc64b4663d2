"""Pages: how many queries each costs."""

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tenants.keys.services import issue_key
from tests import factories
from tests.pages import LISTS, OTHERS, client_of, path_of
from tests.playbooking import make_runs

pytestmark = pytest.mark.django_db
LIST_QUERIES, OTHER_QUERIES = 12, 15


def count_queries(client: Client, path: str) -> int:
    with CaptureQueriesContext(
        connection,
    ) as captured:
        answer = client.get(path)
    assert answer.status_code == 200, path
    return len(captured)


def test_queries_stay_inside_the_budget_and_do_not_grow_with_rows(world, store):
    client = client_of(world, "ada")
    paths = (*LISTS, *OTHERS)
    stopped = {"refused_scope": "task", "refused_limit": "task_steps"}
    factories.make_refusals(world, "acme", 1, task_id="acme-task-2-0", **stopped)
    few = {path: count_queries(client, path_of(world, path)) for path in paths}
    factories.make_usage(world, "acme", 60)
    first_task = world.task_id
    factories.make_tasks(world, "acme", 50)
    world.task_id = first_task
    factories.make_members(world, "acme", 50)
    factories.make_refusals(world, "acme", 60)
    factories.make_refusals(world, "acme", 50, task_id="acme-task-2-0", **stopped)
    for count in range(1, 13):  # ids are drawn by the count
        factories.make_refusals(world, "globex", count, task_id=f"t-{count}", **stopped)
    for dimension in ("out", "req", "usd"):
        factories.make_quota_request(world, "acme", dimension)
    factories.make_single_prices(world, "p-a", 50)
    for number in range(50):
        factories.make_tenant(world, f"team-{number:02d}")
        factories.make_quota_request(world, f"team-{number:02d}")
    factories.make_evaluations(world, 60)
    make_runs(world, 60)
    for number in range(49):
        factories.make_hook(f"hook-{number}")
    extra = factories.World(keys=world.keys)
    for _ in range(50):
        issue_key(tenant_id=world.tenants["acme"], name="more", actor=factories.ACTOR)
    factories.make_pools(extra, {f"q-{number:02d}": 2 for number in range(50)})
    world.pools += extra.pools[:1]
    for pool in extra.pools:
        factories.make_rollout(world, pool)
    for pool in extra.pools:
        factories.scrape(store, pool)
    many = {path: count_queries(client, path_of(world, path)) for path in paths}
    assert {path for path in paths if many[path] > few[path]} == set()
    assert {path for path in LISTS if many[path] > LIST_QUERIES} == set()
    assert {path for path in OTHERS if many[path] > OTHER_QUERIES} == set()

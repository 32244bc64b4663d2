"""A task's page and REST say its caps, what it used and what a cap refused: its tenant's own."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from django.db import connection
from django.utils import timezone

from tenants.models import WorkTask
from tenants.work import selectors
from tenants.work.caps import standing_of, stopped_tasks, stops_of
from tests import factories
from tests.accounting import AMOUNTS, redis_url
from tests.factories import World
from tests.pages import client_of
from tests.tasking import CAPS, SPENT_NANOUSD, make_live

pytestmark = pytest.mark.django_db
STOPPED = {
    "refused_code": "task_steps_exceeded",
    "refused_limit": "task_steps",
    "refused_scope": "task",
}


@pytest.fixture
def world(store: redis.Redis) -> World:
    made = World()
    factories.make_tenant(made, "acme", "Acme Support")
    factories.make_tenant(made, "globex", "Globex Research")
    factories.make_people(made)
    factories.make_tasks(made, "acme", 2)
    return made


def task_of(world: World) -> selectors.TaskRow:
    return selectors.task_by_id(tenant_ids=None, task_id=world.task_id)


def stop(world: World, task: str, count: int = 1, slug: str = "acme", **fields: Any) -> None:
    factories.make_refusals(world, slug, count, task_id=task, **(STOPPED | fields))


def two_steps(world: World, tmp_path: Path) -> None:
    make_live(redis_url(), str(world.tenants["acme"]), task_of(world).task, tmp_path)


def test_standing_is_what_gateways_admit_by(store: redis.Redis, world: World, tmp_path: Path):
    assert standing_of(task_of(world)) is None
    two_steps(world, tmp_path)
    standing = standing_of(task_of(world))
    assert standing is not None
    assert standing.caps == CAPS
    assert (standing.steps, standing.held_steps) == (1, 1)
    assert (standing.spend_nanousd, standing.held_nanousd) == (
        SPENT_NANOUSD,
        AMOUNTS.spend_nanousd,
    )
    assert 0 <= standing.lasted_s <= 120
    store.flushall()
    assert standing_of(task_of(world)) is None


def test_page_and_rest_say_the_same(world: World, tmp_path: Path):
    two_steps(world, tmp_path)
    stop(world, task_of(world).task, 2, step="4/4")
    ada = client_of(world, "ada")
    text = ada.get(f"/tasks/{world.task_id}/").content.decode()
    for words in ("Caps", "Held by running calls", "0.0015", "1,800", "4/4", "stopped"):
        assert words in text, words
    told = ada.get(f"/api/v1/tasks/{world.task_id}/caps/").json()
    assert told["standing"]["caps"] == {
        "max_steps": 4, "max_spend_usd": "0.02", "max_wall_s": 1800, "max_repeats": 3,
    }  # fmt: skip
    assert (told["standing"]["steps"], told["standing"]["held_steps"]) == (1, 1)
    assert told["standing"]["spend_usd"] == "0.0015"
    assert [one["limit"] for one in told["refused"]] == ["task_steps"] * 2
    assert all(one["request_id"] in text for one in told["refused"])


def test_a_task_without_caps_says_what_to_do(world: World):
    text = client_of(world, "ada").get(f"/tasks/{world.task_id}/").content.decode()
    assert "No cap in force" in text
    told = client_of(world, "ada").get(f"/api/v1/tasks/{world.task_id}/caps/").json()
    assert told == {"standing": None, "refused": []}


def test_refused_calls_are_the_tasks_own_and_its_tenants(world: World):
    task = task_of(world)
    stop(world, task.task, 3)
    stop(world, "another")
    stop(world, task.task, 2, slug="globex")
    factories.make_refusals(world, "acme", 5, task_id=task.task)  # by limits of the tenant
    found = stops_of(task)
    assert len(found) == 3
    assert [one.at for one in found] == sorted((one.at for one in found), reverse=True)


def test_stopped_tasks_of_a_period_the_last_first(world: World):
    stop(world, task_of(world).task, 3)
    stop(world, "never-served", 2, refused_limit="task_spend", refused_scope="parent_task")
    stop(world, "other", slug="globex")
    since = timezone.now() - timedelta(hours=1)
    acme = frozenset({world.tenants["acme"]})
    by_task = {one.task: one for one in stopped_tasks(tenant_ids=acme, since=since)}
    assert by_task.keys() == {task_of(world).task, "never-served"}
    assert (by_task[task_of(world).task].id, by_task[task_of(world).task].calls) == (
        world.task_id,
        3,
    )
    assert by_task["never-served"].id is None
    assert len(stopped_tasks(tenant_ids=None, since=since)) == 3
    assert stopped_tasks(tenant_ids=None, since=timezone.now()) == ()
    text = client_of(world, "ada").get("/tasks/").content.decode()
    assert "spend of its parent task" in text
    assert "never-served" in text
    own = client_of(world, "ada").get("/t/globex/tasks/").content.decode()
    assert "never-served" not in own


def test_refused_calls_are_found_by_their_task_without_a_sort(world: World):
    stop(world, task_of(world).task, 40)
    assert WorkTask.objects.count() == 2
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(
            "EXPLAIN SELECT request_id FROM tenants_shape"
            " WHERE refused_scope IN ('task', 'parent_task') AND tenant_id = 1 AND task_id = 'x'"
            " AND day >= now()::date ORDER BY day DESC, request_id DESC LIMIT 20"
        )
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "tenant_id_task_id_day_request_id" in plan, plan
    assert "Sort" not in plan

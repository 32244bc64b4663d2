"""Outcomes by key and by person: once, bounded by traffic, and only for one's own tasks."""

import json
from typing import Any

import pytest
from django.test import Client

from console.accounts.services import issue_token
from tenants.directory.services import suspend_tenant
from tenants.keys.services import revoke_key
from tenants.models import WorkTask
from tests import factories
from tests.factories import ACTOR, World

pytestmark = pytest.mark.django_db
OPEN_TASK = "acme-task-3-2"


@pytest.fixture
def world(store) -> World:
    made = World()
    factories.make_tenant(made, "acme", "Acme")
    factories.make_tenant(made, "globex", "Globex")
    factories.make_people(made)
    factories.make_fleet(made, {"p-a": 1})
    factories.make_tasks(made, "acme", 3)
    return made


def report(secret: str, **body: Any) -> Any:
    return Client().post(
        "/api/v1/task-outcomes/",
        data=json.dumps({"task_id": OPEN_TASK, "outcome": "success", **body}),
        content_type="application/json",
        headers={"Authorization": f"Bearer {secret}"},
    )


def test_a_key_reports_its_own_task_and_the_first_report_stands(world: World) -> None:
    secret = world.keys["acme"].secret
    first = report(secret, score_ratio=0.5)
    assert first.status_code == 200, first.content
    again = report(secret, score_ratio=0.5)
    assert (again.status_code, again.json()) == (200, first.json())
    other = report(secret, outcome="failure")
    assert (other.status_code, other.json()["field"]) == (409, "outcome")
    row = WorkTask.objects.get(task=OPEN_TASK)
    assert (row.outcome, row.score_ratio) == ("success", 0.5)
    assert row.outcome_source == f"key {world.keys['acme'].prefix}"


def test_another_tenants_key_finds_no_such_task(world: World) -> None:
    answer = report(world.keys["globex"].secret)
    assert (answer.status_code, answer.json()["field"]) == (404, "task_id")
    assert WorkTask.objects.get(task=OPEN_TASK).outcome == ""


def test_a_task_without_a_booked_request_is_refused(world: World) -> None:
    count = WorkTask.objects.count()
    answer = report(world.keys["acme"].secret, task_id="never-seen")
    assert answer.status_code == 404
    assert "again" in answer.json()["hint"]
    assert WorkTask.objects.count() == count


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"outcome": "splendid"}, 400, "outcome"),
        ({"score_ratio": 1.5}, 400, "score_ratio"),
        ({"tenant": "acme"}, 422, "tenant"),
        ({"task_id": "x" * 121}, 400, "task_id"),
        ({"note": "hello"}, 400, "note"),
    ],
)
def test_a_bad_report_names_its_field(
    world: World, body: dict[str, Any], status: int, field: str
) -> None:
    answer = report(world.keys["acme"].secret, **body)
    assert (answer.status_code, answer.json()["field"]) == (status, field)


def test_a_key_that_no_gateway_takes_reports_nothing(world: World) -> None:
    key = world.keys["acme"]
    assert report(key.secret[:-1] + ("a" if key.secret[-1] != "a" else "b")).status_code == 401
    suspend_tenant(tenant_id=world.tenants["acme"], reason="test", actor=ACTOR)
    assert report(key.secret).status_code == 401
    globex = world.keys["globex"]
    revoke_key(tenant_id=world.tenants["globex"], key_id=globex.id, reason="x", actor=ACTOR)
    assert report(globex.secret).status_code == 401


def test_a_person_names_the_tenant(world: World) -> None:
    secret = issue_token(user_id=world.people["ola"].pk, name="t", actor=ACTOR).secret
    assert report(secret).json()["field"] == "tenant"
    assert report(secret, tenant="acme").status_code == 200
    assert WorkTask.objects.get(task=OPEN_TASK).outcome_source == "person"


def test_an_api_key_opens_no_other_endpoint(world: World) -> None:
    for path in ("tasks/", "me/", "usage/"):
        headers = {"Authorization": f"Bearer {world.keys['acme'].secret}"}
        assert Client().get(f"/api/v1/{path}", headers=headers).status_code == 401, path

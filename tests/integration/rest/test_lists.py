"""REST: lists page by key and cost the same at any length."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tenants.keys.services import issue_key
from tests import factories
from tests.endpoints import LISTS, Caller
from tests.factories import ACTOR

pytestmark = pytest.mark.django_db

QUERIES = 12


def pages(caller: Caller, path: str, key: str) -> list[Any]:
    found, after = [], ""
    while True:
        page = caller.call("get", f"{path}limit=7{after}").json()
        assert len(page["items"]) <= 7
        found += [row[key] for row in page["items"]]
        if page["next"] is None:
            return found
        after = f"&after={page['next']}"


def test_paging_shows_each_row_once_also_while_rows_arrive(world):
    ids = {world.usage, *factories.make_usage(world, "acme", 30)}
    caller = Caller(world, "aud")
    first = caller.call("get", "usage/?limit=7").json()
    late = factories.make_usage(world, "acme", 5)
    rest_of = [row["request_id"] for row in first["items"]]
    after = first["next"]
    while after:
        page = caller.call("get", f"usage/?limit=7&after={after}").json()
        rest_of += [row["request_id"] for row in page["items"]]
        after = page["next"]
    assert len(rest_of) == len(set(rest_of))
    assert ids - {world.usage} <= set(rest_of) | set(late)


@pytest.mark.parametrize(
    ("path", "key"),
    [("audit/?", "id"), ("tenants/?", "slug"), ("tenants/acme/keys/?", "id"), ("prices/?", "id")],
)
def test_every_list_pages_to_its_end(world, path, key):
    for number in range(20):
        factories.make_tenant(world, f"team-{number:02d}")
        issue_key(tenant_id=world.tenants["acme"], name="more", actor=ACTOR)
    found = pages(Caller(world, "ada"), path, key)
    assert len(found) == len(set(found))
    assert len(found) > 20 or path.startswith("prices")


@pytest.mark.parametrize("path", ["audit/", "jobs/", "tenants/acme/keys/", "prices/", "usage/"])
def test_a_cursor_that_is_not_ours_is_refused_alike_on_every_list(world, path):
    caller = Caller(world, "ada")
    for cursor in ("%27%3B--", "%00", "", "9" * 601):
        answer = caller.call("get", f"{path}?after={cursor}")
        told = (answer.status_code, answer.json()["code"], answer.json()["field"])
        assert told == (422, "invalid", "after"), answer.content


def test_queries_do_not_grow_with_rows(world, store):
    caller = Caller(world, "ada")

    def count(path: str) -> int:
        with CaptureQueriesContext(connection) as captured:
            assert caller.call("get", path).status_code == 200, path
        return len(captured)

    caller.call("get", "me/")  # notes the token's use, once a minute
    few = {path: count(path) for path in LISTS}
    factories.make_usage(world, "acme", 60)
    for number in range(50):
        factories.make_tenant(world, f"team-{number:02d}")
        issue_key(tenant_id=world.tenants["acme"], name="more", actor=ACTOR)
    factories.make_pools(world, {f"q-{number:02d}": 2 for number in range(50)})
    many = {path: count(path) for path in LISTS}
    assert many == few
    assert {path: found for path, found in many.items() if found > QUERIES} == {}

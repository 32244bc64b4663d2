"""REST: what each role may do, and what is absent for it."""

import json
import re

import pytest
from django.db import connection

from console.project import rest
from tests import factories
from tests.endpoints import ENDPOINTS, EVERYONE, LISTS, PROBLEM, Caller

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("name", EVERYONE)
def test_each_role_may_do_what_the_design_gives_it(world, name):
    caller = Caller(world, name)
    for method, path, body, may in ENDPOINTS:
        # Each act is undone, so that every one meets the same world.
        with connection.cursor() as cursor:
            cursor.execute("SAVEPOINT before_act")
        tag = {"If-Match": world.draft} if "draft/" in path else {}
        answer = caller.call(method, path, body, **tag)
        with connection.cursor() as cursor:
            cursor.execute("ROLLBACK TO SAVEPOINT before_act")
        told = (method, path, answer.content)
        if name in may:
            assert answer.status_code in (200, 201, 202, 204), told
            continue
        of_acme = ("acme", "{usage}", "{task}", "task-outcomes")
        absent = any(part in path for part in of_acme) and name == "nobody"
        assert answer.status_code == (404 if absent else 403), told
        assert set(answer.json()) == PROBLEM
        assert answer.json()["request_id"] == answer.headers["X-Request-ID"]


def test_every_mounted_endpoint_is_in_the_matrix():
    routes = {pattern.name for pattern in _flat(rest._v1)}
    tested = {
        re.sub(
            r"\{(\w+)\}|\b(acme|main|p-a|pii|noisy-tenant|node|region|daily|json)\b|\b\d+\b",
            "*",
            path.split("?")[0],
        )
        for _, path, _, _ in ENDPOINTS
    }
    mounted = {re.sub(r"<[^>]+>", "*", path) for path in _paths(rest._v1)}
    assert mounted - tested == {
        "tokens/*/",
        "tenants/*/projects/*/",
        "series/",  # tested with its slice
        "policies/*/apply/",  # needs a plan: tested with plans
        "invitations/accept/",  # needs the person who was invited: tested with invitations
        "playbooks/*/runs/*/approve/",  # needs a run that asks: tested with signals
    }
    assert None not in routes


def _flat(patterns):
    for pattern in patterns:
        yield from _flat(pattern.url_patterns) if hasattr(pattern, "url_patterns") else [pattern]


def _paths(patterns, prefix=""):
    for pattern in patterns:
        path = prefix + str(pattern.pattern)
        if hasattr(pattern, "url_patterns"):
            yield from _paths(pattern.url_patterns, path)
        else:
            yield path


def test_another_tenants_object_and_none_at_all_look_the_same(world):
    caller = Caller(world, "tina")
    own_key, other_key = world.keys["acme"].id, world.keys["globex"].id
    other_usage = factories.make_usage(world, "globex", 1)[0]
    for path in (
        "tenants/globex/",
        "tenants/globex/keys/",
        f"tenants/globex/keys/{other_key}/",
        f"tenants/globex/keys/{own_key}/",
        f"tenants/acme/keys/{other_key}/",
        "tenants/globex/limits/",
        "tenants/no-such/",
        "usage/?tenant=globex",
        f"usage/{other_usage}/",
        "usage/01890000-0000-7000-8000-000000000000/",
    ):
        answer = caller.call("get", path)
        assert answer.status_code == 404, path
        assert answer.json()["code"] == "not_found"
    rotated = caller.call("post", f"tenants/acme/keys/{other_key}/rotate/", {})
    assert rotated.status_code == 404
    assert [row["slug"] for row in caller.call("get", "tenants/").json()["items"]] == ["acme"]
    assert {row["tenant"] for row in caller.call("get", "usage/").json()["items"]} == {"acme"}


def test_no_answer_tells_a_stranger_which_tenants_there_are(world):
    """Every endpoint that names a tenant, asked for another's and for none, in the same words."""
    caller = Caller(world, "nobody")
    compared = 0
    for method, path, body, _ in ENDPOINTS:
        text = json.dumps(body)
        if not re.search(r"\bacme\b", path) and '"acme"' not in text:
            continue
        other = json.loads(text.replace('"acme"', '"no-such"'))
        told = [
            (answer.status_code, {**answer.json(), "request_id": ""})
            for answer in (
                caller.call(method, path, body),
                caller.call(method, re.sub(r"\bacme\b", "no-such", path), other),
            )
        ]
        assert told[0] == told[1], (method, path)
        assert told[0][0] in (403, 404), (method, path)
        compared += 1
    assert compared > 30


def test_members_see_nothing_of_the_fleet_in_their_rows(world):
    fleet = {"pool", "replica", "region", "gateway", "upstream_request_id", "hops_us"}
    row = Caller(world, "vic").call("get", "usage/").json()["items"][0]
    assert not fleet & set(row)
    assert fleet <= set(Caller(world, "aud").call("get", "usage/").json()["items"][0])


def test_no_answer_holds_a_digest_or_salt(world):
    caller = Caller(world, "ada")
    text = "".join(caller.call("get", path).content.decode() for path in LISTS)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT digest FROM tenants_apikey UNION SELECT digest FROM console_apitoken"
            " UNION SELECT cache_salt FROM tenants_tenant"
        )
        for (secret,) in cursor.fetchall():
            assert secret not in text

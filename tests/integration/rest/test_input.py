"""REST: what is refused, and at which field."""

from typing import Any

import pytest

from console.rest.requests import MAX_BODY_BYTES
from tests.endpoints import (
    DOCUMENT,
    GRID,
    LAB,
    LIMIT,
    NEW_USER,
    OBJECTIVE,
    PRICE,
    PROBLEM,
    Caller,
)

pytestmark = pytest.mark.django_db


WRONG: list[tuple[str, str, Any, str]] = [
    ("post", "tenants/", {"slug": "x", "name": "X", "rpm": 5}, "rpm"),
    ("post", "tenants/", {"slug": "x", "name": 5}, "name"),
    ("post", "tenants/", {"slug": "x", "name": "X", "allowed_models": "*"}, "allowed_models"),
    ("put", "tenants/acme/limits/", {**LIMIT, "amout": 5}, "amout"),
    ("put", "pools/p-a/provider/", {"key": "sk-0123456789"}, "key"),
    ("put", "tenants/acme/limits/", {**LIMIT, "amount": "5"}, "amount"),
    ("put", "tenants/acme/limits/", {**LIMIT, "amount": True}, "amount"),
    ("put", "tenants/acme/limits/", {**LIMIT, "amount": 5.5}, "amount"),
    ("put", "tenants/acme/limits/", {**LIMIT, "dimension": "tpm"}, "dimension"),
    ("put", "tenants/acme/limits/", {**LIMIT, "window": "mo", "anchor_day": "15"}, "anchor_day"),
    ("put", "tenants/acme/limits/", {**LIMIT, "window": "mo", "anchor_day": 32}, "anchor_day"),
    ("post", "prices/", {**PRICE, "output_usd_per_mtok": 2.4}, "output_usd_per_mtok"),
    ("post", "prices/", {**PRICE, "confirm": "yes"}, "confirm"),
    ("post", "pool-prices/", {"pool": "p-a", "gpu_second_usd": 0.001}, "gpu_second_usd"),
    ("post", "resource-prices/", {"resource": "tool:x", "unit_usd": 2.4}, "unit_usd"),
    ("post", "prices/", {**PRICE, "valid_from": "2099-01-01T00:00:00"}, "valid_from"),
    ("put", "objectives/", {**OBJECTIVE, "target_ratio": True}, "target_ratio"),
    ("put", "carbon/grid/", {**GRID, "pue": "1.2"}, "pue"),
    ("post", "capacity-lab/", {**LAB, "rate_rps": True}, "rate_rps"),
    ("get", "usage/?tennant=acme", None, "tennant"),
    ("get", "usage/?limit=1000", None, "limit"),
    ("get", "usage/?limit=0", None, "limit"),
]


def test_unknown_names_and_wrong_types_are_refused(world):
    caller = Caller(world, "ada")
    for method, path, body, field in WRONG:
        answer = caller.call(method, path, body)
        assert answer.status_code == 400, (path, body)
        assert answer.json()["field"].startswith(field)
        assert {"field", "code", "title"} == set(answer.json()["errors"][0])


def test_an_override_that_nothing_would_obey_is_refused_at_its_field(world):
    caller = Caller(world, "ada")
    caps = {"kind": "output_cap", "work_class": "batch", "amount": 9, "reason": "Busy."}
    shed = {"kind": "shed", "work_class": "batch", "reason": "Busy."}
    before = caller.call("get", "overrides/").json()
    for wrong, field in (
        ({**caps, "model": "ghost"}, "model"),
        ({**caps, "model": "*"}, "model"),
        (shed, "admitted_ratio"),
        ({**shed, "admitted_ratio": None}, "admitted_ratio"),
        ({**shed, "admitted_ratio": 0, "model": "ghost"}, "model"),
    ):
        answer = caller.call("post", "overrides/", wrong)
        assert (answer.status_code, answer.json()["field"]) == (422, field), wrong
        assert field != "model" or "Known: llama-70b, llama-8b." in answer.json()["hint"]
    assert caller.call("get", "overrides/").json() == before
    for right in ({**caps, "model": "llama-8b"}, {**shed, "admitted_ratio": 0}):
        assert caller.call("post", "overrides/", right).status_code == 201, right


def test_an_objective_of_a_model_that_there_is_not_is_refused_by_name(world):
    caller = Caller(world, "ada")
    answer = caller.call("put", "objectives/", {**OBJECTIVE, "model": "ghost"})
    assert (answer.status_code, answer.json()["field"]) == (422, "model")
    assert "Known: llama-70b, llama-8b." in answer.json()["hint"]
    known = caller.call("put", "objectives/", {**OBJECTIVE, "model": "llama-8b"})
    assert (known.status_code, known.json()["model"]) == (200, "llama-8b")


def test_a_choice_that_is_not_offered_is_refused_with_those_that_are(world):
    caller = Caller(world, "ada")
    limit = caller.call("put", "tenants/acme/limits/", {**LIMIT, "window": "year"}).json()
    assert limit["title"].startswith("window: 'year' is none of: ")
    assert all(f" {one}" in limit["title"] for one in ("m,", "d,", "mo"))
    member = {"username": "nobody", "role": "boss"}
    role = caller.call("post", "tenants/acme/members/", member).json()
    assert (role["field"], role["hint"]) == ("role", "One of: tenant_admin, tenant_viewer.")
    grants = caller.call("post", "users/", {**NEW_USER, "grants": ["everything"]}).json()
    assert grants["hint"].startswith("One of: policy.publish, ")


def test_names_that_differ_in_case_alone_are_refused(world):
    caller = Caller(world, "ada")
    taken = caller.call("post", "users/", {**NEW_USER, "username": "TINA"})
    assert (taken.status_code, taken.json()["field"]) == (409, "username")
    for path in ("tenants/", "tenants/acme/projects/"):
        slug = caller.call("post", path, {"slug": "ACME", "name": "Acme"})
        assert (slug.status_code, slug.json()["field"]) == (422, "slug")


def test_an_anchor_that_the_window_does_not_take_is_refused_by_name(world):
    caller = Caller(world, "ada")
    for anchor, field in (
        ({"window": "w", "anchor_day": 8}, "anchor_day"),
        ({"window": "d", "anchor_time": "6"}, "anchor_time"),
        ({"window": "m", "anchor_time": "10:00"}, "anchor_time"),
    ):
        answer = caller.call("put", "tenants/acme/limits/", {**LIMIT, **anchor})
        assert (answer.status_code, answer.json()["field"]) == (422, field), anchor


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b'{"slug": "a", "slug": "b", "name": "x"}',
        b'{"slug": NaN}',
        b"{" * 50_000,
        b"[" * 100_000,
        b"\xff",
        b'{"name": "' + b"x" * 600_000 + b'"}',
    ],
    ids=["empty", "list", "twice", "nan", "cut", "deep", "utf8", "large"],
)
def test_a_body_that_is_no_plain_object_is_a_quick_refusal(world, raw):
    caller = Caller(world, "ada")
    answer = caller.client.post(
        "/api/v1/tenants/",
        data=raw,
        content_type="application/json",
        headers={"Authorization": f"Bearer {caller.secret}"},
    )
    assert answer.status_code == (413 if len(raw) > MAX_BODY_BYTES else 400)
    assert set(answer.json()) >= PROBLEM


def test_a_member_is_named_by_id_or_user_name_and_refused_at_the_name_that_was_sent(world):
    caller = Caller(world, "ola")
    path, viewer = "tenants/acme/members/", {"role": "tenant_viewer"}
    nobody = world.people["nobody"].pk
    for named in ({"username": "nobody"}, {"user_id": nobody}):
        assert caller.call("post", path, {**named, **viewer}).status_code == 204
        again = caller.call("post", path, {**named, **viewer})
        assert again.status_code == 409
        assert again.json()["field"] == next(iter(named))
        assert caller.call("delete", f"{path}{nobody}/").status_code == 204
    ghost = caller.call("post", path, {"username": "ghost", **viewer})
    assert (ghost.status_code, ghost.json()["field"]) == (422, "username")
    unknown = caller.call("post", path, {"user_id": 999_999, **viewer})
    assert (unknown.status_code, unknown.json()["title"]) == (422, ghost.json()["title"])
    for person in world.people.values():
        person.email = f"{person.username}@x.example"
        person.save()
    readers = (
        (Caller(world, "tina"), {"tina"}),
        (Caller(world, "vic"), {"vic"}),
        (caller, {"tina", "vic"}),
    )
    for reader, shown in readers:
        rows = reader.call("get", path).json()
        assert {row["username"] for row in rows if row["email"]} == shown
    for named in ({}, {"username": "nobody", "user_id": nobody}):
        assert caller.call("post", path, {**named, **viewer}).status_code == 400


def test_users_are_refused_at_their_field_and_the_last_admin_stays(world):
    caller = Caller(world, "ada")
    for change, status, field in (
        ({"username": "ana"}, 409, "username"),
        ({"password": "short"}, 422, "password"),
        ({"role": "emperor"}, 422, "role"),
        ({"grants": ["everything"]}, 422, "grants"),
        ({"is_superuser": True}, 400, "is_superuser"),
    ):
        answer = caller.call("post", "users/", {**NEW_USER, **change})
        assert (answer.status_code, answer.json()["field"]) == (status, field)
    made = caller.call("post", "users/", NEW_USER)
    assert "password" not in made.json()
    changed = caller.call(
        "patch", f"users/{made.json()['id']}/", {"role": "auditor", "reason": "moved"}
    )
    assert (changed.json()["role"], changed.json()["grants"]) == ("auditor", ["policy.publish"])
    ada = world.people["ada"].pk
    for method, path, body in (
        ("patch", f"users/{ada}/", {"role": "none", "reason": "x"}),
        ("post", f"users/{ada}/suspend/", {"reason": "x"}),
    ):
        refused = caller.call(method, path, body)
        assert (refused.status_code, refused.json()["code"]) == (409, "last_admin")
    assert caller.call("get", "users/999999/").status_code == 404


def test_a_publish_must_say_on_what_it_stands(world):
    caller = Caller(world, "ana")
    path = "policies/main/publish/"
    assert caller.call("post", path, {"document": DOCUMENT}).status_code == 428
    stale = caller.call("post", path, {"document": DOCUMENT, "base": 1})
    assert (stale.status_code, stale.json()["code"]) == (409, "stale_base")
    tag = caller.call("get", "policies/main/").headers["ETag"]
    missed = caller.call("post", path, {"document": DOCUMENT}, **{"If-Match": '"0000"'})
    assert missed.status_code == 409
    published = caller.call("post", path, {"document": DOCUMENT}, **{"If-Match": tag})
    assert published.json()["label"] == "main@3"
    assert caller.call("get", "policies/main/").headers["ETag"] == published.headers["ETag"] != tag


def test_a_refused_policy_tells_every_finding(world):
    answer = Caller(world, "ana").call(
        "post",
        "policies/main/publish/",
        {"document": {**DOCUMENT, "outage": {"max_s": 1000}, "plugins": []}, "base": 2},
    )
    assert answer.status_code == 422
    assert answer.json()["code"] == "policy_refused"
    assert [finding["path"] for finding in answer.json()["findings"]] == ["plugins", "outage.max_s"]


def test_an_unknown_field_is_told_what_there_is(world):
    caller = Caller(world, "ada")
    told = caller.call("put", "tenants/acme/limits/", {**LIMIT, "kind": "req"}).json()
    assert (told["code"], told["field"]) == ("unknown_field", "kind")
    assert "There are: scope, dimension, window, " in told["title"]
    asked = caller.call("get", "usage/?tennant=acme").json()
    assert "tenant" in asked["title"].partition("There are: ")[2]

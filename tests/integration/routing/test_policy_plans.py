"""REST for automation: export, plan, apply; a plan is applied once, on what it was planned on."""

import json
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone

from console.accounts.services import issue_token
from routing.models import PolicyPlan, PolicyVersion
from routing.policies.services import MAX_PLANS, PLAN_KEPT
from tests import factories
from tests.factories import ACTOR, World

pytestmark = pytest.mark.django_db


@pytest.fixture
def world(store) -> World:
    made = World()
    factories.make_tenant(made, "acme")
    factories.make_people(made)
    factories.make_fleet(made, {"p-a": 2})
    factories.make_policy(made, versions=2)
    return made


class Caller:
    """Calls the API as one person."""

    def __init__(self, world: World, name: str) -> None:
        self.secret = issue_token(user_id=world.people[name].pk, name=name, actor=ACTOR).secret

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        return Client().generic(
            method.upper(),
            f"/api/v1/{path}",
            json.dumps(body) if body is not None else "",
            content_type="application/json",
            headers={"Authorization": f"Bearer {self.secret}", **headers},
        )


def exported(caller: Caller) -> dict[str, Any]:
    return caller.call("get", "policies/main/export/").json()["document"]


def planned(caller: Caller, **changes: Any) -> Any:
    document = {**exported(caller), **changes}
    return caller.call("post", "policies/main/plan/", {"document": document})


def test_export_plan_apply(world: World) -> None:
    caller = Caller(world, "ana")
    tag = caller.call("get", "policies/main/export/").headers["ETag"]
    plan = planned(caller, outage={"store_away": "closed"}).json()
    assert (plan["base"], plan["changed"], plan["findings"]) == (2, True, [])
    assert [(it["text"], it["takes"]) for it in plan["words"]] == [
        ("Store away: everything is refused (was: 0.8 of each limit for 300 s).", True)
    ]
    assert PolicyVersion.objects.count() == 2  # nothing is published by planning
    asked = {"plan": plan["plan"], "note": "closed while the store is away"}
    applied = caller.call("post", "policies/main/apply/", asked, **{"If-Match": tag}).json()
    assert (applied["label"], applied["changed"]) == ("main@3", True)
    assert applied["digest"] == plan["digest"]
    for base in (2, 3):
        again = caller.call("post", "policies/main/apply/", {**asked, "base": base}).json()
        assert (again["label"], again["changed"]) == ("main@3", False)


def test_a_plan_on_what_is_no_longer_live_is_refused_with_what_changed(world: World) -> None:
    caller = Caller(world, "ana")
    mine = planned(caller, outage={"store_away": "closed"}).json()
    theirs = planned(caller, routing={"stale_after_s": 9}).json()
    old = {"If-Match": caller.call("get", "policies/main/export/").headers["ETag"]}
    unsaid = caller.call("post", "policies/main/apply/", {"plan": theirs["plan"]})
    assert (unsaid.status_code, unsaid.json()["code"]) == (428, "precondition_required")
    asked = {"plan": theirs["plan"]}
    assert caller.call("post", "policies/main/apply/", asked, **old).status_code == 200
    changes = ["A replica silent for 9 s gets no work (was 3)."]
    for base, headers in (
        ({"base": 2}, {}),  # what was planned on
        ({"base": 3}, {}),  # what is live: the plan was not made on it
        ({}, {"If-Match": "*"}),
        ({}, old),
    ):
        body = {"plan": mine["plan"], **base}
        refused = caller.call("post", "policies/main/apply/", body, **headers)
        assert (refused.status_code, refused.json()["code"]) == (409, "stale_base")
        assert [it["text"] for it in refused.json()["changes"]] == changes, (body, headers)
    missed = caller.call("post", "policies/main/apply/", asked, **{"If-Match": '"0000"'})
    assert (missed.status_code, missed.json()["field"]) == (409, "If-Match")


def test_an_unsound_document_is_not_kept(world: World) -> None:
    answer = planned(Caller(world, "ana"), nonsense=[])
    assert (answer.status_code, answer.json()["code"]) == (422, "policy_refused")
    assert not PolicyPlan.objects.exists()


def test_plans_end_after_an_hour_and_are_bounded(world: World) -> None:
    caller = Caller(world, "ana")
    plan = planned(caller, outage={"store_away": "closed"}).json()
    PolicyPlan.objects.update(created_at=timezone.now() - PLAN_KEPT - timedelta(seconds=1))
    late = caller.call("post", "policies/main/apply/", {"plan": plan["plan"], "base": 2})
    assert (late.status_code, late.json()["hint"]) == (404, "Plan anew.")
    template = PolicyPlan.objects.get()
    PolicyPlan.objects.bulk_create(
        PolicyPlan(policy="main", base=2, document=template.document, digest=template.digest)
        for _ in range(MAX_PLANS + 5)
    )
    assert planned(caller).json()["changed"] is False
    assert PolicyPlan.objects.count() == MAX_PLANS


def test_versions_are_compared_and_absent_ones_are_not_found(world: World) -> None:
    caller = Caller(world, "aud")
    found = caller.call("get", "policies/main/diff/1..2/").json()
    assert [it["text"] for it in found["words"]] == [
        "p-a holds work by weight 2 for llama-8b (was weight 1)."
    ]
    assert {"kind": "add", "text": '  "note": "version 2",'} in found["lines"]
    assert caller.call("get", "policies/main/diff/1..9/").status_code == 404
    assert caller.call("get", "policies/none/export/").status_code == 404
    chosen = caller.call("get", "policies/main/export/?version=1")
    assert (chosen.status_code, chosen.json()["field"]) == (400, "version")


def test_only_publishers_plan_and_apply(world: World) -> None:
    for name, status in (("aud", 403), ("ola", 403), ("tina", 403)):
        caller = Caller(world, name)
        body = {"document": {"name": "main"}}
        assert caller.call("post", "policies/main/plan/", body).status_code == status
        applied = caller.call("post", "policies/main/apply/", {"plan": str(uuid4()), "base": 2})
        assert applied.status_code == status
    ana = Caller(world, "ana")
    unknown = ana.call("post", "policies/main/apply/", {"plan": str(uuid4()), "base": 2})
    assert unknown.status_code == 404
    wrong = ana.call("post", "policies/main/apply/", {"plan": "x"})
    assert (wrong.status_code, wrong.json()["field"]) == (400, "plan")

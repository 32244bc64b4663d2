"""REST: what each role may do, what is absent, what is refused, and what a list costs."""

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from capacity.playbooks.rules import SHIPPED, to_plain
from console.accounts.services import issue_token, revoke_token, suspend_user
from console.jobs.services import enqueue
from console.models import ApiToken
from console.project import rest
from console.rest.requests import MAX_BODY_BYTES
from console.web.csp import CONTENT_SECURITY_POLICY
from routing.models import Override
from routing.store import keys as store_keys
from tests import factories
from tests.factories import ACTOR, World
from tests.forecasting import make_forecast
from tests.playbooking import make_runs
from tests.reporting import make_report

pytestmark = pytest.mark.django_db

QUERIES = 12
ALL = {"ana", "ola", "ada", "aud"}
ACTING = {"ana", "ola", "ada"}
MEMBERS = {"tina", "vic"}
EVERYONE = (*sorted(ALL), *sorted(MEMBERS), "nobody")
PROBLEM = {"code", "title", "status", "field", "hint", "request_id"}
DOCUMENT = {"name": "main", "models": {"llama-8b": {"targets": [{"pool": "p-a"}]}}}
OBJECTIVE = {"work_class": "batch", "metric": "e2e", "threshold_ms": 9000, "target_ratio": 0.9}
GRID = {"region": "eu", "g_co2e_per_kwh": 300, "pue": 1.2, "source": "utility report"}
NEW_USER = {
    "username": "new",
    "password": "correct horse battery",
    "role": "operator",
    "grants": ["policy.publish"],
}
PAUSE = {"kind": "pause", "work_class": "batch", "reason": "Capacity is reduced."}
PLAYBOOK = to_plain(SHIPPED["noisy-tenant"])
LIMIT = {"scope": "tenant", "dimension": "req", "window": "d", "amount": 5}
MORE = {"scope": "tenant", "dimension": "out", "window": "m", "amount": 99_000, "reason": "launch"}
PRICE = {
    "model": "llama-8b",
    "input_usd_per_mtok": "0.60",
    "cached_usd_per_mtok": "0.06",
    "output_usd_per_mtok": "2.40",
}
SCHEDULE = {"timezone": "Europe/Berlin", "at_time": "02:30"}
NEW_SCHEDULE = {"name": "new", **SCHEDULE, "recipients": ["sre@example.com"]}

# (method, path, body, who may); everyone else gets 404 below a tenant it does not see, else 403.
ENDPOINTS: list[tuple[str, str, Any, set[str]]] = [
    ("get", "me/", None, set(EVERYONE)),
    ("get", "tokens/", None, set(EVERYONE)),
    ("get", "users/", None, {"ada"}),
    ("post", "users/", NEW_USER, {"ada"}),
    ("get", "users/{vic}/", None, {"ada"}),
    ("patch", "users/{vic}/", {"role": "auditor", "reason": "joins audit"}, {"ada"}),
    ("post", "users/{vic}/suspend/", {"reason": "left"}, {"ada"}),
    ("post", "users/{vic}/restore/", {"reason": "back"}, {"ada"}),
    ("post", "users/{vic}/sign-out/", {"reason": "lost laptop"}, {"ada"}),
    ("get", "tenants/", None, set(EVERYONE)),
    ("post", "tenants/", {"slug": "new", "name": "New"}, ACTING),
    ("get", "tenants/acme/", None, ALL | MEMBERS),
    ("patch", "tenants/acme/", {"name": "Other"}, ACTING),
    ("post", "tenants/acme/suspend/", {"reason": "abuse"}, ACTING),
    ("post", "tenants/acme/restore/", {"reason": "paid"}, ACTING),
    ("get", "tenants/acme/projects/", None, ALL | MEMBERS),
    ("post", "tenants/acme/projects/", {"slug": "x", "name": "X"}, ACTING | {"tina"}),
    ("get", "tenants/acme/members/", None, ALL | MEMBERS),
    (
        "post",
        "tenants/acme/members/",
        {"username": "nobody", "role": "tenant_viewer"},
        ACTING | {"tina"},
    ),
    ("patch", "tenants/acme/members/{vic}/", {"role": "tenant_viewer"}, ACTING | {"tina"}),
    ("delete", "tenants/acme/members/{vic}/", None, ACTING | {"tina"}),
    ("get", "tenants/acme/keys/", None, ALL | MEMBERS),
    ("get", "tenants/acme/keys/{key}/", None, ALL | MEMBERS),
    ("post", "tenants/acme/keys/", {"name": "k", "allowed_models": ["*"]}, ACTING | {"tina"}),
    ("post", "tenants/acme/keys/{key}/rotate/", {"grace_s": 60}, ACTING | {"tina"}),
    ("delete", "tenants/acme/keys/{key}/", None, ACTING | {"tina"}),
    ("get", "tenants/acme/budgets/", None, ALL | MEMBERS),
    ("get", "tenants/acme/limits/", None, ALL | MEMBERS),
    ("put", "tenants/acme/limits/", LIMIT, {"ana", "ada"}),
    (
        "put",
        "tenants/acme/limits/",
        {**LIMIT, "scope": "key", "key_id": "{key}"},
        {"ana", "ada", "tina"},
    ),
    (
        "delete",
        "tenants/acme/limits/?scope=tenant&dimension=req&window=m",
        None,
        {"ana", "ada"},
    ),
    ("get", "tenants/acme/refusals/", None, ALL | MEMBERS),
    ("get", "tenants/acme/refusals/{refused}/", None, ALL | MEMBERS),
    ("get", "tenants/acme/usage-series/?by=key&step=day", None, ALL | MEMBERS),
    ("get", "tenants/acme/quota-requests/", None, ALL | MEMBERS),
    ("post", "tenants/acme/quota-requests/", MORE, {"ana", "ada", "tina"}),
    ("get", "tenants/acme/quota-requests/{request}/", None, ALL | MEMBERS),
    ("post", "tenants/acme/quota-requests/{request}/withdraw/", None, {"ana", "ada", "tina"}),
    ("get", "quota-requests/", None, ALL),
    ("get", "quota-requests/{request}/", None, ALL),
    ("post", "quota-requests/{request}/grant/", {"amount": 160_000}, {"ana", "ada"}),
    ("post", "quota-requests/{request}/refuse/", {"reason": "full"}, {"ana", "ada"}),
    ("get", "usage/", None, set(EVERYONE)),
    ("get", "usage/?tenant=acme", None, ALL | MEMBERS),
    ("get", "usage/{usage}/", None, ALL | MEMBERS),
    ("get", "adjustments/", None, set(EVERYONE)),
    ("get", "reconciliation/", None, ALL),
    ("post", "reconciliation/", {"repair": True}, ACTING),
    ("get", "estimates/", None, ALL),
    ("get", "prices/", None, ALL | MEMBERS),
    ("post", "prices/", PRICE, {"ada"}),
    ("get", "resource-prices/", None, ALL | MEMBERS),
    ("post", "resource-prices/", {"resource": "tool:x", "unit_usd": "0.002"}, {"ada"}),
    ("get", "pool-prices/", None, ALL),
    ("post", "pool-prices/", {"pool": "p-a", "gpu_second_usd": "0.000694445"}, {"ada"}),
    ("get", "pools/", None, ALL),
    ("get", "pools/p-a/", None, ALL),
    ("get", "pools/p-a/limits/", None, ALL),
    ("put", "pools/p-a/limits/", {"dimension": "conc", "amount": 5}, ACTING),
    ("delete", "pools/p-a/limits/?dimension=conc", None, ACTING),
    ("get", "fleet/limits/", None, ALL),
    ("put", "fleet/limits/", {"dimension": "req", "amount": 5}, ACTING),
    ("delete", "fleet/limits/?dimension=req", None, ACTING),
    ("get", "inventory/drift/", None, ALL),
    ("get", "inventory/node/", None, ALL),
    ("put", "inventory/region/", {"values": {"slug": "us", "name": "US"}}, ACTING),
    ("post", "inventory/region/import/", {"csv": "slug,name\nus,US\n"}, ACTING),
    ("get", "rollouts/", None, ALL),
    ("get", "rollouts/{rollout}/", None, ALL),
    ("post", "rollouts/{rollout}/pause/", {"reason": "look"}, {"ana", "ada"}),
    ("post", "rollouts/{rollout}/resume/", {}, {"ana", "ada"}),
    ("post", "rollouts/{rollout}/abort/", {"reason": "no"}, {"ana", "ada"}),
    ("post", "rollouts/{rollout}/roll-back/", {}, {"ana", "ada"}),
    ("post", "rollouts/", {"pool": "p-c", "reason": "newer"}, {"ana", "ada"}),
    ("get", "overrides/", None, ALL),
    ("get", "overrides/?active=true", None, ALL),
    ("get", "overrides/{override}/", None, ALL),
    ("post", "overrides/", PAUSE, ACTING),
    ("delete", "overrides/{override}/?reason=over", None, ACTING),
    ("get", "playbooks/", None, ALL),
    ("get", "playbooks/noisy-tenant/", None, ALL),
    ("put", "playbooks/noisy-tenant/", {"document": PLAYBOOK, "base": 1}, {"ada"}),
    ("put", "playbooks/noisy-tenant/mode/", {"mode": "armed"}, {"ada"}),
    ("get", "playbooks/noisy-tenant/runs/", None, ALL),
    ("get", "playbooks/noisy-tenant/runs/{run}/", None, ALL),
    ("post", "playbooks/noisy-tenant/runs/{run}/undo/", {"reason": "enough"}, ACTING),
    ("get", "forecasts/", None, ALL),
    ("get", "forecasts/{forecast}/", None, ALL),
    ("post", "forecast-runs/", None, ACTING),
    ("get", "capacity-plan/", None, ALL),
    ("get", "report-schedules/", None, ALL),
    ("post", "report-schedules/", NEW_SCHEDULE, {"ada"}),
    ("get", "report-schedules/daily/", None, ALL),
    ("put", "report-schedules/daily/", {**SCHEDULE, "version": 1}, {"ada"}),
    ("delete", "report-schedules/daily/", None, {"ada"}),
    ("get", "reports/", None, ALL),
    ("post", "reports/", {"hours": 6}, ACTING),
    ("get", "reports/{report}/", None, ALL),
    ("get", "reports/{report}/json/", None, ALL),
    ("get", "policies/", None, ALL),
    ("get", "policies/main/", None, ALL),
    ("get", "policies/main/versions/", None, ALL),
    ("get", "policies/main/versions/1/", None, ALL),
    ("post", "policy-check/", {"document": DOCUMENT}, ALL),
    ("post", "policies/main/publish/", {"document": DOCUMENT, "base": 2}, {"ana", "ada"}),
    ("post", "policies/main/versions/1/rollback/", {"base": 2}, {"ana", "ada"}),
    ("get", "policies/main/export/", None, ALL),
    ("get", "policies/main/diff/1..2/", None, ALL),
    ("get", "policies/main/draft/", None, ALL),
    ("put", "policies/main/draft/", {"document": DOCUMENT}, {"ana", "ada"}),
    ("delete", "policies/main/draft/", None, {"ana", "ada"}),
    ("post", "policies/main/draft/publish/", {}, {"ana", "ada"}),
    ("post", "policies/main/plan/", {"document": DOCUMENT}, {"ana", "ada"}),
    ("get", "policy-acks/", None, ALL),
    ("get", "tasks/", None, set(EVERYONE)),
    ("get", "tasks/?tenant=acme", None, ALL | MEMBERS),
    ("get", "tasks/{task}/", None, ALL | MEMBERS),
    ("get", "tasks/{task}/steps/", None, ALL | MEMBERS),
    (
        "post",
        "task-outcomes/",
        {"tenant": "acme", "task_id": "acme-task-3-2", "outcome": "success"},
        ACTING | {"tina"},
    ),
    ("get", "objectives/", None, ALL),
    ("put", "objectives/", OBJECTIVE, ACTING),
    ("get", "objectives/{objective}/", None, ALL),
    ("delete", "objectives/{objective}/", None, ACTING),
    ("get", "carbon/", None, ALL),
    ("put", "carbon/grid/", GRID, ACTING),
    ("put", "carbon/power/", {"hardware": "H", "power_w": 700, "source": "label"}, ACTING),
    ("get", "system/", None, ALL),
    ("get", "audit/", None, ALL),
    ("get", "audit/verify/", None, {"ada", "aud"}),
    ("get", "jobs/", None, ALL),
    ("get", "jobs/{job}/", None, ALL),
    ("post", "jobs/{job}/cancel/", {"reason": "x"}, ACTING),
]
LISTS = [path for method, path, _, _ in ENDPOINTS if method == "get" and "verify" not in path]


class Caller:
    """Calls the API as one person, by bearer token."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        user = world.people[name]
        self.secret = issue_token(user_id=user.pk, name=f"t-{name}", actor=ACTOR).secret
        self.client = Client()

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        text = None if body is None else json.dumps(body)
        return getattr(self.client, method)(
            "/api/v1/" + self.filled(path),
            **({} if text is None else {"data": self.filled(text)}),
            content_type="application/json",
            headers={"Authorization": f"Bearer {self.secret}", **headers},
        )

    def filled(self, text: str) -> str:
        key_id = str(self.world.keys["acme"].id)
        return (
            text.replace('"{key}"', key_id)
            .replace("{key}", key_id)
            .replace("{vic}", str(self.world.people["vic"].pk))
            .replace("{usage}", self.world.usage)
            .replace("{job}", str(self.world.job))
            .replace("{rollout}", str(self.world.rollouts[0]))
            .replace("{task}", str(self.world.task_id))
            .replace("{objective}", str(self.world.objective_id))
            .replace("{request}", str(self.world.requests["acme"]))
            .replace("{refused}", self.world.refusals["acme"][0])
            .replace("{run}", str(self.world.run))
            .replace("{override}", str(self.world.override))
            .replace("{forecast}", str(self.world.forecast))
            .replace("{report}", str(self.world.report))
        )


@pytest.fixture
def world(store) -> World:
    made = World()
    factories.make_tenant(made, "acme", "Acme Support", zone="Europe/Berlin")
    factories.make_tenant(made, "globex", "Globex Research")
    factories.make_people(made)
    factories.make_fleet(made, {"p-a": 2, "p-b": 1, "p-c": 1})
    factories.make_policy(made, versions=2)
    factories.make_rollout(made, "p-b")
    made.usage = factories.make_usage(made, "acme", 3)[0]
    factories.make_tasks(made, "acme", 3)
    factories.make_objective(made)
    factories.make_quota_request(made, "acme")
    factories.make_refusals(made, "acme", 3)
    made.draft = factories.make_draft(made)
    made.run = make_runs(made)
    made.override = Override.objects.get().pk
    made.job = enqueue("reconcile_pools", run_after=timezone.now() + timedelta(hours=1))
    made.forecast = make_forecast(made)
    made.report = make_report()
    factories.beat(store)
    factories.scrape(store, "p-a")
    return made


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
            r"\{(\w+)\}|\b(acme|main|p-a|noisy-tenant|node|region|daily|json)\b|\b\d+\b",
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


def test_nobody_gets_in_without_signing_in(world):
    caller = Caller(world, "ana")
    for method, path, _, _ in ENDPOINTS:
        answer = getattr(Client(), method)(f"/api/v1/{caller.filled(path)}")
        assert answer.status_code == 401, path
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        assert answer.json()["code"] == "not_authenticated"


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


WRONG: list[tuple[str, str, Any, str]] = [
    ("post", "tenants/", {"slug": "x", "name": "X", "rpm": 5}, "rpm"),
    ("post", "tenants/", {"slug": "x", "name": 5}, "name"),
    ("post", "tenants/", {"slug": "x", "name": "X", "allowed_models": "*"}, "allowed_models"),
    ("put", "tenants/acme/limits/", {**LIMIT, "amout": 5}, "amout"),
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


def test_a_session_needs_the_csrf_token_to_write(world):
    client = Client(enforce_csrf_checks=True)
    client.force_login(world.people["ada"])
    assert client.get("/api/v1/me/").status_code == 200
    asked = {"slug": "x", "name": "X"}
    refused = client.post("/api/v1/tenants/", data=asked, content_type="application/json")
    assert refused.status_code == 403
    client.get("/tenants/")
    token = client.cookies["headrace_csrf"].value
    accepted = client.post(
        "/api/v1/tenants/",
        data=asked,
        content_type="application/json",
        headers={"X-CSRFToken": token},
    )
    assert accepted.status_code == 201


def test_a_token_ends_when_revoked_expired_or_its_person_is_suspended(world):
    caller = Caller(world, "ola")
    user = world.people["ola"]
    assert caller.call("get", "me/").json()["username"] == "ola"
    token = ApiToken.objects.get(user=user)
    assert token.last_used_at is not None
    ApiToken.objects.update(expires_at=timezone.now())
    assert caller.call("get", "me/").status_code == 401
    ApiToken.objects.update(expires_at=None)
    suspend_user(user_id=user.pk, actor=ACTOR, reason="left")
    assert caller.call("get", "me/").status_code == 401
    type(user).objects.update(is_active=True)
    assert caller.call("get", "me/").status_code == 200
    revoke_token(user_id=user.pk, token_id=token.pk, actor=ACTOR)
    assert caller.call("get", "me/").status_code == 401


@pytest.mark.parametrize(
    "header", ["Bearer", "Bearer x", "Basic eDp5", "Bearer hrt_a b", "x" * 999]
)
def test_a_malformed_authorization_is_401(world, header):
    answer = Client().get("/api/v1/me/", headers={"Authorization": header})
    assert answer.status_code == 401


def test_tokens_are_issued_once_and_only_to_oneself(world):
    caller = Caller(world, "vic")
    issued = caller.call("post", "tokens/", {"name": "ci"})
    assert issued.status_code == 201
    listed = caller.call("get", "tokens/").json()
    assert [row["name"] for row in listed] == ["ci", "t-vic"]
    assert issued.json()["secret"] not in json.dumps(listed)
    assert caller.call("post", "tokens/", {"name": "ci"}).status_code == 409
    other = Caller(world, "tina")
    assert other.call("delete", f"tokens/{issued.json()['id']}/").status_code == 404
    assert caller.call("delete", f"tokens/{issued.json()['id']}/").status_code == 204


def test_a_member_is_named_by_id_or_user_name_and_refused_at_the_name_that_was_sent(world):
    caller = Caller(world, "tina")
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
        factories.issue_key(tenant_id=world.tenants["acme"], name="more", actor=ACTOR)
    found = pages(Caller(world, "ada"), path, key)
    assert len(found) == len(set(found))
    assert len(found) > 20 or path.startswith("prices")


@pytest.mark.parametrize("path", ["audit/", "jobs/", "tenants/acme/keys/", "prices/", "usage/"])
def test_a_cursor_that_is_not_ours_is_refused(world, path):
    answer = Caller(world, "ada").call("get", f"{path}?after=%27%3B--")
    assert answer.status_code in (400, 422), answer.content


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
        factories.issue_key(tenant_id=world.tenants["acme"], name="more", actor=ACTOR)
    factories.make_pools(world, {f"q-{number:02d}": 2 for number in range(50)})
    many = {path: count(path) for path in LISTS}
    assert many == few
    assert {path: found for path, found in many.items() if found > QUERIES} == {}


def test_money_is_decimal_text_and_instants_are_utc(world):
    row = Caller(world, "aud").call("get", f"usage/{world.usage}/").json()
    assert re.fullmatch(r"\d+\.\d{2,9}", row["spend_usd"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", row["started_at"])
    assert row["net_usd"] == row["spend_usd"]


def test_budgets_show_null_while_nothing_is_known(world):
    (budget,) = Caller(world, "vic").call("get", "tenants/acme/budgets/").json()
    assert budget["limit_usd"] == "100.00"
    assert budget["spent_usd"] is None
    assert budget["remaining_usd"] is None
    assert budget["window_end"] is not None


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
        {"document": {**DOCUMENT, "outage": {"max_s": 1000}, "hooks": []}, "base": 2},
    )
    assert answer.status_code == 422
    assert answer.json()["code"] == "policy_refused"
    assert [finding["path"] for finding in answer.json()["findings"]] == ["hooks", "outage.max_s"]


def test_an_unexpected_error_tells_nothing_of_its_inside(world, monkeypatch):
    monkeypatch.setattr("tenants.directory.selectors.Tenant.objects", None)
    broken = Caller(world, "ada").call("get", "tenants/")
    assert broken.status_code == 500
    assert broken.json()["code"] == "internal"
    assert "NoneType" not in broken.content.decode()


def test_fleet_says_lifecycle_health_and_why(world, store):
    factories.scrape(store, "p-a", r0={"health": "hung", "reason": "no token for 30 s"})
    caller = Caller(world, "aud")
    pool, *_others = caller.call("get", "pools/").json()["items"]
    hung, ok = pool["replicas"]
    assert (hung["state"], hung["lifecycle"], hung["health"]) == ("hung", "ready", "hung")
    assert hung["health_reason"] == "no token for 30 s"
    assert (ok["state"], ok["health"]) == ("ready", "ok")
    store.delete(store_keys.pool_state("p-a"))
    pool, *_others = caller.call("get", "pools/").json()["items"]
    assert pool["live_age_s"] is None
    assert [row["kv_usage_ratio"] for row in pool["replicas"]] == [None, None]


def test_the_openapi_document_is_complete(tmp_path):
    target = tmp_path / "schema.yml"
    call_command("spectacular", "--validate", "--fail-on-warn", "--file", str(target))
    text = target.read_text()
    assert "bearer" in text
    assert "/api/v1/tenants/{slug}/budgets/" in text


def test_the_document_and_its_page_are_served_under_the_strict_policy(world):
    client = Client()
    client.force_login(world.people["ada"])
    for path in ("/api/schema/", "/api/docs/"):
        answer = client.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
    page = client.get("/api/docs/").text
    assert not re.search(r"<script(?![^>]*\bsrc=)[^>]*>|<style|\son\w+=|style=", page), page
    described = json.loads(client.get("/api/schema/?format=json").text)
    named = [one["operationId"] for path in described["paths"].values() for one in path.values()]
    assert len(named) > 50
    assert {name for name in named if f'id="{name}"' not in page} == set()

"""REST: how values are told, and the document that describes them."""

import json
import re

import pytest
from django.core.management import call_command
from django.test import Client

from console.web.csp import CONTENT_SECURITY_POLICY
from routing.store import keys as store_keys
from tests import factories
from tests.endpoints import (
    Caller,
)

pytestmark = pytest.mark.django_db


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

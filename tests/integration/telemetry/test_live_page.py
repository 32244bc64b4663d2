"""The live page's first response, and the series endpoint, by role."""

import json
import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from console.models import User
from console.web.store import pooled_client as console_store
from routing.contracts.endpoint_state import EndpointState
from routing.contracts.enums import ReplicaHealth
from tenants.models import Membership, Tenant
from tests.collecting import FakeCollector, traffic

pytest_plugins = ("tests.live_fixtures",)
pytestmark = pytest.mark.django_db
QUERIES_MAX = 15


@pytest.fixture
def store(live_store, settings):
    settings.REDIS_URL = live_store.url
    console_store.cache_clear()
    yield live_store
    console_store.cache_clear()


@pytest.fixture
def both(store, db) -> dict[str, Tenant]:
    """Published traffic of two tenants; the second has a hostile model name."""
    found = {
        slug: Tenant.objects.create(slug=slug, name=slug, cache_salt=f"salt-{slug}")
        for slug in ("acme", "globex")
    }
    collector = FakeCollector(store, slugs={str(t.pk): slug for slug, t in found.items()})
    collector.publish(
        [
            traffic(str(found["acme"].pk), (0.1,) * 40, spend_nanousd=1_234_567),
            traffic(str(found["globex"].pk), (0.5,), model="<img src=x onerror=alert(1)>"),
        ],
        [EndpointState("r1", "p1", 10**12, ReplicaHealth.OK, kv_usage_ratio=0.425, running=2)],
    )
    return found


def signed_in(name: str, role: str = "none", *, of: Tenant | None = None) -> Client:
    user = User.objects.create(username=name, role=role)
    if of:
        Membership.objects.create(user=user, tenant=of, role="tenant_viewer")
    client = Client()
    client.force_login(user)
    return client


def test_the_first_response_holds_the_figures(both) -> None:
    client = signed_in("ops", "operator")
    with CaptureQueriesContext(connection) as queries:
        html = client.get("/live/").content.decode()
    assert len(queries) <= QUERIES_MAX
    assert 'data-field="spend_usd" data-value="0.001234567"' in html
    assert ">42.5<" in html
    assert re.search(r"live \d s", html)  # no more than that on any machine
    assert "&lt;img src=x" in html
    assert "<img src=x" not in html
    block = re.search(r'<script id="live-figures" type="application/json">(.*?)</script>', html)
    assert block
    assert json.loads(block[1])["spend"]["tenants"][0]["name"] == "acme"


def test_a_member_sees_its_own_tenant_and_no_pool(both) -> None:
    client = signed_in("amy", of=both["acme"])
    html = client.get("/live/").content.decode()
    assert "Live: acme" in html
    for hidden in ("globex", "KV occupancy", "p1", "All tenants", "onerror"):
        assert hidden not in html, hidden
    assert client.get("/live/?tenant=acme").status_code == 200
    assert client.get("/live/?tenant=globex").status_code == 404
    assert client.get("/live/?tenant=nobody").status_code == 404


def test_without_role_or_session_there_is_no_page(both) -> None:
    assert signed_in("nobody").get("/live/").status_code == 403
    answer = Client().get("/live/")
    assert answer.status_code == 302
    assert answer.headers["location"].startswith("/sign-in/")


def test_without_state_or_store_the_page_says_so(store, settings, db) -> None:
    client = signed_in("ops", "operator")
    html = client.get("/live/").content.decode()
    assert "no figures yet" in html
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    console_store.cache_clear()
    assert "no figures yet" in client.get("/live/").content.decode()


def test_an_old_state_is_shown_as_stale(store, db) -> None:
    collector = FakeCollector(store)
    collector.publish([], now_ms=10**12)
    html = signed_in("ops", "operator").get("/live/").content.decode()
    assert "stale, " in html
    assert "has-stale" in html


def test_the_series_endpoint_keeps_to_what_its_caller_may_see(both) -> None:
    operator, member = signed_in("ops", "operator"), signed_in("amy", of=both["acme"])
    url = "/api/v1/series/"
    answer = operator.get(url)
    assert answer.status_code == 200
    assert len(answer.json()["points"]) in (60, 61)
    assert answer.json()["points"][0]["ttft_p95_s"] is None
    assert member.get(url).status_code == 200
    assert member.get(url, {"tenant": "globex"}).status_code == 404
    assert member.get(url, {"pool": "p1"}).status_code == 403
    assert operator.get(url, {"pool": "p1", "tenant": "globex"}).status_code == 200
    assert operator.get(url, {"step_s": "61"}).status_code == 422
    assert operator.get(url, {"since": "2026-05-01T00:00:00"}).status_code in (400, 422)
    assert Client().get(url).status_code in (401, 403)

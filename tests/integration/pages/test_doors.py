"""Pages: signing in, where `next` leads, and what is said when a part is away."""

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from console.web.csp import CONTENT_SECURITY_POLICY
from routing.store import keys as store_keys
from tests import factories
from tests.pages import Elements, client_of, plain_text

pytestmark = pytest.mark.django_db


def test_sign_in_is_refused_after_ten_failures_and_only_from_there(world, store):
    user = world.people["ana"]
    user.set_password(factories.PASSWORD)
    user.save()
    for _ in range(10):
        answer = Client().post("/sign-in/", {"username": "ana", "password": "wrong"})
        assert "do not belong together" in answer.text
    right = {"username": "ana", "password": factories.PASSWORD}
    assert "Too many failed attempts" in Client().post("/sign-in/", right).text
    elsewhere = Client(REMOTE_ADDR="192.0.2.9").post("/sign-in/", right)
    assert elsewhere.status_code == 302
    counts = list(store.scan_iter(store_keys.sign_in_failures("*")))
    assert len(counts) == 1
    assert 0 < store.ttl(counts[0]) <= 300


def test_a_success_forgets_the_failures_before_it(world, store):
    user = world.people["ana"]
    user.set_password(factories.PASSWORD)
    user.save()
    for password in [*["wrong"] * 9, factories.PASSWORD] * 2:
        answer = Client().post("/sign-in/", {"username": "ana", "password": password})
    assert answer.status_code == 302


def test_next_never_leaves_the_console(world):
    client = client_of(world, "ana")
    for target in ("//evil.example/", "https://evil.example/", "/\\evil.example"):
        answer = client.post("/theme/", {"theme": "dark", "next": target})
        assert answer.headers["Location"].startswith("/"), target
        assert not answer.headers["Location"].startswith(("//", "/\\")), target


def test_a_page_without_the_store_says_what_is_lost(world, store):
    store.delete(store_keys.GATEWAYS, store_keys.PROCESSES)
    text = plain_text(client_of(world, "ana").get("/system/").text)
    assert "No gateway reports" in text
    assert "gone ledger" in text


def test_readiness_names_the_part_that_is_away(world, monkeypatch):
    assert Client().get("/readyz").json() == {
        "ready": True,
        "parts": {"database": True, "store": True},
    }
    monkeypatch.setattr("console.pages.health.is_store_up", lambda: False)
    answer = Client().get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["parts"] == {"database": True, "store": False}
    assert Client().get("/healthz").status_code == 200


def test_a_form_without_its_token_is_refused_as_a_page(world):
    client = Client(enforce_csrf_checks=True)
    client.force_login(world.people["ada"])
    answer = client.post("/tenants/acme/restore/")
    assert answer.status_code == 403
    assert "no longer valid" in answer.text
    assert Elements(answer.text).found == []


def test_a_failing_page_names_its_request_and_asks_nothing_more(world, monkeypatch):
    client = client_of(world, "ada")
    client.raise_request_exception = False
    monkeypatch.setattr("console.pages.system.report", lambda: 1 / 0)
    with CaptureQueriesContext(connection) as captured:
        answer = client.get("/system/", headers={"X-Request-ID": "from-the-proxy"})
    assert answer.status_code == 500
    assert "from-the-proxy" in answer.text
    assert answer.headers["X-Request-ID"] == "from-the-proxy"
    assert answer.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
    assert len(captured) <= 2  # session and person, before it failed

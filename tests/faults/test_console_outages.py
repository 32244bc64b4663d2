"""A running console whose PostgreSQL or store refuses or hangs: every page, bounded and honest."""

import re
import time

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.ports import BreakableConsole
from tests.stack import wait_until

pytest_plugins = ("tests.outage_fixtures",)

BOUND_S = 3.0
PAGES = (
    "/", "/live/", "/fleet/", "/fleet/pools/p-a/", "/policies/", "/policies/main/",
    "/policies/main/edit/", "/tenants/", "/tenants/acme/", "/tenants/acme/keys/",
    "/tenants/acme/members/", "/tenants/acme/limits/", "/spend/", "/usage/", "/usage.csv",
    "/prices/", "/audit/", "/audit.csv", "/jobs/", "/people/", "/me/", "/system/",
)  # fmt: skip
ENDPOINTS = (
    "me/", "tokens/", "users/", "tenants/", "tenants/acme/", "tenants/acme/keys/",
    "tenants/acme/limits/", "tenants/acme/members/", "usage/", "adjustments/", "prices/", "pools/",
    "pools/p-a/", "policies/", "policies/main/", "policy-acks/", "series/", "audit/", "jobs/",
)  # fmt: skip


def paths() -> tuple[str, ...]:
    return (*PAGES, *(f"/api/v1/{path}" for path in ENDPOINTS), "/api/v1/system/")


@pytest.mark.parametrize("fault", ["hang", "refuse"])
def test_without_postgresql_every_answer_is_quick_and_names_it(
    running: BreakableConsole, fault: str
):
    getattr(running.database, fault)()
    for path in paths():
        answer, took_s = running.get(path)
        assert answer.status_code == 503, path
        assert took_s < BOUND_S, path
        assert answer.headers["Retry-After"] == "5", path
        assert "PostgreSQL does not answer" in answer.text, path
        assert "Gateways go on serving" in answer.text, path
        assert not re.search(r"Traceback|psycopg|127\.0\.0\.1|Acme", answer.text), path
        if path.startswith("/api/"):
            assert answer.json()["code"] == "unavailable", path
            assert answer.json()["part"] == "postgres", path
    assert running.get("/healthz")[0].status_code == 200
    assert running.get("/readyz")[0].json()["parts"] == {"database": False, "store": True}
    running.database.mend()
    wait_until(lambda: running.get("/system/")[0].status_code == 200, 15, "back by itself")
    assert "Traceback" not in running.process.log.read_text()


@pytest.mark.parametrize("fault", ["hang", "refuse"])
def test_without_the_store_pages_work_and_the_system_page_names_it(
    running: BreakableConsole, fault: str
):
    getattr(running.store, fault)()
    answer, took_s = running.get("/system/")
    assert took_s < BOUND_S
    word = {"hang": "hanging", "refuse": "away"}[fault]
    assert re.search(rf"{word}</span> <strong>store</strong>", answer.text)
    assert "local shares, by default at most 300 s" in answer.text
    for path in paths():
        answer, took_s = running.get(path)
        assert took_s < BOUND_S, path
        assert answer.status_code == 200, path
    assert running.get("/readyz")[0].json()["parts"] == {"database": True, "store": False}
    running.store.mend()
    wait_until(lambda: running.get("/readyz")[0].status_code == 200, 15, "back by itself")
    assert "<strong>store</strong>" not in running.get("/system/")[0].text


def test_sign_in_works_without_the_store_and_is_refused_by_name_without_postgresql(
    running: BreakableConsole,
):
    running.store.refuse()
    assert running.get("/sign-in/", cookie=False)[0].status_code == 200
    running.database.refuse()
    with httpx.Client(base_url=running.process.url, timeout=15, trust_env=False) as visitor:
        assert visitor.get("/sign-in/").status_code == 200  # a form needs no database
        began_s = time.monotonic()
        answer = visitor.post(
            "/sign-in/",
            data={
                "username": "ada",
                "password": "wrong",
                "csrfmiddlewaretoken": visitor.cookies["headrace_csrf"],
            },
            headers={"Referer": f"{running.process.url}/sign-in/"},
        )
    assert time.monotonic() - began_s < BOUND_S
    assert answer.status_code == 503
    assert "PostgreSQL does not answer" in answer.text


@pytest.mark.parametrize("fault", ["hang", "refuse"])
def test_a_socket_that_opens_without_postgresql_is_told_to_come_back(
    running: BreakableConsole, fault: str
):
    getattr(running.database, fault)()
    began_s = time.monotonic()
    with (
        connect(
            running.process.socket_url,
            origin=running.process.url,
            additional_headers={"Cookie": f"headrace_session={running.cookie}"},
            proxy=None,
        ) as socket,
        pytest.raises(ConnectionClosed) as closed,
    ):
        socket.recv(timeout=10)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1013
    assert time.monotonic() - began_s < BOUND_S + 1

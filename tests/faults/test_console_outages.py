"""A running console whose PostgreSQL or store refuses or hangs: every page, bounded and honest."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

import httpx
import pytest
from django.test import Client
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from console.accounts.services import issue_token
from tests import factories
from tests.collecting import ConsoleProcess, start_console
from tests.ports import FaultyPort, through
from tests.stack import wait_until

pytest_plugins = ("tests.live_fixtures",)

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
TENANT_NAME = "Acme Confidential GmbH"


@dataclass
class Console:
    """A console behind two ports that can be broken, and somebody signed in."""

    process: ConsoleProcess
    database: FaultyPort
    store: FaultyPort
    cookie: str
    token: str

    def get(
        self, path: str, *, cookie: bool = True, **headers: str
    ) -> tuple[httpx.Response, float]:
        """The answer and how long it took."""
        if cookie and not path.startswith("/api/"):
            headers["Cookie"] = f"headrace_session={self.cookie}"
        if path.startswith("/api/"):
            headers["Authorization"] = f"Bearer {self.token}"
        began_s = time.monotonic()
        answer = httpx.get(self.process.url + path, headers=headers, timeout=15, trust_env=False)
        return answer, time.monotonic() - began_s


@pytest.fixture
def running(live_store, database, settings, tmp_path) -> Iterator[Console]:
    world = factories.World()
    factories.make_tenant(world, "acme", TENANT_NAME)
    factories.make_people(world)
    factories.make_fleet(world, {"p-a": 2})
    factories.make_policy(world)
    factories.make_usage(world, "acme", 5)
    factories.beat(live_store)
    client = Client()
    client.force_login(world.people["ada"])
    token = issue_token(user_id=world.people["ada"].pk, name="t", actor=factories.ACTOR).secret
    server = settings.DATABASES["default"]
    url = (
        f"postgresql://{quote(server['USER'])}:{quote(server['PASSWORD'])}"
        f"@{server['HOST']}:{server['PORT']}/{server['NAME']}"
    )
    with (
        through(url) as (database_port, database_url),
        through(live_store.url) as (store_port, store_url),
        start_console(store_url, database_url, tmp_path) as process,
    ):
        console = Console(
            process, database_port, store_port, client.cookies["headrace_session"].value, token
        )
        wait_until(lambda: console.get("/readyz")[0].status_code == 200, 30, "ready")
        assert console.get("/system/")[0].status_code == 200
        yield console


def paths() -> tuple[str, ...]:
    return (*PAGES, *(f"/api/v1/{path}" for path in ENDPOINTS), "/api/v1/system/")


@pytest.mark.parametrize("fault", ["hang", "refuse"])
def test_without_postgresql_every_answer_is_quick_and_names_it(running: Console, fault: str):
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
def test_without_the_store_pages_work_and_the_system_page_names_it(running: Console, fault: str):
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
    running: Console,
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
def test_a_socket_that_opens_without_postgresql_is_told_to_come_back(running: Console, fault: str):
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

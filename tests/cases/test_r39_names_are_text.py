"""R39: names chosen by tenants are shown as text, in pages and in exports.

A gateway reads no request field `user`; what stands for it here are the texts that it does keep:
session, task and step.
"""

import csv
import io
import warnings
from collections.abc import Iterator

import pytest
from django.test import Client
from playwright.sync_api import Browser, expect, sync_playwright

from console.web.exports import csv_text
from routing.contracts.endpoint_state import EndpointState
from routing.contracts.enums import ReplicaHealth
from telemetry.models import Objective
from tests import factories
from tests.collecting import ConsoleProcess, FakeCollector, traffic
from tests.forecasting import make_forecast
from tests.pages import FORMS, LISTS, OTHERS, Elements, client_of, path_of
from tests.playbooking import make_runs
from tests.reporting import make_report

pytest_plugins = ("tests.live_fixtures",)
NAME = '=HYPERLINK("http://x.example","pay")'
KEY = "<img src=x onerror=alert(1)>"
MODEL = '"><script>alert(1)</script>'
USER = "@SUM(1+1)"
UPSTREAM_ERROR = '<a href="http://x.example">502, "bad",\ngateway</a>'
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
# Made by no page of ours; `on*` and the foreign host are looked for by attribute.
FOREIGN = (
    "main img, body script:not([src], [type='application/json']), "
    "[onerror], [onload], [href*='x.example']"
)


def hostile_world() -> factories.World:
    """Every text that a tenant or an engine may choose is hostile."""
    world = factories.World()
    factories.make_tenant(world, "acme", NAME, key_name=KEY)
    factories.make_people(world)
    factories.make_fleet(world, {"p-a": 1, "p-b": 1})
    factories.make_policy(world)
    factories.make_hook()
    factories.make_rollout(world, "p-b", reason=KEY)
    factories.make_usage(
        world, "acme", 2, model_asked=MODEL, model=MODEL, session=USER, step=USER,
        error_code=UPSTREAM_ERROR[:64], status="failed",
    )  # fmt: skip
    factories.make_usage(world, "acme", 1, model_asked=USER, model=USER)
    factories.make_tasks(
        world, "acme", 2, task_id=KEY, task_kind=NAME, step=USER, model=MODEL, session=USER,
        parent_id=USER,
    )  # fmt: skip
    factories.make_objective(world)
    Objective.objects.update(model=MODEL)  # set before such names were refused
    factories.make_quota_request(world, "acme", reason=UPSTREAM_ERROR)
    factories.make_refusals(world, "acme", 2, model=MODEL, session=USER)
    make_runs(world, label=KEY, end_reason=MODEL)
    return world


def exported(client: Client, path: str) -> list[list[str]]:
    """The cells of a CSV download."""
    with warnings.catch_warnings():  # the test client reads an asynchronous stream at once
        warnings.simplefilter("ignore")
        raw = b"".join(client.get(path)).decode()
    return list(csv.reader(io.StringIO(raw, newline="")))


@pytest.mark.django_db
def test_r39_every_page_and_every_export_shows_names_as_text(store) -> None:
    world = hostile_world()
    factories.beat(store)
    factories.scrape(store, "p-a", r0={"health": "hung", "reason": UPSTREAM_ERROR})
    make_forecast(world, hours=100, model=MODEL)
    report_id = make_report()
    client = client_of(world, "ada")
    seen = {}
    for path in (*LISTS, *OTHERS, *FORMS):
        answer = client.get(path_of(world, path))
        assert answer.status_code == 200, path
        assert Elements(answer.text).found == [], path
        seen[path] = answer.text
    assert "&lt;img src=x onerror=alert(1)&gt;" in seen["/tenants/acme/keys/"]
    assert "=HYPERLINK(&quot;http://x.example&quot;" in seen["/tenants/acme/"]
    assert "&quot;&gt;&lt;script&gt;alert(1)" in seen["/usage/"]
    assert "&lt;a href=" in seen["/fleet/pools/p-a/"]
    assert "&lt;a href=" in seen["/"]  # what asks for attention
    assert USER in seen["/tasks/{task}/"]
    refused = client.post(
        "/policies/main/edit/",
        {"act": "check", "base": "1", "document": '{"schema_version": 1, "name": "main", "models": '
         '{"llama-8b": {"aliases": ["\\"><script>alert(1)</script>"], "targets": []}}}'},
    )  # fmt: skip
    assert refused.status_code == 422
    assert "aliases[0]" in refused.text  # no alias may be spelled like this; it is shown as text
    assert Elements(refused.text).found == []
    for path in ("/usage.csv", "/t/acme/usage.csv", "/audit.csv", f"/reports/{report_id}/csv/"):
        rows = exported(client, path)
        assert len(rows) > 1, path
        assert {len(row) for row in rows} == {len(rows[0])}, path
        assert [cell for row in rows for cell in row if cell.startswith(FORMULAS)] == [], path
    cells = {cell for row in exported(client, "/usage.csv") for cell in row}
    assert {KEY, MODEL, f"'{USER}", UPSTREAM_ERROR[:64]} <= cells


def test_r39_a_cell_survives_the_round_trip_and_never_begins_a_formula() -> None:
    texts = [NAME, KEY, MODEL, USER, UPSTREAM_ERROR, "-1+2", "+1", "\tx", "\rx", 'a,"b"\r\nc']
    read = next(csv.reader(io.StringIO(csv_text([texts]), newline="")))
    assert [cell for cell in read if cell.startswith(FORMULAS)] == []
    assert [cell.removeprefix("'") for cell in read] == texts


@pytest.fixture
def browser(chromium: str) -> Iterator[Browser]:
    # Playwright's loop runs in this thread; Django refuses the ORM beside a loop unless told.
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        running = playwright.chromium.launch(executable_path=chromium)
        yield running
        running.close()


@pytest.fixture
def served(console: ConsoleProcess, live_store) -> tuple[factories.World, str]:
    """The world behind a console, and an admin's session; asked for before the browser starts."""
    world = hostile_world()
    factories.beat(live_store)
    factories.scrape(live_store, "p-a", r0={"health": "hung", "reason": UPSTREAM_ERROR})
    make_forecast(world, hours=100, model=MODEL)
    return world, client_of(world, "ada").cookies["headrace_session"].value


def test_r39_what_scripts_build_runs_nothing_and_creates_nothing(
    console: ConsoleProcess, live_store, served, browser: Browser
) -> None:
    world, cookie = served
    acme = str(world.tenants["acme"])
    collector = FakeCollector(live_store, slugs={acme: KEY})
    replica = EndpointState(KEY, MODEL, 10**12, ReplicaHealth.OK, kv_usage_ratio=0.4, running=2)

    def publish() -> None:
        collector.publish([traffic(acme, (0.1,) * 40, model=MODEL, pool=NAME)], [replica])

    publish()
    context = browser.new_context()
    session = {"name": "headrace_session", "value": cookie, "url": console.url}
    context.add_cookies([session])
    page = context.new_page()
    complaints: list[str] = []  # an inline script that the content policy stops is one, too
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))

    def is_text(text: str) -> None:
        expect(page.locator("main").get_by_text(text).first).to_be_attached()
        expect(page.locator(FOREIGN)).to_have_count(0)
        assert complaints == [], page.url

    page.goto(f"{console.url}/live/")
    publish()  # what now changes is written by scripts
    for text in (KEY, MODEL, NAME):
        is_text(text)
    expect(page.locator(".series").get_by_text(KEY).first).to_be_visible()  # a chart's legend
    page.locator("#chart-kv").hover()  # the reading under the pointer
    is_text(KEY)
    for path, text in (
        ("/", UPSTREAM_ERROR.partition("\n")[0]),
        ("/tasks/{task}/", MODEL),
        ("/t/acme/spend/?by=key", KEY),
        ("/t/acme/spend/?by=model", MODEL),
        ("/fleet/pools/p-a/", UPSTREAM_ERROR.partition("\n")[0]),
        ("/capacity/forecast/", MODEL),
    ):
        page.goto(console.url + path.replace("{task}", str(world.task_id)))
        is_text(text)

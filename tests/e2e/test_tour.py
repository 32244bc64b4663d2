"""The mission's sentence on a running demo, in one journey.

Publish a policy and watch gateways acknowledge it, see the live slices, ask the overview's four
questions, have a noisy tenant contained by the playbook, roll a pool, read the forecast, grant a
quota request, download the report, and find the tenant released. What waits does so while the next
station is walked: the tenant is released by itself some time after it has become quiet.
"""

import csv
import io
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import psycopg
import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from console.web.units import usd_text
from tests.breaking import wait_for
from tests.reporting import pdf_text

pytestmark = pytest.mark.timeout(900)
ACKED_WITHIN_S = 60
FIGURES_WITHIN_MS = 120_000  # a first task of four calls has ended and is booked
KNOWN_WITHIN_S = 360  # a whole minute of the tenant is rolled up; at once on a demo that ran before
CONTAINED_WITHIN_MS = 120_000
ROLLED_WITHIN_MS = 180_000
FORECAST_WITHIN_S = 180
REPORT_WITHIN_MS = 120_000
RELEASED_WITHIN_MS = 240_000
POOL = "us-b-8b"  # one replica: the shortest rollout
PASSWORD = "correct horse battery"
SHORT, LONG = 60, 6000  # words of a prompt, one token and a quarter each
CALLERS = 4  # as many as the playbook lets a contained tenant run at once
ASKED, GRANTED = 900, 700  # requests a minute


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium)
        yield launched
        launched.close()


def window(browser: Browser, stack: Any, username: str, password: str, home: str) -> Page:
    """A window of a person who has signed in and landed on `home`."""
    page = browser.new_context(viewport={"width": 1440, "height": 1000}).new_page()
    page.set_default_timeout(60_000)
    expect.set_options(timeout=30_000)
    page.goto(f"{stack.console_url}/sign-in/?next={home}")
    page.get_by_label("Username").fill(username)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{stack.console_url}{home}")
    return page


@pytest.fixture
def operator(browser: Browser, stack: Any) -> Iterator[Page]:
    """A window of the demo's operator at the overview."""
    person = stack.credentials["operator"]
    page = window(browser, stack, person["username"], person["password"], "/")
    yield page
    page.context.close()


def figure(page: Page, name: str) -> Locator:
    """The value of a headline figure."""
    return page.locator(".kpi", has=page.get_by_text(name, exact=True)).locator("dd").first


def call(page: Page, stack: Any, method: str, path: str, body: Any = None) -> Any:
    """One REST call with the window's own session."""
    sent = page.locator("body").get_attribute("hx-headers:inherited") or "{}"
    answer = page.request.fetch(
        f"{stack.console_url}/api/v1/{path}",
        method=method,
        headers={**json.loads(sent), "Referer": stack.console_url},
        **({} if body is None else {"data": body}),
    )
    assert answer.ok, answer.text()
    return answer.json() if answer.text() else None


def rows(stack: Any, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """What the demo's own database says."""
    with psycopg.connect(stack.settings["DATABASE_URL"], autocommit=True) as connection:
        return connection.execute(sql, values).fetchall()


def ask(stack: Any, secret: str, words: int) -> httpx.Response:
    """A chat call whose prompt has so many words."""
    body = {
        "model": "llama-8b",
        "max_tokens": 8,
        "messages": [{"role": "user", "content": "word " * words}],
    }
    headers = {"authorization": f"Bearer {secret}"}
    with httpx.Client(timeout=120, trust_env=False) as client:
        return client.post(f"{stack.gateway_url}/v1/chat/completions", json=body, headers=headers)


def test_the_missions_sentence(operator: Page, browser: Browser, stack: Any) -> None:
    page = operator
    acme = next(one for one in stack.credentials["demo_callers"] if one["name"] == "acme")
    calm, admin = quiet_tenant(page, browser, stack)
    version = publish_and_watch(page, stack)
    see_live_slices(page, stack)
    ask_the_overview(page, stack)
    with noisy_playbook(page, stack) as step:
        run = contained(page, stack, acme["secret"], step)
        assert ask(stack, calm, LONG).status_code == 200
        roll_a_pool(page, stack)
        read_the_forecast(page, stack)
        grant_more(page, admin, stack)
        download_the_report(page, stack)
        released(page, stack, acme["secret"], run)
    roll_back(page, stack, version)
    admin.context.close()


def quiet_tenant(page: Page, browser: Browser, stack: Any) -> tuple[str, Page]:
    """A tenant beside the noisy one: its key, and a window of its own admin."""
    call(page, stack, "post", "tenants/", {"slug": "calm", "name": "Calm"})
    made = call(page, stack, "post", "tenants/calm/keys/", {"name": "k", "allowed_models": ["*"]})
    limit = {"scope": "tenant", "dimension": "req", "window": "m", "amount": 600}
    call(page, stack, "put", "tenants/calm/limits/", limit)
    person = {"username": "cara", "password": PASSWORD, "role": "none", "grants": []}
    call(page, stack, "post", "users/", person)
    member = {"username": "cara", "role": "tenant_admin"}
    call(page, stack, "post", "tenants/calm/members/", member)
    return made["secret"], window(browser, stack, "cara", PASSWORD, "/t/calm/")


def publish_and_watch(page: Page, stack: Any) -> int:
    """The live document with one alias more; every gateway acknowledges it. The new version."""
    before = call(page, stack, "get", "policies/main/")["live_number"]
    page.goto(f"{stack.console_url}/policies/main/edit/")
    text = page.get_by_label("Document (JSON)")
    document = json.loads(text.input_value())
    document["models"]["llama-8b"]["aliases"].append("quick")
    text.fill(json.dumps(document, indent=2))
    change = page.get_by_role("region", name="What would change")
    expect(change).to_contain_text("quick")
    page.get_by_label("Note (optional)").fill("the tour's alias")
    page.get_by_role("button", name=f"Publish main@{before + 1}").click()
    expect(page.get_by_role("status").first).to_contain_text(f"main@{before + 1} is live.")

    gateways = page.get_by_role("table", name=re.compile("Gateways and the snapshot"))

    def is_acked() -> bool:
        page.goto(f"{stack.console_url}/policies/main/")
        runs = gateways.get_by_role("row").filter(has_text=f"main@{before + 1}")
        acked = runs.filter(has_text="acknowledged").count()
        return acked == gateways.locator("tbody tr").count() > 0

    wait_for(is_acked, "every gateway's acknowledgement", ACKED_WITHIN_S)
    return before + 1


def see_live_slices(page: Page, stack: Any) -> None:
    page.goto(f"{stack.console_url}/live/")
    expect(page.locator("#live-state")).to_contain_text("live")
    slices = page.locator("table[data-live=slices] tbody")
    expect(slices).to_contain_text("acme", timeout=60_000)
    expect(slices).to_contain_text("llama-8b")


def ask_the_overview(page: Page, stack: Any) -> None:
    """Live figures, what changed, what a task costs; each question is one click away."""
    page.goto(f"{stack.console_url}/")
    expect(page.get_by_text(re.compile("^. live"))).to_be_visible()
    expect(figure(page, "Goodput in SLO")).to_contain_text("%", timeout=FIGURES_WITHIN_MS)
    for name in ("Cost per success", "CO2e per task"):
        expect(figure(page, name)).to_contain_text(re.compile(r"\d"), timeout=FIGURES_WITHIN_MS)
    expect(page.get_by_text("the tour's alias")).to_be_visible()
    for link, answer in (
        ("Why is P99 up?", "By replica, worst first"),
        ("What did the agents do?", "By tenant and kind"),
        ("What caused the bill?", "By tenant, largest change first"),
        ("What is the carbon?", "Demo assumption"),
    ):
        page.goto(f"{stack.console_url}/")
        page.get_by_role("link", name=re.compile(re.escape(link))).click()
        expect(page.get_by_role("heading", level=1, name=link)).to_be_visible()
        expect(page.get_by_text(re.compile(answer)).first).to_be_visible()
    page.goto(f"{stack.console_url}/tasks/?outcome=success")
    page.locator("#rows tbody th a").first.click()
    expect(page.get_by_role("heading", name="Calls, oldest first")).to_be_visible()
    expect(page.get_by_text("by header")).to_be_visible()


@contextmanager
def noisy_playbook(page: Page, stack: Any) -> Iterator[dict[str, Any]]:
    """The shipped playbook with shorter times, and as it was afterwards; its only step."""
    path = "playbooks/noisy-tenant/"
    before = call(page, stack, "get", path)
    assert before["mode"] == "armed"
    (step,) = before["document"]["steps"]
    document = before["document"] | {
        "timing": before["document"]["timing"]
        | {"enter_for_s": 0, "leave_for_s": 5, "down_every_s": 5},
        "steps": [step | {"leave": 2.0}],  # the demo's own traffic is not even
        "baseline_least_min": 1,
    }
    body = {"document": document, "base": before["version"]}
    base = call(page, stack, "put", path, body)["version"]
    try:
        yield step
    finally:
        call(page, stack, "put", path, {"document": before["document"], "base": base})


@contextmanager
def noise(stack: Any, secret: str) -> Iterator[None]:
    """Long prompts, one after another from each of a few callers, until the block is left."""
    over = threading.Event()

    def send() -> None:
        while not over.is_set():
            assert ask(stack, secret, LONG).status_code in (200, 429, 503)

    with ThreadPoolExecutor(CALLERS) as threads:
        senders = [threads.submit(send) for _ in range(CALLERS)]
        try:
            yield
        finally:
            over.set()
            for sender in senders:
                sender.result()


WHOLE_MINUTES = """
SELECT count(DISTINCT m.minute_at) FROM telemetry_sliceminute m
JOIN tenants_tenant t ON t.id = m.tenant_id
WHERE t.slug = 'acme' AND m.minute_at < date_trunc('minute', now()) - interval '1 min'
"""


def contained(page: Page, stack: Any, secret: str, step: dict[str, Any]) -> str:
    """The tenant becomes loud and is capped; the address of the run."""

    def is_known() -> bool:
        return rows(stack, WHOLE_MINUTES)[0][0] > 1  # the first one is not a whole one

    wait_for(is_known, "a rolled-up minute of the tenant", KNOWN_WITHIN_S)
    with noise(stack, secret):
        page.goto(f"{stack.console_url}/")
        strip = page.get_by_text(re.compile("Playbook noisy-tenant acts on acme"))
        expect(strip).to_be_visible(timeout=CONTAINED_WITHIN_MS)  # the page asks by itself
    page.goto(f"{stack.console_url}/playbooks/noisy-tenant/")
    acting = page.get_by_role("row").filter(has_text="acting").filter(has_text="acme")
    acting.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("acme")
    acts = page.get_by_role("row").filter(has_text=step["title"])
    expect(acts).to_contain_text("held")
    refused = ask(stack, secret, LONG)
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "context_capped"
    assert step["reason"] in refused.json()["error"]["message"]
    # not shut out: a short prompt is served when one of its few places is free
    wait_for(lambda: ask(stack, secret, SHORT).status_code == 200, "a short prompt served")
    return page.url


def roll_a_pool(page: Page, stack: Any) -> None:
    """A rolling restart of a pool; no replica serves less than before, and the timeline says so."""
    page.goto(f"{stack.console_url}/fleet/pools/{POOL}/roll-out/")
    page.get_by_label("Slow start, s").fill("0")
    page.get_by_label("Drain limit, s").fill("10")
    page.get_by_label("Reason").fill("the tour's restart")
    page.get_by_label(f"Type {POOL} to start").fill(POOL)
    page.get_by_role("button", name=f"Start rollout of {POOL}").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(POOL)
    head = page.locator("#live .head")
    expect(head).to_contain_text("done", timeout=ROLLED_WITHIN_MS)  # the page asks by itself
    lanes = page.get_by_role("region", name="Timeline").locator("tbody tr")
    expect(lanes).to_have_count(1)
    expect(page.get_by_text("100 %").first).to_be_visible()
    page.goto(f"{stack.console_url}/")
    expect(page.get_by_text("rollout start").first).to_be_visible()


def read_the_forecast(page: Page, stack: Any) -> None:
    """Of the imported days: a band with its method, error and coverage, and hours in a table."""

    def is_there() -> bool:
        page.goto(f"{stack.console_url}/capacity/forecast/?source=servegen&measure=requests")
        return page.locator("#rows tbody th a").count() > 0

    wait_for(is_there, "a forecast of the imported days", FORECAST_WITHIN_S)
    page.locator("#rows tbody th a").first.click()
    for name in ("Peak, p95", "Error", "Inside the band"):
        expect(figure(page, name)).to_contain_text(re.compile(r"\d"))
    expect(page.get_by_role("table", name="Hours ahead").locator("tbody tr")).to_have_count(24)
    tried = page.get_by_role("table", name=re.compile("Methods tried"))
    expect(tried).to_contain_text("flat")
    expect(tried).to_contain_text("seasonal")


def grant_more(page: Page, admin: Page, stack: Any) -> None:
    """The tenant's admin asks, the operator grants less beside the room, and it is in force."""
    admin.goto(f"{stack.console_url}/t/calm/limits/requests/ask/")
    admin.get_by_label("Raise it to").fill(str(ASKED))
    admin.get_by_label("Why").fill("The launch on Monday")
    admin.get_by_role("button", name="Ask for more").click()
    asked = admin.get_by_role("row").filter(has_text="Waits for an operator.")
    expect(asked).to_be_visible()

    page.goto(f"{stack.console_url}/quota-requests/")
    listed = page.get_by_role("row").filter(has_text="The launch on Monday")
    expect(page.locator("footer", has_text="Fleet now")).to_contain_text("replicas ready")
    listed.get_by_role("link").first.click()
    page.get_by_label("Grant").fill(str(GRANTED))
    page.get_by_role("button", name="Grant calm").click()
    expect(page.get_by_role("status").first).to_contain_text(f"granted {GRANTED}")

    row = admin.get_by_role("row").filter(has_text=f"granted {GRANTED}")
    expect(row).to_contain_text("in force", timeout=60_000)  # the page asks by itself
    (limit,) = call(page, stack, "get", "tenants/calm/limits/")
    assert limit["amount"] == GRANTED


BOOKED = """
SELECT coalesce(sum(requests), 0), coalesce(sum(spend_nanousd), 0) FROM tenants_usagerollup
WHERE grain = 'h' AND start_at >= %s::timestamptz AND start_at < %s::timestamptz
"""


def download_the_report(page: Page, stack: Any) -> None:
    """Issue one, and take it as PDF and as CSV: both say what the ledger's rows say."""
    page.goto(f"{stack.console_url}/reports/")
    page.get_by_role("button", name="Issue a report now").click()
    said = page.get_by_role("status").first
    expect(said).to_contain_text(re.compile(r"Report \d+ is queued"))
    number = re.search(r"Report (\d+)", said.inner_text())
    assert number
    files = {}
    for kind in ("PDF", "CSV"):
        link = page.get_by_role("link", name=f"Report {number[1]} as {kind}")
        expect(link).to_be_visible(timeout=REPORT_WITHIN_MS)  # the page asks by itself
        with page.expect_download() as download:
            link.click()
        files[kind] = download.value.path().read_bytes()
    report = call(page, stack, "get", f"reports/{number[1]}/")
    ((requests, spend_nanousd),) = rows(stack, BOOKED, report["since_at"], report["until_at"])
    table = {
        tuple(row[:4]): row[4] for row in csv.reader(io.StringIO(files["CSV"].decode(), newline=""))
    }
    assert table["totals", "all", "", "requests"] == str(requests)
    assert table["totals", "all", "", "spend_usd"] == usd_text(int(spend_nanousd))
    assert files["PDF"].startswith(b"%PDF-")
    assert "Spend" in pdf_text(files["PDF"])


def released(page: Page, stack: Any, secret: str, run: str) -> None:
    """The tenant is quiet again: the run has ended by itself, and nothing of it is left."""
    page.goto(run)
    ended = page.get_by_text("The signal has ended.").first
    expect(ended).to_be_visible(timeout=RELEASED_WITHIN_MS)  # the page asks by itself
    assert ask(stack, secret, LONG).status_code == 200
    detail = call(
        page, stack, "get", f"playbooks/noisy-tenant/runs/{run.rstrip('/').split('/')[-1]}/"
    )
    assert (detail["run"]["state"], detail["run"]["is_dry_run"]) == ("ended", False)
    assert detail["run"]["start_value"] >= 3
    assert len(detail["samples"]) >= 3
    (act,) = detail["acts"]
    assert act["undone_by"] == "playbook:noisy-tenant"
    assert act["before"]["requests_per_min"] > 0
    assert act["after"]["requests_per_min"] > 0


def roll_back(page: Page, stack: Any, version: int) -> None:
    """The policy as it was before the tour, by the page."""
    page.goto(f"{stack.console_url}/policies/main/versions/{version - 1}/roll-back/")
    page.get_by_label("Type main to confirm").fill("main")
    page.get_by_role("button", name=f"Roll back main to {version - 1}").click()
    expect(page.get_by_role("status").first).to_contain_text(f"main@{version + 1} is live.")

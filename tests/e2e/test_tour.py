"""The mission's sentence on a running demo, as far as its parts stand.

Publish a policy, watch gateways acknowledge it, see the live slices, then ask the overview's four
questions.
"""

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

ACKED_WITHIN_S = 30
FIGURES_WITHIN_MS = 90_000  # a first task of four calls has ended and is booked


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium)
        yield launched
        launched.close()


@pytest.fixture
def operator(browser: Browser, stack: Any) -> Iterator[Page]:
    """A window of the demo's operator at the overview."""
    context = browser.new_context(viewport={"width": 1440, "height": 1000})
    page = context.new_page()
    person = stack.credentials["operator"]
    page.goto(f"{stack.console_url}/sign-in/?next=/")
    page.get_by_label("Username").fill(person["username"])
    page.get_by_label("Password").fill(person["password"])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{stack.console_url}/")
    yield page
    context.close()


def figure(page: Page, name: str) -> Any:
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
    return answer.json()


def test_publish_watch_and_ask(operator: Page, stack: Any) -> None:
    page = operator
    # publish: the live document with one alias more, and every gateway acknowledges it
    before = call(page, stack, "get", "policies/main/")["live_number"]
    document = call(page, stack, "get", f"policies/main/versions/{before}/")["document"]
    document["models"]["llama-8b"]["aliases"].append("quick")
    note = f"tour {time.time_ns()}"
    body = {"document": document, "base": before, "note": note}
    version = call(page, stack, "post", "policies/main/publish/", body)["number"]
    assert version == before + 1
    gateways = page.get_by_role("table", name=re.compile("Gateways and the snapshot"))
    end = time.monotonic() + ACKED_WITHIN_S
    while True:
        page.goto(f"{stack.console_url}/policies/main/")
        acked = gateways.get_by_role("row").filter(has_text=f"main@{version}")
        if acked.filter(has_text="acknowledged").count() == gateways.locator("tbody tr").count():
            break
        assert time.monotonic() < end, "not acknowledged by every gateway"

    # see the live slices
    page.goto(f"{stack.console_url}/live/")
    expect(page.locator("#live-state")).to_contain_text("live", timeout=20_000)
    slices = page.locator("table[data-live=slices] tbody")
    expect(slices).to_contain_text("acme", timeout=30_000)
    expect(slices).to_contain_text("llama-8b")

    # the overview: live figures, what changed, what a task costs
    page.goto(f"{stack.console_url}/")
    expect(page.get_by_text(re.compile("^. live"))).to_be_visible(timeout=20_000)
    expect(figure(page, "Goodput in SLO")).to_contain_text("%", timeout=FIGURES_WITHIN_MS)
    expect(figure(page, "Cost per success")).to_contain_text(
        re.compile(r"\d"), timeout=FIGURES_WITHIN_MS
    )
    expect(figure(page, "CO2e per task")).to_contain_text(re.compile(r"\d"))
    expect(page.get_by_text(note)).to_be_visible()

    # each question is one click away and answers
    for link, heading, answer in (
        ("Why is P99 up?", "Why is P99 up?", "By replica, worst first"),
        ("What did the agents do?", "What did the agents do?", "By tenant and kind"),
        ("What caused the bill?", "What caused the bill?", "By tenant, largest change first"),
        ("What is the carbon?", "What is the carbon?", "Demo assumption"),
    ):
        page.goto(f"{stack.console_url}/")
        page.get_by_role("link", name=re.compile(re.escape(link))).click()
        expect(page.get_by_role("heading", level=1, name=heading)).to_be_visible()
        expect(page.get_by_text(re.compile(answer)).first).to_be_visible()

    # one task: its calls add up to its spend
    page.goto(f"{stack.console_url}/tasks/?outcome=success")
    page.locator("#rows tbody th a").first.click()
    expect(page.get_by_role("heading", name="Calls, oldest first")).to_be_visible()
    expect(page.get_by_text("by header")).to_be_visible()

    # leave the demo as it was
    call(page, stack, "post", f"policies/main/versions/{before}/rollback/", {"base": version})

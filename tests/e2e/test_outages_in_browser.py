"""An open page while a server is away: it keeps its figures, says so, and comes back by itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.axe import faults_of
from tests.ports import BreakableConsole

pytest_plugins = ("tests.outage_fixtures",)

BACK_MS = 30_000  # a refresh every 5 s, on a busy machine


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    # Playwright's loop runs in this thread; Django refuses the ORM beside a loop unless told.
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        started = playwright.chromium.launch(executable_path=chromium)
        yield started
        started.close()


@pytest.fixture(params=["light", "dark"])
def page(request, browser: Browser, running: BreakableConsole) -> Iterator[Page]:
    context = browser.new_context(
        color_scheme=request.param, viewport={"width": 1366, "height": 900}
    )
    url = running.process.url
    context.add_cookies([{"name": "headrace_session", "value": running.cookie, "url": url}])
    opened = context.new_page()
    opened.set_default_timeout(15_000)
    yield opened
    context.close()


def test_an_open_system_page_names_a_lost_store_and_keeps_focus(
    running: BreakableConsole, page: Page
):
    page.goto(f"{running.process.url}/system/")
    table = page.get_by_role("group", name="Processes, servers and engines")
    table.focus()
    strip = page.locator(".strip.bad", has_text="The store cannot be reached")
    expect(strip).to_have_count(0)
    running.store.refuse()
    expect(strip).to_be_visible(timeout=BACK_MS)
    expect(strip).to_contain_text("local shares, by default at most 300 s")
    expect(strip).to_contain_text("Next")
    expect(table).to_be_focused()
    assert faults_of(page) == []
    running.store.mend()
    expect(strip).to_have_count(0, timeout=BACK_MS)
    expect(table).to_be_focused()


def test_an_open_page_keeps_its_figures_while_postgresql_is_away(
    running: BreakableConsole, page: Page
):
    page.goto(f"{running.process.url}/system/")
    row = page.locator("#row-worker-4001")
    expect(row).to_be_visible()
    running.database.refuse()
    banner = page.locator("#away")
    expect(banner).to_contain_text("PostgreSQL does not answer", timeout=BACK_MS)
    expect(banner).to_contain_text("The figures below are those of")
    expect(row).to_be_visible()
    assert faults_of(page) == []
    running.database.mend()
    expect(banner).to_be_hidden(timeout=BACK_MS)
    expect(row).to_be_visible()


def test_the_page_of_a_lost_server_comes_back_by_itself(
    running: BreakableConsole, page: Page, tmp_path: Path
):
    running.database.hang()
    page.goto(f"{running.process.url}/system/")
    expect(page.get_by_role("heading", name="PostgreSQL does not answer")).to_be_visible()
    expect(page.get_by_role("status")).to_contain_text("Tried again by itself")
    assert faults_of(page) == []
    running.database.mend()
    expect(page.locator("main h1", has_text="System")).to_be_visible(timeout=BACK_MS)

"""Every page in a real browser: accessible, silent, complete, and usable by keyboard or unscripted.

Under the console's content policy nothing here waits on evaluated strings, only on locators.
"""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from capacity.models import PlaybookRun
from tests import factories
from tests.axe import faults_of
from tests.collecting import ConsoleProcess
from tests.playbooking import make_runs
from tests.tasking import make_live

pytest_plugins = ("tests.live_fixtures",)

ALL = (
    "/", "/why-p99/", "/why-bill/", "/tasks/", "/tasks/{task}/", "/carbon/", "/carbon/grid/",
    "/carbon/power/", "/slo/", "/slo/set/", "/slo/{objective}/remove/",
    "/live/", "/fleet/", "/fleet/pools/p-a/", "/fleet/pools/p-a/roll-out/", "/rollouts/",
    "/fleet/pools/p-a/provider/",
    "/rollouts/{rollout}/", "/rollouts/{rollout}/abort/", "/inventory/", "/inventory/?kind=pool",
    "/inventory/import/", "/inventory/drift/", "/policies/", "/policies/main/",
    "/policies/main/versions/1/", "/policies/main/edit/",
    "/playbooks/", "/playbooks/noisy-tenant/", "/playbooks/noisy-tenant/mode/",
    "/playbooks/noisy-tenant/runs/{run}/", "/overrides/", "/overrides/?all=1", "/new-override/",
    "/hooks/", "/new-hook/", "/hooks/pii/",
    "/policies/main/versions/1/roll-back/", "/tenants/", "/tenants/acme/", "/tenants/acme/keys/",
    "/tenants/acme/keys/issue/", "/tenants/acme/keys/{key}/rotate/",
    "/tenants/acme/keys/{key}/revoke/", "/tenants/acme/limits/", "/tenants/acme/suspend/",
    "/new-tenant/", "/spend/", "/spend/?by=key", "/usage/", "/prices/", "/new-price/", "/audit/",
    "/prices/resources/", "/prices/resources/new/", "/prices/pools/", "/prices/pools/new/",
    "/audit/?verify=1", "/jobs/", "/system/", "/api/docs/", "/me/", "/me/password/",
    "/search/?q=acme",
    "/me/tokens/issue/", "/people/", "/new-person/", "/people/{vic}/", "/people/{vic}/suspend/",
    "/people/{vic}/restore/", "/people/{vic}/sign-out/", "/people/{vic}/password/",
    "/tenants/acme/members/", "/tenants/acme/members/add/", "/tenants/acme/members/invite/",
    "/tenants/acme/members/{vic}/role/", "/tenants/acme/members/{vic}/remove/",
    "/quota-requests/", "/quota-requests/{request}/",
    "/requests/?id=none", "/requests/{refused}/", "/requests/{served}/",
)  # fmt: skip
EMPTY = (
    "/usage/?model=none",
    "/prices/?model=none",
    "/prices/resources/?name=none",
    "/jobs/?kind=none",
    "/audit/?type=none",
    "/quota-requests/?state=decided",
)
# The reference as a tenant sees it has a test of its own: axe reads nothing for so long.
OWN = (
    "/t/acme/", "/t/acme/tasks/", "/t/acme/tasks/{task}/", "/t/acme/usage/", "/t/acme/keys/",
    "/t/acme/keys/issue/", "/t/acme/members/", "/t/acme/members/invite/", "/t/acme/spend/",
    "/t/acme/spend/?by=key&range=month", "/t/acme/requests/", "/t/acme/requests/?id=none",
    "/t/acme/requests/{refused}/", "/t/acme/requests/{served}/",
    "/t/acme/limits/requests/", "/t/acme/limits/requests/ask/", "/me/",
)  # fmt: skip
TASK = "acme-task-5-0"  # the one that `make_tasks` below makes first
HOSTILE = '<img src=x onerror=alert(1)>"><script>alert(1)</script>'


@pytest.fixture
def world(console: ConsoleProcess, live_store: redis.Redis, tmp_path: Path) -> factories.World:
    made = factories.World()
    factories.make_tenant(made, "acme", HOSTILE, key_name=HOSTILE, zone="Europe/Berlin")
    factories.make_people(made)
    factories.make_fleet(made, {"p-a": 6, "p-b": 2})
    factories.make_policy(made, versions=2)
    factories.make_rollout(made, "p-b")
    factories.make_usage(made, "acme", 50)  # and twenty rows of five tasks
    factories.make_tasks(made, "acme", 5)
    factories.make_objective(made)
    factories.make_quota_request(made, "acme", reason=HOSTILE)
    factories.make_hook()
    factories.make_draft(made, '"stale_after_s": 9, "spelling": "mistaken"')
    factories.make_refusals(made, "acme", 5, model=HOSTILE)
    capped = {"refused_scope": "task", "refused_limit": "task_steps", "step": HOSTILE[:32]}
    factories.make_refusals(made, "acme", 2, model=HOSTILE, task_id=TASK, **capped)
    factories.make_refusals(made, "acme", 1, task_id=HOSTILE, **capped)
    make_live(live_store.url, str(made.tenants["acme"]), TASK, tmp_path)
    make_runs(made, 3)
    factories.make_single_prices(made, "p-a", 3)
    factories.beat(live_store)
    factories.scrape(
        live_store,
        "p-a",
        r1={"health": "hung", "reason": HOSTILE},
        r2={"health": "stale", "reason": "metrics 42 s old"},
        r3={"kv_usage_ratio": 0.95},
    )
    return made


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    # Playwright's loop runs in this thread; Django refuses the ORM beside a loop unless told.
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        running = playwright.chromium.launch(executable_path=chromium)
        yield running
        running.close()


class Visit:
    """A signed-in window that notes whatever the browser complains about."""

    def __init__(
        self, browser: Browser, console: ConsoleProcess, cookie: str, **options: object
    ) -> None:
        self.url = console.url
        self.context: BrowserContext = browser.new_context(**options)
        if cookie:
            self.context.add_cookies(
                [{"name": "headrace_session", "value": cookie, "url": console.url}]
            )
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(15_000)
        self.complaints: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._note_host)

    def _note_host(self, request: object) -> None:
        address = str(getattr(request, "url", ""))
        own = (self.url, self.url.replace("http", "ws", 1), "data:", "blob:")
        if not address.startswith(own):
            self.complaints.append(f"foreign host: {address}")

    def go(self, path: str) -> None:
        self.page.goto(self.url + path, wait_until="load")


@pytest.fixture
def visit(browser: Browser, console: ConsoleProcess, world: factories.World) -> Iterator:
    opened: list[Visit] = []

    def make(name: str, **options: object) -> Visit:
        cookie = ""
        if name:
            client = Client()
            client.force_login(world.people[name])
            cookie = client.cookies["headrace_session"].value
        opened.append(Visit(browser, console, cookie, **options))
        return opened[-1]

    yield make
    for each in opened:
        each.context.close()


def path_of(world: factories.World, path: str) -> str:
    vic = str(world.people["vic"].pk)
    path = path.replace("{rollout}", str(world.rollouts[0]))
    path = path.replace("{task}", str(world.task_id))
    path = path.replace("{objective}", str(world.objective_id))
    path = path.replace("{request}", str(world.requests["acme"]))
    path = path.replace("{refused}", world.refusals["acme"][0])
    path = path.replace("{served}", world.served["acme"][0])
    run = str(PlaybookRun.objects.order_by("id").values_list("pk")[0][0])
    path = path.replace("{key}", str(world.keys["acme"].id)).replace("{run}", run)
    return path.replace("{vic}", vic)


@pytest.mark.timeout(600)  # more than ninety pages, each read by axe, beside two other lanes
def test_every_page_is_accessible_in_both_themes_and_silent(visit, world):
    faults: dict[str, list[str]] = {}
    for name, paths in (("ada", (*ALL, *EMPTY)), ("tina", OWN), ("", ("/sign-in/",))):
        window = visit(name)
        for path in paths:
            window.page.emulate_media(color_scheme="light")
            window.go(path_of(world, path))
            expect(window.page.locator("main h1")).to_be_visible()
            found = faults_of(window.page)
            window.page.emulate_media(color_scheme="dark")
            found += faults_of(window.page, "dark") + window.complaints
            window.complaints.clear()
            if found:
                faults[f"{name} {path}"] = found
    assert faults == {}


@pytest.mark.parametrize("path", ["/no-such-page/", "/t/other/"])
def test_refusals_are_pages_too(visit, path):
    window = visit("tina")
    window.go(path)
    expect(window.page.get_by_role("heading", name="Not found")).to_be_visible()
    assert faults_of(window.page) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_reference_opens_by_keyboard_and_stays_accessible_and_silent(visit, theme):
    window = visit("tina", color_scheme=theme)
    window.go("/api/docs/")
    window.page.locator("#users_create summary").focus()
    window.page.keyboard.press("Enter")
    fields = window.page.get_by_role("group", name="Body of POST /api/v1/users/")
    expect(fields.get_by_role("rowheader", name="grants")).to_be_visible()
    assert faults_of(window.page, theme) == []
    assert window.complaints == []


def test_pages_fit_a_narrow_window(visit, world):
    window = visit("ada", viewport={"width": 320, "height": 700})
    for path in ALL:
        window.go(path_of(world, path))
        box = window.page.locator("main").bounding_box()
        assert box is not None, path
        assert box["x"] + box["width"] <= 320, path


def test_a_narrow_window_opens_its_pages_by_keyboard_and_without_scripts(visit):
    narrow = {"viewport": {"width": 390, "height": 844}}
    for theme in ("light", "dark"):
        window = visit("ada", color_scheme=theme, **narrow)
        window.go("/fleet/")
        pages = window.page.get_by_role("navigation", name="Pages")
        expect(pages).to_be_hidden()
        menu = window.page.get_by_role("button", name="Menu")
        menu.press("Enter")
        expect(pages.get_by_role("link", name="Fleet")).to_have_attribute("aria-current", "page")
        expect(pages.get_by_role("list", name="Capacity").get_by_role("link")).to_have_count(5)
        assert faults_of(window.page, theme) == []
        window.page.keyboard.press("Escape")
        expect(pages).to_be_hidden()
        expect(menu).to_be_focused()
        window.page.get_by_role("button", name="ada").click()
        expect(window.page.get_by_role("button", name="Sign out")).to_be_visible()
        assert faults_of(window.page, theme) == []
        window.go("/usage/")  # rows are cards now, and still rows of a table
        row = window.page.get_by_role("table").get_by_role("row").nth(1)
        expect(row.get_by_role("cell").first).to_have_attribute("data-label", "Tenant")
        label = "getComputedStyle(node, '::before').content"
        assert row.get_by_role("cell").first.evaluate(f"node => {label}") == '"Tenant"'
        assert faults_of(window.page, theme) == []
        assert window.complaints == []
    bare = visit("tina", java_script_enabled=False, **narrow)
    bare.go("/t/acme/")
    pages = bare.page.get_by_role("navigation", name="Pages")
    expect(pages).to_be_hidden()
    bare.page.get_by_role("button", name="Menu").press("Enter")
    bare.page.keyboard.press("Tab")
    expect(pages.get_by_role("link", name="Live")).to_be_focused()
    pages.get_by_role("link", name="Keys").click()
    expect(bare.page.get_by_role("heading", name="API keys")).to_be_visible()


def test_the_theme_is_kept_and_there_from_the_first_byte(visit):
    window = visit("ada")
    window.go("/")
    window.page.get_by_role("button", name="ada").click()
    window.page.get_by_label("Theme").select_option("dark")
    expect(window.page.locator("html")).to_have_attribute("data-theme", "dark")
    answer = window.context.request.get(window.url + "/system/")
    assert '<html lang="en" data-theme="dark">' in answer.text()


def test_tables_are_walked_by_keyboard(visit):
    window = visit("ada")
    window.go("/usage/")
    table = window.page.get_by_role("group", name="Requests, newest first")
    table.focus()
    window.page.keyboard.press("j")
    window.page.keyboard.press("j")
    window.page.keyboard.press("k")
    expect(table.locator("tbody tr").nth(0)).to_have_class("is-at")
    window.page.keyboard.press("/")
    expect(window.page.get_by_label("Tenant", exact=True)).to_be_focused()
    window.page.keyboard.type("jk/")
    expect(window.page.get_by_label("Tenant", exact=True)).to_have_value("jk/")


def test_focus_goes_on_where_a_page_of_a_table_or_a_refused_form_begins(visit):
    window = visit("ada")
    window.go("/usage/?tenant=acme")
    window.page.get_by_role("link", name="Next").press("Enter")
    rows = window.page.get_by_role("group", name="Requests, newest first")
    expect(rows).to_be_focused()
    expect(window.page.locator("#status")).to_have_text("20 rows")
    window.page.get_by_label("Model").fill("none")
    window.page.get_by_label("Model").press("Enter")
    expect(window.page.locator("#status")).to_have_text("No row matches")
    expect(window.page.get_by_label("Model")).to_be_focused()
    window.go("/new-tenant/")
    window.page.get_by_label("Slug").fill("Two words")
    window.page.get_by_label("Name").fill("Kept as typed")
    window.page.get_by_label("Name").press("Enter")
    expect(window.page.get_by_label("Slug")).to_be_focused()
    expect(window.page.get_by_label("Slug")).to_have_attribute("aria-invalid", "true")
    expect(window.page.get_by_label("Name")).to_have_value("Kept as typed")
    assert faults_of(window.page) == []


def test_filter_next_page_and_back_keep_the_address(visit):
    window = visit("ada")
    window.go("/usage/")
    window.page.get_by_label("Tenant", exact=True).fill("acme")
    window.page.get_by_role("button", name="Filter").click()
    expect(window.page).to_have_url(f"{window.url}/usage/?tenant=acme&model=&status=&since=&until=")
    window.page.get_by_role("link", name="Next").click()
    expect(window.page.locator("#rows tbody tr")).to_have_count(20)
    assert "after=" in window.page.url
    window.page.go_back()
    expect(window.page.locator("#rows tbody tr")).to_have_count(50)
    expect(window.page.locator("nav.side")).to_be_visible()
    assert window.complaints == []


def test_everything_works_without_scripts(visit):
    window = visit("ada", java_script_enabled=False)
    window.go("/usage/?tenant=acme")
    window.page.get_by_role("link", name="Next").click()
    expect(window.page.locator("#rows tbody tr")).to_have_count(20)
    window.page.get_by_role("button", name="ada").click()
    window.page.get_by_label("Theme").select_option("dark")
    window.page.get_by_role("button", name="Set").click()
    expect(window.page.locator("html")).to_have_attribute("data-theme", "dark")
    window.go("/new-tenant/")
    window.page.get_by_label("Slug").fill("initech")
    window.page.get_by_label("Name").fill("Initech")
    window.page.get_by_role("button", name="Create tenant").click()
    expect(window.page.get_by_role("heading", name="Initech")).to_be_visible()


def test_a_secret_is_copied_and_gone_after_a_reload(visit):
    window = visit("tina")
    window.context.grant_permissions(["clipboard-read", "clipboard-write"])
    window.go("/t/acme/keys/issue/")
    window.page.get_by_label("Name").fill("laptop")
    window.page.get_by_role("button", name="Issue key").click()
    secret = window.page.locator("#secret")
    expect(secret).to_be_visible()
    text = secret.inner_text()
    assert faults_of(window.page) == []
    window.page.get_by_role("button", name="Copy secret").click()
    expect(window.page.get_by_role("button", name="Copied")).to_be_visible()
    window.page.reload()
    expect(window.page.get_by_role("heading", name="API keys")).to_be_visible()
    expect(window.page.get_by_text(text)).to_have_count(0)
    assert window.complaints == []


def test_the_fleet_follows_the_collector_by_itself(visit, live_store):
    window = visit("ola")
    window.go("/fleet/")
    cell = window.page.get_by_label("p-a-0: ready")
    expect(cell).to_be_visible()
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline and cell.inner_text() != "42":
        factories.scrape(live_store, "p-a", r0={"kv_usage_ratio": 0.42})
        window.page.wait_for_timeout(300)
    expect(cell).to_have_text("42")
    factories.scrape(live_store, "p-a", age_ms=20_000)
    expect(window.page.get_by_text(re.compile(r"2\d s old"))).to_be_visible()
    expect(window.page.get_by_label("p-a-0:")).to_have_text("◌")
    assert window.complaints == []


def test_after_signing_out_the_back_button_shows_nothing(visit):
    window = visit("ana")
    window.go("/tenants/acme/")
    window.page.get_by_role("button", name="ana").click()
    window.page.get_by_role("button", name="Sign out").click()
    expect(window.page.get_by_role("heading", name="Sign in")).to_be_visible()
    window.page.go_back()
    expect(window.page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_publish_and_roll_back_by_keyboard_alone(visit, tmp_path: Path):
    window = visit("ana")
    window.go("/policies/main/edit/")
    window.page.get_by_label("Document (JSON)").focus()
    window.page.keyboard.press("Control+A")
    window.page.keyboard.insert_text(
        '{"schema_version": 1, "name": "main", "models": '
        '{"llama-8b": {"targets": [{"pool": "p-b"}]}}}'
    )
    window.page.keyboard.press("Tab")
    window.page.keyboard.insert_text("only p-b")
    for _ in ("check", "save draft", "publish"):
        window.page.keyboard.press("Tab")
    expect(window.page.get_by_role("button", name="Publish main@3")).to_be_focused()
    window.page.keyboard.press("Enter")
    expect(window.page.get_by_text("main@3 is live.")).to_be_visible()
    window.go("/policies/main/versions/2/roll-back/")
    expect(window.page.get_by_role("link", name="Cancel")).to_be_focused()
    window.page.get_by_label("Type main to confirm").focus()
    window.page.keyboard.insert_text("main")
    for _ in range(3):
        window.page.keyboard.press("Tab")
    expect(window.page.get_by_role("button", name="Roll back main to 2")).to_be_focused()
    window.page.keyboard.press("Enter")
    expect(window.page.get_by_text("main@4 is live.")).to_be_visible()

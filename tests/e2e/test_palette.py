"""The palette by keyboard alone: open, find, choose, go; and for a member only its own."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.axe import faults_of
from tests.e2e.test_pages import browser, visit, world  # noqa: F401 - fixtures

pytest_plugins = ("tests.live_fixtures",)


def palette(page: Page):
    page.keyboard.press("Control+k")
    box = page.get_by_role("combobox", name=re.compile("^Page, tenant"))
    expect(box).to_be_focused()
    return box


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_find_and_open_by_keyboard(visit, world, scheme, width):  # noqa: F811
    ana = visit("ana", color_scheme=scheme, viewport={"width": width, "height": 844})
    page = ana.page
    ana.go("/fleet/")
    box = palette(page)
    box.type("acme")
    expect(page.get_by_role("option", name=re.compile("^acme"))).to_be_visible()
    expect(page.get_by_role("option", selected=True)).to_have_count(1)
    assert faults_of(page, scheme) == []
    page.keyboard.press("Escape")
    expect(box).to_be_hidden()

    box = palette(page)
    box.fill("pric")
    first = page.get_by_role("option", name=re.compile("^Prices Tenants"))
    expect(first).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowDown")
    second = page.get_by_role("option", name="Prices of resources")
    expect(second).to_have_attribute("aria-selected", "true")
    expect(box).to_have_attribute("aria-activedescendant", re.compile("palette-1"))
    page.keyboard.press("Enter")
    page.wait_for_url("**/prices/resources/")

    box = palette(page)
    box.type("p-b")
    page.keyboard.press("Enter")  # before the answer: opens its first hit
    page.wait_for_url("**/fleet/pools/p-b/")
    assert ana.complaints == []


def test_a_member_finds_its_own_and_a_secret_stays_in_the_window(visit, world):  # noqa: F811
    tina = visit("tina")
    asked: list[str] = []
    tina.page.on("request", lambda request: asked.append(request.url))
    tina.go("/t/acme/")
    tina.page.get_by_role("link", name="Search").click()
    box = tina.page.get_by_role("combobox", name=re.compile("^Page, tenant"))
    box.fill("p-a")
    expect(tina.page.get_by_text("Nothing that you may open matches")).to_be_visible()
    issued = world.keys["acme"]
    box.fill(issued.secret)
    expect(tina.page.get_by_role("option", name=re.compile(f"^{issued.prefix}…"))).to_be_visible()
    assert [url for url in asked if issued.secret[12:] in url] == []
    tina.page.keyboard.press("Enter")
    tina.page.wait_for_url(re.compile("/t/acme/keys/"))
    assert tina.complaints == []


def test_without_scripts_the_link_is_a_page(visit, world):  # noqa: F811
    ana = visit("ana", java_script_enabled=False)
    ana.go("/")
    ana.page.get_by_role("link", name="Search").click()
    ana.page.get_by_role("searchbox", name="What to open").fill("acme")
    ana.page.get_by_role("button", name="Search").click()
    ana.page.get_by_role("region", name="Tenants").get_by_role("link").click()
    ana.page.wait_for_url("**/tenants/acme/")

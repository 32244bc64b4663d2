"""A tenant admin helps itself: why was I refused, may I have more, what did I use, a new key."""

import re
from datetime import timedelta

from django.utils import timezone
from playwright.sync_api import expect

from tenants.ledger.selectors import ledger_totals
from tenants.models import Limit
from tests.e2e.test_pages import browser, visit, world  # noqa: F401 - fixtures
from tests.factories import USD

pytest_plugins = ("tests.live_fixtures",)

ASKED, GRANTED = 250, 180  # USD a day


def test_from_a_refusal_to_more(visit, world):  # noqa: F811
    tina, ana = visit("tina"), visit("ana")
    refused_id = world.refusals["acme"][1]

    tina.go("/t/acme/")
    tina.page.get_by_role("navigation", name="Tenant").get_by_role("link", name="Refusals").click()
    tina.page.get_by_label("Request id", exact=True).fill(refused_id)
    tina.page.get_by_role("button", name="Look up").click()
    expect(tina.page).to_have_url(f"{tina.url}/t/acme/requests/{refused_id}/")
    found = tina.page.get_by_role("region", name="Refused")
    expect(found).to_contain_text("429 budget_exceeded")
    expect(found).to_contain_text("spend_per_day of tenant")
    expect(found).to_contain_text("Waiting does not help")
    found.get_by_role("link", name="Ask for more").click()

    expect(tina.page.get_by_label("Limit")).to_contain_text("Daily spend: now 100.00 USD")
    tina.page.get_by_label("Raise it to").fill(str(ASKED))
    tina.page.get_by_label("Why").fill("The launch on Monday")
    tina.page.get_by_role("button", name="Ask for more").click()
    row = tina.page.get_by_role("row").filter(has_text="Daily spend")
    expect(row).to_contain_text("Waits for an operator.")

    ana.go("/quota-requests/")
    listed = ana.page.get_by_role("row").filter(has_text="Daily spend")
    expect(listed).to_contain_text("The launch on Monday")
    expect(listed).to_contain_text("promised 250.00 USD to 1 tenant (now 100.00 USD)")
    expect(ana.page.locator("footer", has_text="Fleet now")).to_contain_text("replicas ready")
    listed.get_by_role("link").click()
    ana.page.get_by_label("Grant").fill(str(GRANTED))
    ana.page.get_by_role("button", name="Grant acme").click()
    expect(ana.page.get_by_role("status").first).to_contain_text("ana granted 180.00 USD")

    expect(row).to_contain_text("in force")  # the page asks by itself
    expect(row).to_contain_text("ana granted 180.00 USD, without an end")
    limit = Limit.objects.get(tenant_id=world.tenants["acme"], scope="tenant", dimension="usd")
    assert limit.amount == GRANTED * USD
    assert tina.complaints == ana.complaints == []


def test_what_was_used_is_what_the_ledger_says(visit, world):  # noqa: F811
    tina = visit("tina")
    tina.go("/t/acme/spend/?of=requests")
    chart = tina.page.get_by_role("img", name=re.compile("Requests in requests, last 60 minutes"))
    expect(chart).to_be_visible()
    seen, now = frozenset({world.tenants["acme"]}), timezone.now()
    totals = ledger_totals(tenant_ids=seen, since=now - timedelta(hours=1), until=now)
    total = tina.page.get_by_role("row").filter(has_text="Total")
    expect(total).to_contain_text(f"{totals.requests:,}")
    expect(total).to_contain_text(f"{totals.input_tokens:,}")
    tina.page.get_by_text("As a table").click()
    expect(tina.page.get_by_role("columnheader", name="Minute Europe/Berlin")).to_be_visible()
    assert tina.complaints == []


def test_a_new_key_shows_its_secret_once(visit, world):  # noqa: F811
    tina = visit("tina")
    tina.go("/t/acme/keys/")
    tina.page.get_by_role("link", name="Issue a key").first.click()
    tina.page.get_by_label("Name").fill("nightly jobs")
    tina.page.get_by_role("button", name=re.compile("Issue")).click()
    secret = tina.page.locator(".secret code").first.inner_text()
    assert secret.startswith("hr_")
    tina.go("/t/acme/keys/")
    row = tina.page.get_by_role("row").filter(has_text="nightly jobs")
    expect(row).to_be_visible()
    assert secret not in tina.page.content()
    row.get_by_role("link", name=re.compile("Rotate")).click()
    tina.page.get_by_role("button", name=re.compile("Rotate")).click()
    rotated = tina.page.locator(".secret code").first.inner_text()
    assert rotated.startswith("hr_")
    assert rotated != secret

"""An operator's day by hand: the four questions, a fleet brought in by CSV, a guess in the lab."""

import re

from playwright.sync_api import expect

from tests.e2e.test_pages import browser, visit, world  # noqa: F401 - fixtures

pytest_plugins = ("tests.live_fixtures",)
QUESTIONS = (
    "Why is P99 up?", "What did the agents do?", "What caused the bill?", "What is the carbon?",
)  # fmt: skip


def test_questions_inventory_and_lab(visit, world):  # noqa: F811
    ada = visit("ada")
    for question in QUESTIONS:
        ada.go("/")
        ada.page.get_by_role("link", name=re.compile(re.escape(question))).first.click()
        expect(ada.page.get_by_role("heading", name=question)).to_be_visible()
        answer = ada.page.get_by_role("region", name="Answer")
        expect(answer.locator("strong")).not_to_be_empty()

    ada.go("/inventory/?kind=region")
    ada.page.get_by_role("link", name="Import CSV").first.click()
    ada.page.get_by_label("CSV text").fill("slug,name\nsa-east,Sao Paulo\n")
    ada.page.get_by_role("button", name="Look first").click()
    expect(ada.page.get_by_text("sa-east").first).to_be_visible()
    ada.page.get_by_role("button", name="Apply 1 row").click()
    expect(ada.page.get_by_role("rowheader", name="sa-east")).to_be_visible()
    ada.page.get_by_role("link", name="Change log").click()
    expect(ada.page.get_by_role("row").filter(has_text="region sa-east").first).to_be_visible()

    ada.go("/capacity/lab/?question=eight-gpus")
    expect(ada.page.get_by_text("18 %")).to_have_count(0)  # no answer before a guess
    ada.page.get_by_label("Your guess, %").fill("60")
    ada.page.get_by_role("button", name="Reveal").click()
    shown = ada.page.get_by_role("region", name="Answer")
    expect(shown).to_contain_text(re.compile(r"Answer\s*18"))
    expect(shown).to_contain_text("times too high")
    assert ada.complaints == []

"""Writing a policy in the browser: told while typing, kept as a draft, published, rolled back."""

from playwright.sync_api import expect

from routing.models import PolicyDraft
from routing.policies.selectors import live
from tests.e2e.test_pages import browser, visit, world  # noqa: F401 - fixtures

pytest_plugins = ("tests.live_fixtures",)


def live_number() -> int:
    found = live("main")
    assert found is not None
    return found.number


def test_a_draft_is_told_of_its_faults_while_typing_then_published_and_rolled_back(visit, world):  # noqa: F811
    PolicyDraft.objects.all().delete()
    ana = visit("ana")
    ana.go("/policies/main/edit/")
    text = ana.page.get_by_label("Document (JSON)")
    good = text.input_value().replace('"stale_after_s": 3', '"stale_after_s": 9')
    checks = ana.page.get_by_role("region", name="Checks")
    expect(checks).to_contain_text("no finding")

    text.fill(good.replace('"stale_after_s": 9', '"stale_after_s": 9, "weights": {}'))
    findings = ana.page.get_by_role("region", name="1 finding")
    expect(findings).to_contain_text("routing.weights")
    expect(findings).to_contain_text("line ")
    expect(checks).to_contain_text("refused")

    ana.page.get_by_role("button", name="Save draft").click()
    expect(ana.page.get_by_role("status").first).to_contain_text("Draft 1 is saved")
    assert live_number() == 2

    text.fill(good)
    expect(checks).to_contain_text("no finding")
    change = ana.page.get_by_role("region", name="What would change")
    expect(change).to_contain_text("A replica silent for 9 s gets no work (was 3).")
    ana.page.get_by_label("Note (optional)").fill("slower scrapes")
    ana.page.get_by_role("button", name="Publish main@3").click()
    expect(ana.page.get_by_role("status").first).to_contain_text("main@3 is live.")
    assert live_number() == 3

    ana.page.get_by_role("link", name="Roll back to main@2").click()
    ana.page.get_by_label("Type main to confirm").fill("main")
    ana.page.get_by_role("button", name="Roll back main to 2").click()
    expect(ana.page.get_by_role("status").first).to_contain_text("main@4 is live.")
    ana.page.get_by_role("link", name="main@4").click()
    expect(ana.page.get_by_role("region", name="Gateways")).to_be_visible()
    found = live("main")
    assert found is not None
    assert found.note == "Rollback to 2"
    assert ana.complaints == []

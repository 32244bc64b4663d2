"""What caused the bill: what is volume and what is price add up to the change, and who moved."""

from hypothesis import given, settings
from hypothesis import strategies as st

from console.pages.bill_answer import bill_answer, effects
from tenants.ledger.bill import DIMENSIONS, Bill, Mover, Side

USD = 10**9
MTOK = 10**6
SIDES = st.builds(Side, st.integers(0, 10**15), st.integers(0, 10**6), st.integers(0, 10**12))
NOBODY: dict[str, tuple[Mover, ...]] = dict.fromkeys(DIMENSIONS, ())


@settings(deadline=None)
@given(SIDES, SIDES)
def test_volume_and_price_add_up_to_the_change(now: Side, before: Side) -> None:
    found = effects(Bill(now, before, NOBODY))
    if found is None:
        assert not now.tokens or not before.tokens
    else:
        assert sum(found) == now.spend_nanousd - before.spend_nanousd


def test_twice_the_tokens_at_the_same_price_is_volume_alone() -> None:
    bill = Bill(Side(8 * USD, 20, 4 * MTOK), Side(4 * USD, 10, 2 * MTOK), NOBODY)
    assert effects(bill) == (4 * USD, 0)
    found = bill_answer(bill, {}, "24 h")
    assert found.headline == "The bill is up: 8.00 USD against 4.00 USD in the 24 h before."
    assert found.reasons[0].startswith("4.00 USD of the change is volume: 4")
    assert "/prices/" not in {step.url for step in found.steps}


def test_a_dearer_token_is_price_and_leads_to_the_book() -> None:
    bill = Bill(Side(9 * USD, 10, 2 * MTOK), Side(4 * USD, 10, 2 * MTOK), NOBODY)
    assert effects(bill) == (0, 5 * USD)
    found = bill_answer(bill, {}, "24 h")
    assert "5.00 USD is what a token costs" in found.reasons[1]
    assert "4.50 USD a million tokens against 2.00" in found.reasons[1]
    assert "/prices/" in {step.url for step in found.steps}


def test_who_moved_most_is_named_with_its_tokens_and_its_budget_is_one_click_away() -> None:
    moved = Mover("tenant", "7", "7", Side(6 * USD, 9, 3 * MTOK), Side(USD, 3, MTOK))
    other = Mover("tenant", "8", "8", Side(USD, 1, MTOK), Side(USD, 1, MTOK))
    bill = Bill(
        Side(7 * USD, 10, 4 * MTOK),
        Side(2 * USD, 4, 2 * MTOK),
        NOBODY | {"tenant": (moved, other)},
    )
    found = bill_answer(bill, {("tenant", "7"): "acme"}, "24 h")
    assert "Tenant acme moved most: 5.00 USD, on 3.0x the tokens." in found.reasons
    assert "/tenants/acme/" in {step.url for step in found.steps}


def test_a_bill_that_hardly_moved_and_none_at_all_say_so() -> None:
    same = Bill(Side(102 * USD, 1, MTOK), Side(100 * USD, 1, MTOK), NOBODY)
    assert bill_answer(same, {}, "7 d").word == "as before"
    nothing = Side(0, 0, 0)
    assert bill_answer(Bill(nothing, nothing, NOBODY), {}, "1 h").headline == (
        "No spend in either period."
    )

"""Money as decimal text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.rest.money import nanousd_of, usd_text


@given(st.integers(0, 9_000_000_000_000_000))
def test_text_and_nano_dollars_are_each_others_inverse(amount):
    assert nanousd_of(usd_text(amount)) == amount


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0.00"), (1, "0.000000001"), (12_500_000_000, "12.50"), (-4_200_000, "-0.0042")],
)
def test_text_is_exact_with_at_least_two_decimals(amount, text):
    assert usd_text(amount) == text


@pytest.mark.parametrize("text", ["", "-1", "1e3", "1.", ".5", "1.0000000001", "1,5", "NaN", "٣"])
def test_other_text_is_no_amount(text):
    with pytest.raises(ValueError, match="not an amount"):
        nanousd_of(text)

"""R08's exact numbers, and the one rounding rule."""

import pytest

from routing.contracts.pricing import price_at, spend_nanousd
from routing.contracts.snapshot import Price
from tests.stack import ALPHA


@pytest.mark.parametrize(
    ("tokens", "nanousd"),
    [
        ((20_000, 16_000, 1_000), 7_600_000),  # $0.007600: cached tokens are priced once
        ((0, 0, 1_000), 2_000_000),  # $0.002000
        ((100, 150, 0), 10_000),  # $0.000010: cached is cut to the prompt
        ((20_000, 0, 1_000), 22_000_000),  # no cached field: all at the full price
        ((10, 0, 1_000), 2_010_000),
        ((0, 0, 0), 0),
    ],
)
def test_alpha_costs_what_its_price_says(tokens: tuple[int, int, int], nanousd: int) -> None:
    assert spend_nanousd(ALPHA, *tokens) == nanousd


def test_a_row_is_rounded_up_once_for_all_its_tokens() -> None:
    third = Price(1, 333_333, 333_333, 333_333)
    assert spend_nanousd(third, 1, 0, 0) == 1
    assert spend_nanousd(third, 1, 0, 1) == 1  # 0.67: not 1 + 1
    assert spend_nanousd(third, 3, 0, 3) == 2


def test_negative_counts_never_give_money_back() -> None:
    assert spend_nanousd(ALPHA, -5, -5, -5) == 0
    assert spend_nanousd(ALPHA, 10, -5, 0) == 10_000


def test_price_is_the_newest_row_already_valid() -> None:
    rows = (Price(1, 1, 1, 1, 0), Price(2, 2, 2, 2, 1_000), Price(3, 3, 3, 3, 9_000))
    assert [price_at(rows, at).version for at in (0, 999, 1_000, 8_999, 9_000)] == [1, 1, 2, 2, 3]
    assert price_at(rows[1:], 0).version == 2

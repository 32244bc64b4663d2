"""R08's exact numbers, and the one rounding rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.contracts.pricing import hold_nanousd, price_at, spend_nanousd
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


PARTS = Price(
    1, 1_000_000_000, 100_000_000, 2_000_000_000, 0, 1_250_000_000, 5_000_000_000, 3_000_000
)


def test_parts_of_input_and_output_cost_their_own_rate_once() -> None:
    spend = spend_nanousd(PARTS, 1_000, 400, 500, cache_write_tokens=300, reasoning_tokens=200)
    assert spend == 300 * 1_000 + 400 * 100 + 300 * 1_250 + 300 * 2_000 + 200 * 5_000


def test_part_without_a_rate_costs_as_its_whole() -> None:
    plain = Price(1, 1_000_000_000, 100_000_000, 2_000_000_000)
    with_parts = spend_nanousd(plain, 1_000, 0, 500, cache_write_tokens=300, reasoning_tokens=200)
    assert with_parts == spend_nanousd(plain, 1_000, 0, 500)


def test_pictures_cost_each_and_the_row_rounds_up_once() -> None:
    assert spend_nanousd(PARTS, 0, 0, 0, images=2) == 6_000_000
    odd = Price(1, 1, 0, 1, 0, 3, None, 7)
    assert spend_nanousd(odd, 1, 0, 1, cache_write_tokens=1, images=1) == 8  # 7 and 4 millionths


@given(
    st.integers(0, 10_000), st.integers(-5, 20_000), st.integers(0, 10_000),
    st.integers(-5, 20_000), st.integers(-5, 20_000), st.integers(0, 20),
    st.tuples(*[st.integers(0, 10**12)] * 3),
    st.tuples(*[st.one_of(st.none(), st.integers(0, 10**12))] * 2),
    st.integers(0, 10**9),
)  # fmt: skip
def test_hold_bounds_every_split_into_parts(  # type: ignore[no-untyped-def]
    inputs, cached, outputs, written, thought, images, rates, own, image_rate
) -> None:
    price = Price(1, *rates, 0, *own, image_rate)
    spend = spend_nanousd(
        price, inputs, cached, outputs,
        cache_write_tokens=written, reasoning_tokens=thought, images=images,
    )  # fmt: skip
    assert 0 <= spend <= hold_nanousd(price, inputs, outputs, images)

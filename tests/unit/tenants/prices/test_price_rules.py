"""Which prices look like a slip."""

import pytest

from tenants.prices.rules import MAX_NANOUSD, Rates, doubtful_field, impossible_field

USD = 10**9


def rates(output: int) -> Rates:
    return Rates(USD, USD // 10, output)


def test_negative_and_enormous_rates_are_impossible():
    assert impossible_field(rates(-1)) == "output_nanousd"
    assert impossible_field(rates(MAX_NANOUSD + 1)) == "output_nanousd"
    assert impossible_field(rates(0)) is None
    assert impossible_field(rates(MAX_NANOUSD)) is None


@pytest.mark.parametrize(
    ("output", "before", "is_doubtful"),
    [
        (2 * USD, None, False),
        (2 * 10**6 * USD, None, True),  # a million times too high, on the first row already
        (1001, 1, True),
        (1000, 1, False),
        (2 * USD, 0, False),  # from free to priced is a decision, not a factor
        (1, 2 * 10**6 * USD, False),  # the repair is never doubted
    ],
)
def test_doubt_is_about_size_and_growth(output, before, is_doubtful):
    previous = None if before is None else rates(before)
    assert (doubtful_field(rates(output), previous) == "output_nanousd") is is_doubtful


def test_parts_are_doubted_against_what_they_cost_before():
    whole = Rates(USD, USD // 10, 2 * USD)
    assert doubtful_field(Rates(USD, USD // 10, 2 * USD, reasoning_nanousd=5 * USD), whole) is None
    cheap = Rates(1_000, 100, 2_000)
    slip = Rates(1_000, 100, 2_000, cache_write_nanousd=1_000_001)
    assert doubtful_field(slip, cheap) == "cache_write_nanousd"
    assert impossible_field(Rates(1, 1, 1, image_nanousd=-1)) == "image_nanousd"
    assert impossible_field(Rates(1, 1, 1, cache_write_nanousd=-1)) == "cache_write_nanousd"

"""The one formatter: units, exact money, unknown."""

from datetime import UTC, datetime

import pytest

from console.web import units


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "—"),
        (0, "0 ms"),
        (0.00085, "850 us"),
        (0.412, "412 ms"),
        (2.4, "2.4 s"),
        (30, "30 s"),
        (59.97, "1 min"),
        (312, "5 min 12 s"),
        (3600, "1 h"),
        (11400, "3 h 10 min"),
        (187200, "2 d 4 h"),
        (-2.5, "-2.5 s"),
    ],
)
def test_seconds_read_like_a_person_says_them(value, text):
    assert units.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "—"), (-3, "0 s"), (14.9, "14 s"), (299, "4 min"), (3600, "1 h"), (200000, "2 d")],
)
def test_ages_are_rounded_down_to_one_unit(value, text):
    assert units.age(value) == text


@pytest.mark.parametrize(
    ("nanousd", "text"),
    [
        (0, "0.00"),
        (62_100_000_000, "62.10"),
        (1, "0.000000001"),
        (-412_345, "-0.000412345"),
        (1_234_567_890_123_456_789, "1,234,567,890.123456789"),
    ],
)
def test_money_is_shown_exactly(nanousd, text):
    assert units.usd(nanousd) == text
    assert units.parse_usd(text.replace(",", "")) == nanousd


def test_money_of_a_column_has_nine_decimals():
    for nanousd in (0, 1, 62_100_000_000, 10**9 + 10):
        text, padding = units.usd_parts(nanousd)
        assert len(text.partition(".")[2] + padding) == 9


@pytest.mark.parametrize(
    ("nanousd", "text"),
    [
        (0, "0.00"),
        (41_200_000_000, "41.20"),
        (995_000_000, "0.995"),
        (412_345, "0.000412"),
        (7, "0.000000007"),
    ],
)
def test_headline_money_is_rounded_without_floats(nanousd, text):
    assert units.usd_short(nanousd) == text


@pytest.mark.parametrize(
    "text",
    ["", "1e3", "NaN", "1.0000000001", "1_0", "\u0661", "1.2.3", "9" * 30, "9" * 24, "9223372037"],
)
def test_only_plain_decimals_are_money(text):
    with pytest.raises(ValueError, match="not an amount"):
        units.parse_usd(text)


def test_unknown_is_never_zero():
    for formatter in (
        units.count,
        units.tokens,
        units.decimal,
        units.percent,
        units.bytes_,
        units.seconds,
        units.age,
        units.usd,
        units.usd_short,
        units.moment,
    ):
        assert formatter(None) == "—"


def test_numbers_carry_their_unit():
    assert units.tokens(41200) == "41,200 tok"
    assert units.bytes_(512) == "512 B"
    assert units.bytes_(1536 * 1024) == "1.5 MiB"
    assert units.percent(0.914) == "91 %"


def test_a_moment_names_its_zone():
    noon = datetime(2025, 7, 1, 12, tzinfo=UTC)
    assert units.moment(noon, "Europe/Berlin") == "2025-07-01 14:00:00 Europe/Berlin"

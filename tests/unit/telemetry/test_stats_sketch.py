"""The sketch: reference bins, quantiles, packing."""

import pytest

from telemetry.stats import sketch


@pytest.mark.parametrize(("seconds", "index"), [(0.001, -345), (0.1, -115), (1.0, 0), (2.5, 46)])
def test_reference_values_fall_into_reference_bins(seconds: float, index: int) -> None:
    assert sketch.index_of(seconds) == index


def test_value_of_a_bin_follows_the_stated_formula() -> None:
    assert sketch.value_of(0) == pytest.approx(2 / (sketch.GAMMA + 1))
    assert pytest.approx(1.020202, abs=1e-6) == sketch.GAMMA


def test_one_millisecond_to_ten_minutes_spans_666_bins() -> None:
    assert sketch.index_of(600) - sketch.index_of(0.001) + 1 in (665, 666)


def test_values_without_a_logarithm_count_at_the_edges() -> None:
    lowest = sketch.index_of(sketch.MIN_S)
    assert sketch.index_of(0) == sketch.index_of(-1) == sketch.index_of(float("nan")) == lowest
    assert sketch.index_of(float("inf")) == sketch.index_of(sketch.MAX_S)


def test_no_samples_have_no_quantile() -> None:
    assert sketch.quantile({}, 0.5) is None
    assert sketch.quantiles({}, (0.5, 0.95)) == [None, None]


def test_merged_quantile_is_not_the_mean_of_quantiles() -> None:
    fast = {sketch.index_of(0.1): 99}
    slow = {sketch.index_of(10.0): 1}
    merged = sketch.merge(fast, slow)
    assert sketch.quantile(merged, 0.95) == pytest.approx(0.1, rel=0.011)
    assert sketch.quantile(merged, 1.0) == pytest.approx(10.0, rel=0.011)


def test_damaged_bytes_are_refused() -> None:
    raw = sketch.pack({-345: 3, 46: 70_000})
    for wrong in (raw[:-1], b"\x09" + raw[1:], raw + b"\x80"):
        with pytest.raises(sketch.SketchError):
            sketch.unpack(wrong)


def test_no_bytes_are_an_empty_sketch() -> None:
    assert sketch.unpack(b"") == sketch.unpack(sketch.pack({})) == {}

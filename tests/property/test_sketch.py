"""Sketch invariants: relative error, exact and order-free merge, packing without loss."""

import math

from hypothesis import given
from hypothesis import strategies as st

from telemetry.stats import sketch

durations = st.floats(min_value=1e-5, max_value=1e5, allow_nan=False)
bins = st.dictionaries(st.integers(-700, 700), st.integers(1, 10**9), max_size=60)


@given(samples=st.lists(durations, min_size=1, max_size=200), q=st.floats(0, 1))
def test_quantile_is_within_one_percent_of_the_sample_of_that_rank(
    samples: list[float], q: float
) -> None:
    found: dict[int, int] = {}
    sketch.add(found, ((sketch.index_of(sample), 1) for sample in samples))
    exact = sorted(samples)[math.floor(q * (len(samples) - 1))]
    got = sketch.quantile(found, q)
    assert got is not None
    assert abs(got - exact) <= (sketch.ALPHA + 1e-9) * exact


@given(a=bins, b=bins, c=bins)
def test_merge_is_exact_and_order_free(
    a: dict[int, int], b: dict[int, int], c: dict[int, int]
) -> None:
    left = sketch.merge(sketch.merge(a, b), c)
    right = sketch.merge(c, sketch.merge(b, a))
    assert left == right
    assert sketch.count_of(left) == sum(map(sketch.count_of, (a, b, c)))


@given(a=bins, b=bins)
def test_what_was_added_can_be_taken_away(a: dict[int, int], b: dict[int, int]) -> None:
    merged = sketch.merge(a, b)
    sketch.subtract(merged, b.items())
    assert merged == a


@given(a=bins)
def test_packing_loses_nothing(a: dict[int, int]) -> None:
    assert sketch.unpack(sketch.pack(a)) == a

"""Floors, bands and the choice between methods, on series whose answers are known."""

import random

import pytest

from capacity.forecasts.rules.backtest import HORIZONS, choose, origins, scored, short_by_h
from capacity.forecasts.rules.bands import FLOORS, Band, flat, quantile, sane, seasonal

DAY = [100.0 + 60 * (hour in range(8, 18)) for hour in range(24)]


def test_quantiles_lie_linearly_between_their_neighbours():
    assert [quantile([0, 10, 20, 30], share) for share in (0, 0.5, 1)] == [0, 15, 30]
    assert quantile([0, 10, 20, 30], 0.05) == pytest.approx(1.5)
    assert quantile([7], 0.95) == 7


def test_the_flat_floor_says_the_last_hour_and_is_as_wide_as_it_was_wrong():
    steady = flat([50.0] * 30, 3)
    assert [(b.p5, b.p50, b.p95) for b in steady] == [(50, 50, 50)] * 3
    rising = flat([10.0 * hour for hour in range(30)], 2)
    assert [b.p50 for b in rising] == [290, 290]
    assert [b.p95 for b in rising] == [300, 310]  # it was wrong by 10 an hour, always upwards
    assert flat([1.0, 2.0], 1) is None


def test_the_seasonal_floor_repeats_the_day_before():
    bands = seasonal(DAY * 4, 24)
    assert [b.p50 for b in bands] == DAY
    assert all(b.p5 == b.p50 == b.p95 for b in bands)
    assert [b.p50 for b in seasonal(DAY * 4 + DAY[:6], 24)] == DAY[6:] + DAY[:6]
    assert seasonal(DAY + DAY[:10], 24) is None


def test_a_band_is_never_negative_out_of_order_or_not_a_number():
    assert sane([Band(-5, -1, 3)]) == [Band(0, 0, 3)]
    assert sane([Band(9, 4, 2)]) == [Band(4, 4, 4)]
    assert sane([Band(1, float("nan"), 2)]) is None
    assert sane([Band(1, 2, float("inf"))]) is None


def test_too_little_history_is_said_in_hours():
    assert [short_by_h(hours, 1) for hours in (0, 23, 24)] == [24, 1, 0]
    assert [short_by_h(hours, 24) for hours in (0, 95, 96)] == [96, 1, 0]
    for horizon_h, horizon in HORIZONS.items():
        assert choose([5.0] * (horizon.needs_h - 1), horizon_h, FLOORS) is None
        assert choose([5.0] * horizon.needs_h, horizon_h, FLOORS) is not None


def test_every_past_moment_has_its_training_behind_and_its_hours_ahead():
    for horizon_h, horizon in HORIZONS.items():
        for hours in range(horizon.needs_h, horizon.needs_h + 300):
            starts = origins(hours, horizon_h)
            assert len(starts) >= horizon.windows
            assert starts[0] >= horizon.train_h
            assert starts[-1] == hours - horizon_h


def test_the_floor_that_fits_the_series_is_chosen():
    daily = choose(DAY * 6, 24, FLOORS)
    assert daily.method == "seasonal"
    assert daily.score.error_ratio == 0
    assert daily.score.coverage_ratio == 1
    draw, walk = random.Random(3), [1000.0]
    while len(walk) < 200:
        walk.append(max(0.0, walk[-1] + draw.gauss(0, 30)))
    assert choose(walk, 1, FLOORS).method == "flat"


def test_equal_losses_go_to_the_simpler_method():
    both = {"first": flat, "second": flat}
    assert choose([5.0] * 100, 1, both).method == "first"


def test_a_better_method_beats_the_floors_and_a_failing_one_is_left_out():
    wanted = DAY * 6

    def oracle(values, horizon):
        at = len(values)
        return [Band(v, v, v) for v in (wanted + DAY)[at : at + horizon]]

    found = choose(wanted[:-7], 24, {"flat": flat, "broken": lambda *_: None, "oracle": oracle})
    assert [score.method for score in found.scores] == ["oracle", "flat"]


def test_no_further_method_is_begun_without_time():
    found = choose(DAY * 6, 24, FLOORS, lambda: False)
    assert [score.method for score in found.scores] == ["flat"]


def test_error_coverage_and_loss_of_known_pairs():
    score = scored("x", 1, [(Band(5, 10, 15), 10), (Band(5, 10, 15), 20)])
    assert score.error_ratio == pytest.approx(10 / 30)
    assert score.coverage_ratio == 0.5
    first = 0.05 * 5 + 0.05 * 5  # inside: each edge costs 5 % of its distance
    second = 0.05 * 15 + 0.5 * 10 + 0.95 * 5
    assert score.loss_ratio == pytest.approx((first + second) / 30)


def test_nothing_that_came_has_no_relative_error():
    score = scored("x", 1, [(Band(0, 0, 0), 0)])
    assert (score.error_ratio, score.loss_ratio, score.coverage_ratio) == (None, None, 1)

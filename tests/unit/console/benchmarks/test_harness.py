import os

import pytest

from console.benchmarks.harness import compare, cpu_s, figure_of


def test_ratio_is_the_median_of_the_rounds_and_the_spread_is_said():
    figure = figure_of("x", "us", [(10.0, 20.0), (10.0, 30.0), (20.0, 20.0)])
    assert (figure.ratio, figure.ratio_min, figure.ratio_max) == (2.0, 1.0, 3.0)
    assert "2.00x" in figure.line()
    assert "3 rounds" in figure.line()


def test_baseline_and_candidate_are_interleaved():
    order = []
    compare("x", "us", lambda: order.append("b") or 1.0, lambda: order.append("c") or 1.0, rounds=3)
    assert "".join(order) == "bcbcbc"


def test_cpu_of_a_busy_process_grows():
    before = cpu_s(os.getpid())
    count = 0
    while cpu_s(os.getpid()) - before < 0.03:
        count += 1
    assert count > 0


def test_a_zero_baseline_is_an_error_not_a_figure():
    with pytest.raises(ZeroDivisionError):
        figure_of("x", "us", [(0.0, 1.0)])

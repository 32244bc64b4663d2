"""Sparklines: a gap is a gap, and nothing leaves the picture."""

import re

from console.web.charts import HEIGHT, MAX_POINTS, WIDTH, sparkline


def points(svg: str) -> list[list[tuple[float, float]]]:
    return [
        [tuple(map(float, pair.split(","))) for pair in line.split()]
        for line in re.findall(r'points="([^"]*)"', svg)
    ]


def test_unknown_values_break_the_line():
    lines = points(sparkline([1.0, 2.0, None, 3.0, 4.0], "x"))
    assert [len(line) for line in lines] == [2, 2]
    assert lines[0][-1][0] < lines[1][0][0]


def test_a_lone_value_is_still_drawn():
    assert [len(line) for line in points(sparkline([None, 5.0, None], "x"))] == [2]


def test_everything_stays_inside_and_old_values_fall_off():
    lines = points(sparkline([float(n) for n in range(500)], "x"))
    assert sum(len(line) for line in lines) == MAX_POINTS
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for line in lines for x, y in line)


def test_nothing_known_draws_nothing():
    assert points(sparkline([None, None], "x")) == []


def test_the_sentence_is_text():
    assert "&lt;b&gt;" in sparkline([1.0], "<b>")

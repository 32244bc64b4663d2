"""Sparklines: inline SVG made on the server; the figure beside them is always text."""

from collections.abc import Sequence
from itertools import groupby

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

WIDTH, HEIGHT = 120, 20
MAX_POINTS = 60  # more cannot be told apart at this width
_PAD = 2


def sparkline(values: Sequence[float | None], sentence: str) -> SafeString:
    """A line over evenly spaced values from 0 to their maximum; None is a gap, never 0.

    `sentence` says in words what the line shows.
    """
    shown = list(values)[-MAX_POINTS:]
    known = [value for value in shown if value is not None]
    top = max(known, default=0.0) or 1.0
    lines = format_html_join(
        "", '<polyline points="{}"/>', ((points,) for points in _segments(shown, top))
    )
    return format_html(
        '<svg class="spark" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" '
        'aria-label="{}">{}</svg>',
        WIDTH,
        HEIGHT,
        sentence,
        lines,
    )


def _segments(values: Sequence[float | None], top: float) -> list[str]:
    step = WIDTH / max(1, len(values) - 1)
    placed = [
        None if value is None else f"{at * step:.1f},{_height(value, top):.1f}"
        for at, value in enumerate(values)
    ]
    runs = (list(run) for is_known, run in groupby(placed, key=bool) if is_known)
    # a single point is drawn as a short line, or it would not be seen
    return [" ".join(filter(None, run if len(run) > 1 else run * 2)) for run in runs]


def _height(value: float, top: float) -> float:
    return HEIGHT - _PAD - min(max(value / top, 0.0), 1.0) * (HEIGHT - 2 * _PAD)

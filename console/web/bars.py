"""Stacked bars over time: inline SVG made on the server, with its figures as a table beside it."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

WIDTH, HEIGHT = 720, 160  # of the drawing's own units; the page stretches it to its own width
MAX_SERIES = 8  # as many colours as the style has
MAX_SLOTS = 120  # more bars cannot be told apart
_GAP_RATIO = 0.2  # of a slot's width


@dataclass(frozen=True, slots=True)
class Series:
    """One part of each bar: its name, and a value for each slot (None: unknown, not drawn)."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Bars:
    """A drawn chart: `svg`, the value at its `top`, the class that colours each series in turn."""

    svg: SafeString
    top: float
    classes: tuple[str, ...]


def stacked_bars(slots: Sequence[str], series: Sequence[Series], sentence: str) -> Bars:
    """Draw `series` on top of each other for each slot, from 0 to the highest bar.

    `slots` name the bars (shown on hover), `sentence` says in words what is shown. Raises
    `ValueError` for more series or slots than can be told apart, or series of another length.
    """
    if len(series) > MAX_SERIES or len(slots) > MAX_SLOTS:
        raise ValueError("too many series or slots to draw")
    if any(len(one.values) != len(slots) for one in series):
        raise ValueError("a series has another number of values than there are slots")
    top = max((_sum_at(series, at) for at in range(len(slots))), default=0.0) or 1.0
    rects = [
        rect for at, slot in enumerate(slots) for rect in _bar(slot, at, len(slots), series, top)
    ]
    svg = format_html(
        '<svg class="bars" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" '
        'aria-label="{}">{}</svg>',
        WIDTH,
        HEIGHT,
        sentence,
        format_html_join(
            "",
            '<rect class="{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>',
            rects,
        ),
    )
    return Bars(svg, top, tuple(_class(at) for at in range(len(series))))


def _class(at: int) -> str:
    return f"s{at + 1}"


def _sum_at(series: Sequence[Series], at: int) -> float:
    return sum(one.values[at] or 0.0 for one in series)


def _bar(
    slot: str, at: int, count: int, series: Sequence[Series], top: float
) -> list[tuple[str, str, str, str, str, str]]:
    step = WIDTH / count
    x, width = at * step + step * _GAP_RATIO / 2, step * (1 - _GAP_RATIO)
    y, parts = float(HEIGHT), []
    for place, one in enumerate(series):
        value = one.values[at]
        if not value:
            continue
        height = HEIGHT * value / top
        y -= height
        words = f"{slot}, {one.name}: {value:,.10g}"
        parts.append(
            (_class(place), f"{x:.2f}", f"{y:.2f}", f"{width:.2f}", f"{height:.2f}", words)
        )
    return parts

"""Charts as shapes: one geometry, drawn as SVG for pages and by others as PDF.

A chart has evenly spaced steps along its x axis, lines over them with gaps where a value is not
known, and at most one band; or bars, one below the other. Everything starts at 0. Labels keep the
unit; a page shows the same values as a table beside it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import floor, log10

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

WIDTH, HEIGHT = 720, 220
NARROW = 380  # of a second drawing for narrow windows: scaled down, text would be too small
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 10, 24
_TICKS = 4
_DOT = 4.0  # half of the line that a single value becomes
_LABEL_ROOM = 100  # along x a label: closer ones would touch
_CHAR = 6.7  # width of a label's character, about
POINTS_MAX = 1500
BARS_MAX = 20
_BAR = 22  # height of a bar with its gap
_BAR_LABEL = 150
_BAR_LABEL_NARROW = 110
_BAR_WORDS = 110


@dataclass(frozen=True, slots=True)
class Line:
    """A named series; None is unknown and drawn as a gap."""

    name: str
    values: tuple[float | None, ...]
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """A named band between two series of the same length."""

    name: str
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """`labels` name the steps; `sentence` says in words what is shown. `unit` is of every value."""

    title: str
    unit: str
    labels: tuple[str, ...]
    lines: tuple[Line, ...]
    sentence: str
    span: Span | None = None
    mark: float | None = None  # a level to compare with, such as a target
    mark_name: str = ""


@dataclass(frozen=True, slots=True)
class Bars:
    """Names with amounts, largest first; `words` is each amount as text."""

    title: str
    unit: str
    rows: tuple[tuple[str, float, str], ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class Path:
    """Points joined by a line, or around an area if `is_filled`. `series` picks the colour."""

    points: tuple[tuple[float, float], ...]
    series: int
    is_dashed: bool = False
    is_filled: bool = False


@dataclass(frozen=True, slots=True)
class Label:
    """Text at a point; `anchor` is start, middle or end."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    is_muted: bool = True


@dataclass(frozen=True, slots=True)
class Drawing:
    """Shapes on a ground of `width` x `height`, y downwards; `rules` are horizontal lines."""

    width: float
    height: float
    rules: tuple[tuple[float, float, float], ...]
    paths: tuple[Path, ...]
    labels: tuple[Label, ...]


def draw(chart: Chart, width: float = WIDTH, height: float = HEIGHT) -> Drawing:
    """Shapes of a line chart. Raises `ValueError` for more than `POINTS_MAX` steps."""
    if len(chart.labels) > POINTS_MAX:
        raise ValueError(f"at most {POINTS_MAX} steps")
    known = [value for value in _all_values(chart) if value is not None]
    step = _nice(max(known, default=0.0) / _TICKS)
    top = step * _TICKS
    inner_w, inner_h = width - _LEFT - _RIGHT, height - _TOP - _BOTTOM

    def x_of(at: int) -> float:
        return _LEFT + inner_w * at / max(1, len(chart.labels) - 1)

    def y_of(value: float) -> float:
        return _TOP + inner_h * (1 - min(max(value / top, 0.0), 1.0))

    levels = [step * tick for tick in range(_TICKS + 1)]
    rules = tuple((_LEFT, width - _RIGHT, y_of(level)) for level in levels)
    labels = [Label(_LEFT - 6, y_of(level) + 4, short(level), "end") for level in levels]
    labels += _x_labels(chart.labels, x_of, height - 6, width)
    paths: list[Path] = []
    if chart.span is not None:
        paths += _areas(chart.span, x_of, y_of)
    if chart.mark is not None:
        y = y_of(chart.mark)
        paths.append(Path(((_LEFT, y), (width - _RIGHT, y)), 5, is_dashed=True))
    for series, line in enumerate(chart.lines):
        paths += [
            Path(
                _seen([(x_of(at), y_of(value)) for at, value in run], width),
                series,
                line.is_dashed and len(run) > 1,
            )
            for run in _runs(line.values)
        ]
    return Drawing(width, height, rules, tuple(paths), tuple(labels))


def draw_bars(bars: Bars, width: float = WIDTH) -> Drawing:
    """Shapes of horizontal bars, at most `BARS_MAX`."""
    rows = bars.rows[:BARS_MAX]
    top = max((amount for _, amount, _ in rows), default=0.0) or 1.0
    start = _BAR_LABEL if width >= WIDTH else _BAR_LABEL_NARROW
    room, chars = width - start - _BAR_WORDS, int((start - 8) / _CHAR)
    paths, labels = [], []
    for at, (name, amount, words) in enumerate(rows):
        y = at * _BAR + 4
        end = start + room * min(max(amount / top, 0.0), 1.0)
        corners = ((start, y), (end, y), (end, y + _BAR - 8), (start, y + _BAR - 8))
        paths.append(Path(corners, 0, is_filled=True))
        cut = name if len(name) <= chars else f"{name[: chars - 1]}…"
        labels.append(Label(start - 8, y + 11, cut, "end", is_muted=False))
        labels.append(Label(end + 6, y + 11, words))
    return Drawing(width, len(rows) * _BAR + 6, (), tuple(paths), tuple(labels))


def svg(chart: Chart | Bars) -> SafeString:
    """The chart as inline SVG with its key; colours come from the page's style sheet.

    It is drawn twice: the style sheet shows the one that fits the window.
    """
    return format_html(
        '<figure class="plot"><figcaption>{}, <span>{}</span></figcaption>{}{}{}</figure>',
        chart.title,
        chart.unit,
        _svg(chart, WIDTH, "broad"),
        _svg(chart, NARROW, "narrow"),
        "" if isinstance(chart, Bars) else _key(chart),
    )


def _svg(chart: Chart | Bars, width: int, name: str) -> SafeString:
    drawing = draw_bars(chart, width) if isinstance(chart, Bars) else draw(chart, width)
    parts = [
        format_html('<line class="rule" x1="{}" x2="{}" y1="{}" y2="{}"/>', x1, x2, y, y)
        for x1, x2, y in drawing.rules
    ]
    parts += [_path(path) for path in drawing.paths]
    parts += [
        format_html(
            '<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>',
            "muted-text" if label.is_muted else "plain-text",
            round(label.x, 1),
            round(label.y, 1),
            label.anchor,
            label.text,
        )
        for label in drawing.labels
    ]
    return format_html(
        '<svg class="{}" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>',
        name,
        drawing.width,
        drawing.height,
        chart.sentence,
        _joined(parts),
    )


def key_of(chart: Chart) -> list[tuple[str, int, str]]:
    """What each colour stands for: name, series, and `line`, `dash` or `area`."""
    found = [
        (line.name, series, "dash" if line.is_dashed else "line")
        for series, line in enumerate(chart.lines)
    ]
    if chart.span is not None:
        found.append((chart.span.name, 1, "area"))
    if chart.mark is not None:
        found.append((chart.mark_name, 5, "dash"))
    return found


def short(value: float) -> str:
    """A tick's text: `950`, `12.5k`, `3M`."""
    for size, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{name}"
    return f"{value:.3g}"


def _key(chart: Chart) -> SafeString:
    items = [
        format_html(
            '<li><svg viewBox="0 0 20 8" aria-hidden="true">{}</svg> {}</li>',
            _path(
                Path(((0, 1), (20, 1), (20, 7), (0, 7)), series, is_filled=True)
                if kind == "area"
                else Path(((0, 4), (20, 4)), series, kind == "dash")
            ),
            name,
        )
        for name, series, kind in key_of(chart)
    ]
    return format_html('<ul class="key">{}</ul>', _joined(items))


def _path(path: Path) -> SafeString:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in path.points)
    name = f"s{path.series % 8 + 1}{' dashed' if path.is_dashed else ''}"
    if path.is_filled:
        return format_html('<polygon class="{}" points="{}"/>', name, points)
    return format_html('<polyline class="{}" points="{}"/>', name, points)


def _joined(parts: Iterable[SafeString]) -> SafeString:
    return format_html_join("", "{}", ((part,) for part in parts))


def _all_values(chart: Chart) -> Iterator[float | None]:
    for line in chart.lines:
        yield from line.values
    if chart.span is not None:
        yield from chart.span.high
    yield chart.mark


def _runs(values: Sequence[float | None]) -> Iterator[list[tuple[int, float]]]:
    """Stretches of known values with their steps."""
    placed = list(enumerate(values))
    for is_known, run in groupby(placed, key=lambda pair: pair[1] is not None):
        if is_known:
            yield [(at, value) for at, value in run if value is not None]


def _seen(points: list[tuple[float, float]], width: float) -> tuple[tuple[float, float], ...]:
    """The points of a line; of a single one a short line around it, inside the drawing."""
    if len(points) > 1:
        return tuple(points)
    (x, y) = points[0]
    x = min(x, width - _RIGHT - _DOT)
    return ((x - _DOT, y), (x + _DOT, y))


def _areas(span: Span, x_of: Callable[[int], float], y_of: Callable[[float], float]) -> list[Path]:
    pairs = [
        None if low is None or high is None else (low, high)
        for low, high in zip(span.low, span.high, strict=True)
    ]
    found = []
    for is_known, run in groupby(enumerate(pairs), key=lambda pair: pair[1] is not None):
        if not is_known:
            continue
        edges = [(at, *pair) for at, pair in run if pair is not None]
        upper = [(x_of(at), y_of(high)) for at, _, high in edges]
        lower = [(x_of(at), y_of(low)) for at, low, _ in reversed(edges)]
        found.append(Path((*upper, *lower), 1, is_filled=True))
    return found


def _x_labels(
    names: Sequence[str], x_of: Callable[[int], float], y: float, width: float
) -> list[Label]:
    """Some of the steps' names, evenly spaced, without touching."""
    if not names:
        return []
    every = max(1, -(-len(names) // max(1, int(width / _LABEL_ROOM))))
    shown = [Label(x_of(at), y, names[at], "middle") for at in range(0, len(names), every)]
    # the first one begins at the axis; the second gives way where they would touch
    first = Label(shown[0].x, y, shown[0].text, "start")
    if len(shown) > 1 and shown[1].x - first.x < len(first.text) * _CHAR * 1.6:
        del shown[1]
    kept = [first, *shown[1:]]
    if len(kept) > 1 and kept[-1].x + len(kept[-1].text) * _CHAR / 2 > width:
        kept[-1] = Label(kept[-1].x, y, kept[-1].text, "end")
    return [
        label
        for label, before in zip(kept, [None, *kept], strict=False)
        if before is None or label.x - before.x > len(label.text) * _CHAR * 0.8
    ]


def _nice(step: float) -> float:
    """The next of 1, 2, 2.5, 5 times a power of ten; 1 for nothing."""
    if step <= 0:
        return 1.0
    size = 10.0 ** floor(log10(step))
    return next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= step * 0.999)


__all__ = [
    "Bars",
    "Chart",
    "Drawing",
    "Label",
    "Line",
    "Path",
    "Span",
    "draw",
    "draw_bars",
    "key_of",
    "short",
    "svg",
]

"""The signal of a run over time as inline SVG, with the levels of its steps."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import groupby

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from capacity.playbooks.selectors import RunDetail

WIDTH, HEIGHT, PAD = 720, 160, 6
_Scale = Callable[[float], float]


def timeline(detail: RunDetail) -> SafeString:
    """The signal, its enter (dashed) and leave (dotted) levels, and a mark at each act and undo."""
    samples = detail.samples
    if not samples:
        return SafeString("")
    levels = [(step.enter, "enter") for step in detail.steps]
    levels += [(step.leave, "leave") for step in detail.steps]
    known = [value for _, value in samples if value is not None]
    top = max([*known, *(level for level, _ in levels)]) * 1.1 or 1.0
    first, last = samples[0][0], samples[-1][0]
    span_s = max(1.0, last - first)

    def x_of(at_s: float) -> float:
        return round(PAD + (min(max(at_s, first), last) - first) / span_s * (WIDTH - 2 * PAD), 1)

    def y_of(value: float) -> float:
        return round(HEIGHT - PAD - min(value / top, 1.0) * (HEIGHT - 2 * PAD), 1)

    lines = format_html_join(
        "",
        '<line class="{}" x1="{}" x2="{}" y1="{}" y2="{}"/>',
        ((kind, PAD, WIDTH - PAD, y_of(level), y_of(level)) for level, kind in levels),
    )
    marks = [("act", act.at.timestamp()) for act in detail.acts]
    marks += [("undo", act.undone_at.timestamp()) for act in detail.acts if act.undone_at]
    marked = format_html_join(
        "",
        '<line class="{}" x1="{}" x2="{}" y1="{}" y2="{}"/>',
        ((kind, x_of(at_s), x_of(at_s), PAD, HEIGHT - PAD) for kind, at_s in marks),
    )
    drawn = format_html_join(
        "",
        '<polyline points="{}"/>',
        ((" ".join(run),) for run in _runs(samples, x_of, y_of)),
    )
    sentence = (
        f"Signal from {detail.run.start_value:.2f} to at most {detail.run.peak_value:.2f} "
        f"{detail.unit} over {span_s:.0f} s, {len(detail.acts)} acts."
    )
    return format_html(
        '<figure class="plot"><span class="axis small muted"><span>0 to {} {}</span></span>'
        '<svg class="timeline" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" '
        'aria-label="{}">{}{}{}</svg>'
        '<span class="axis small muted">{}</span></figure>',
        f"{top:.3g}",
        detail.unit,
        WIDTH,
        HEIGHT,
        sentence,
        lines,
        marked,
        drawn,
        format_html_join(
            "", "<span>{} UTC</span>", ((_clock(first + span_s * at / 2),) for at in range(3))
        ),
    )


def _clock(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, tz=UTC).strftime("%H:%M:%S")


def _runs(
    samples: Sequence[tuple[float, float | None]], x_of: _Scale, y_of: _Scale
) -> list[list[str]]:
    """Stretches of known values; an unknown one is a gap, never 0."""
    found = []
    for is_known, run in groupby(samples, key=lambda sample: sample[1] is not None):
        if is_known:
            points = [f"{x_of(at)},{y_of(value)}" for at, value in run if value is not None]
            found.append(points if len(points) > 1 else points * 2)
    return found

"""Template tags and filters: the units as filters, states as badges, bars and ages."""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import wraps
from typing import Any

from django import template
from django.forms import BoundField
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from console.web import charts, units

register = template.Library()


def _of_known(format_value: Callable[..., str]) -> Callable[..., str]:
    """The formatter, given None for what a template does not find (it passes an empty text)."""

    @wraps(format_value)
    def inner(value: object, *argument: object) -> str:
        return format_value(None if value == "" else value, *argument)

    return inner


for _name, _filter in (
    ("count", units.count),
    ("tokens", units.tokens),
    ("decimal", units.decimal),
    ("percent", units.percent),
    ("bytes", units.bytes_),
    ("seconds", units.seconds),
    ("age", units.age),
    ("usd", units.usd),
    ("usd_short", units.usd_short),
):
    register.filter(_name, _of_known(_filter))


@register.filter
def nth(items: Sequence[Any], at: int) -> Any:
    """The item at a place, counted from 0."""
    return items[at]


GLYPHS = {"ok": "●", "warn": "▲", "bad": "■", "stale": "◌", "none": "○"}
_TONES = {
    "ok": "ok ready live active shared serving running done published allowed up settled success"
    " pass",
    "warn": "warn loading warming draining degraded expiring rotating behind"
    " paused rolling_back rolled_back"
    " starting estimated incomplete recovered not_ready waiting read-only",
    "bad": "bad page failure failed hung lost suspended closed refused down error dead held silent"
    " unreachable hanging refusing full refuse",
    "stale": "stale gone unknown polling swept skipped",
}
TONE_OF = {word: tone for tone, words in _TONES.items() for word in words.split()}


@register.filter
def coded(text: str) -> SafeString:
    """Plain text in which words between backticks are commands."""
    parts = text.split("`")
    pairs = [(part, index % 2 == 1 and index < len(parts) - 1) for index, part in enumerate(parts)]
    marked = (format_html("<code>{}</code>" if is_code else "{}", part) for part, is_code in pairs)
    return format_html_join("", "{}", ((part,) for part in marked))


@register.filter
def exactly(nanousd: int | None) -> str:
    """What stands below a rounded amount: the exact one."""
    return "" if nanousd is None else f"{units.usd(nanousd)} exactly"


@register.simple_tag
def badge(state: object, word: str = "", tone: str = "") -> SafeString:
    """State as glyph, word and colour; a state without a tone is neutral, never green."""
    name = str(state)
    chosen = tone or TONE_OF.get(name, "none")
    return format_html(
        '<span class="badge {}"><span aria-hidden="true">{}</span> {}</span>',
        chosen,
        GLYPHS[chosen],
        word or name.replace("_", " "),
    )


@register.simple_tag
def money(nanousd: int | None) -> SafeString:
    """Exact amount of a table cell, zeros behind the last digit dimmed so that points align."""
    if nanousd is None:
        return format_html('<span class="muted" title="unknown">{}</span>', units.UNKNOWN)
    text, padding = units.usd_parts(nanousd)
    return format_html('{}<span class="pad" aria-hidden="true">{}</span>', text, padding)


@register.simple_tag
def when(value: datetime | None) -> SafeString:
    """Relative age of an instant, kept current by `app.js`; the title holds the instant."""
    if value is None:
        return format_html('<span class="muted">{}</span>', units.UNKNOWN)
    passed_s = (timezone.now() - value).total_seconds()
    text = f"in {units.age(-passed_s)}" if passed_s < 0 else f"{units.age(passed_s)} ago"
    return format_html(
        '<time datetime="{}" title="{}" data-age>{}</time>',
        value.isoformat(timespec="milliseconds"),
        units.moment(value),
        text,
    )


@register.simple_tag
def at(value: datetime | None, zone: str = "UTC") -> SafeString:
    """Instant in a zone as text, for tables in which moments are compared."""
    if value is None:
        return format_html('<span class="muted">{}</span>', units.UNKNOWN)
    text = units.moment(value, zone)
    short = text.removesuffix(f" {zone}")
    return format_html('<time datetime="{}" title="{}">{}</time>', value.isoformat(), text, short)


@register.simple_tag
def bar(*parts: float | None, label: str) -> SafeString:
    """Bar of settled (solid) and held (hatched) shares in ratios of the whole; `label` says it."""
    shares = [0.0 if part is None else min(max(part, 0.0), 1.0) for part in parts[:2]]
    return _bar(shares, label)


@register.simple_tag
def share(ratio: float | None) -> SafeString:
    """Bar of a part of a whole, for which full is nothing to warn of."""
    part = 0.0 if ratio is None else min(max(ratio, 0.0), 1.0)
    return format_html(
        '<span class="bar" role="img" aria-label="{}"><span class="solid" data-pct="{}"></span>'
        "</span>",
        units.percent(ratio),
        f"{part * 100:.2f}",
    )


def _bar(shares: Sequence[float], label: str) -> SafeString:
    first, second = (*shares, 0.0, 0.0)[:2]
    tone = "full" if first + second >= 0.9 else ""
    return format_html(
        '<span class="bar {}" role="img" aria-label="{}"><span class="solid" data-pct="{}"></span>'
        '<span class="held" data-pct="{}"></span></span>',
        tone,
        label,
        f"{first * 100:.2f}",
        f"{min(second, 1 - first) * 100:.2f}",
    )


@register.inclusion_tag("partials/field.html")
def field(bound: BoundField, hint: str = "", *, conditional: bool = False) -> dict[str, Any]:
    """Label, hint, input and errors of a form field, tied by id.

    A `conditional` field is needed for some acts of its form only, so it is not called optional.
    """
    is_optional = not bound.field.required and not conditional
    return {"field": bound, "hint": hint or bound.help_text, "is_optional": is_optional}


@register.inclusion_tag("partials/empty.html")
def empty(title: str, why: str, url: str = "", action: str = "") -> dict[str, str]:
    """What belongs here, why there is none, and one next step."""
    return {"title": title, "why": why, "url": url, "action": action}


@register.simple_tag
def spark(points: Sequence[float | None], name: str) -> SafeString:
    """A sparkline of one value a minute beside its figure; nothing where no value is known."""
    known = any(point is not None for point in points)
    return charts.sparkline(points, f"{name}, minute by minute") if known else SafeString("")


@register.inclusion_tag("partials/kpi.html")
def kpi(
    name: str,
    value: object,
    unit: str = "",
    note: str = "",
    url: str = "",
    points: Sequence[float | None] | None = None,
) -> dict[str, object]:
    """One headline figure with its unit and window; `points` draw its last minutes."""
    line = charts.sparkline(points, f"{name}, minute by minute") if points else ""
    return {"name": name, "value": value, "unit": unit, "note": note, "url": url, "line": line}

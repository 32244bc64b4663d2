"""A report as PDF: text, tables and vector charts, drawn without a browser.

The built-in fonts know Latin letters only. A character that they lack is written as its code, such
as `<U+6771>`, so that nothing is lost or shown as another.
"""

import io
from typing import Any
from xml.sax.saxutils import escape

from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.platypus import Flowable, KeepTogether, Paragraph, SimpleDocTemplate, Spacer, Table
from reportlab.platypus.tables import TableStyle

from capacity.reports.sections import Document, Section
from capacity.reports.sections import Table as Cells
from console.web.plots import Bars, Chart, Drawing, draw, draw_bars, key_of

FONT, BOLD = "Helvetica", "Helvetica-Bold"
_SERIES = [
    colors.HexColor(code)
    for code in ("#0b6bcb", "#b45309", "#0f766e", "#a21caf", "#4d7c0f", "#be123c", "#475569",
                 "#6d28d9")
]  # fmt: skip
_TEXT, _MUTED, _LINE = (colors.HexColor(code) for code in ("#16202b", "#4f5b69", "#d5dbe2"))
_BODY = ParagraphStyle("body", fontName=FONT, fontSize=9, leading=12, textColor=_TEXT)
_SMALL = ParagraphStyle("small", parent=_BODY, fontSize=8, leading=10, textColor=_MUTED)
_CELL = ParagraphStyle("cell", parent=_BODY, fontSize=7.5, leading=9, splitLongWords=True)
_RIGHT = ParagraphStyle("right", parent=_CELL, alignment=2)
_H1 = ParagraphStyle("h1", parent=_BODY, fontName=BOLD, fontSize=18, leading=22)
_H2 = ParagraphStyle(
    "h2", parent=_BODY, fontName=BOLD, fontSize=12, leading=16, spaceBefore=8, spaceAfter=2
)
_MARGIN = 16 * mm
WIDTH = A4[0] - 2 * _MARGIN
_KEPT_ROWS = 20  # of a table that stays on one page with its heading
_SCALE = 0.68  # charts are laid out for screens, then drawn smaller
_BUILT_IN = frozenset("\u2013\u2014\u2018\u2019\u201c\u201d\u2022\u2026\u20ac")


def pdf_of(document: Document) -> bytes:
    """The document's bytes; the same document gives the same ones."""
    out = io.BytesIO()
    pages = SimpleDocTemplate(
        out,
        pagesize=A4,
        leftMargin=_MARGIN,
        rightMargin=_MARGIN,
        topMargin=_MARGIN,
        bottomMargin=_MARGIN,
        title=document.title,
        author="Headrace",
        invariant=1,
    )
    flow: list[Any] = [
        _paragraph(document.title, _H1),
        _paragraph(document.period, _SMALL),
        Spacer(1, 6),
        _facts(document),
    ]
    for section in document.sections:
        flow += _section(section)
    pages.build(flow, onFirstPage=_footer, onLaterPages=_footer)
    return out.getvalue()


def latin(text: str) -> str:
    """Text in the letters of the built-in fonts; others as their code."""
    return "".join(
        char if char in _BUILT_IN or " " <= char <= "~" or "\xa0" <= char <= "\xff"
        else f"<U+{ord(char):04X}>"
        for char in text
    )  # fmt: skip


def _paragraph(text: str, style: ParagraphStyle) -> Paragraph:
    return Paragraph(escape(latin(text)), style)


def _facts(document: Document) -> Table:
    heads = [_paragraph(name, _SMALL) for name, _, _ in document.facts]
    values = [_paragraph(f"{value} {unit}".strip(), _BODY) for _, value, unit in document.facts]
    table = Table([heads, values], colWidths=[WIDTH / len(heads)] * len(heads))
    table.setStyle(TableStyle([("BOX", (0, 0), (-1, -1), 0.5, _LINE)]))
    return table


def _section(section: Section) -> list[Any]:
    head = [_paragraph(section.title, _H2), _paragraph(section.note, _SMALL), Spacer(1, 4)]
    if section.empty:
        return [KeepTogether([*head, _paragraph(section.empty, _BODY)])]
    body = [_table(cells) for cells in section.tables]
    charts = [KeepTogether(_chart(chart)) for chart in section.charts]
    is_long = any(len(cells.rows) > _KEPT_ROWS for cells in section.tables)
    if is_long or not body:  # what is longer than a page cannot be kept together
        return [*head, *body, *charts]
    return [KeepTogether([*head, *body]), *charts]


def _table(cells: Cells) -> Table:
    heads = [
        _paragraph(f"{column.name} {column.unit}".strip(), _RIGHT if column.is_number else _CELL)
        for column in cells.columns
    ]
    rows = [
        [
            _paragraph(text, _RIGHT if column.is_number else _CELL)
            for text, column in zip(row, cells.columns, strict=True)
        ]
        for row in cells.rows
    ]
    table = Table([heads, *rows], colWidths=_widths(cells), repeatRows=1)
    table.setStyle(
        TableStyle(
            [
                ("LINEBELOW", (0, 0), (-1, 0), 0.7, _MUTED),
                ("LINEBELOW", (0, 1), (-1, -1), 0.3, _LINE),
                ("VALIGN", (0, 0), (-1, -1), "TOP"),
                ("TOPPADDING", (0, 0), (-1, -1), 2),
                ("BOTTOMPADDING", (0, 0), (-1, -1), 2),
                ("LEFTPADDING", (0, 0), (-1, -1), 3),
                ("RIGHTPADDING", (0, 0), (-1, -1), 3),
            ]
        )
    )
    return table


def _widths(cells: Cells) -> list[float]:
    """By the longest text of each column, within bounds, together the page's width."""
    longest = [
        min(34, max(7, len(column.name) + len(column.unit), *(len(row[at]) for row in cells.rows)))
        for at, column in enumerate(cells.columns)
    ]
    return [WIDTH * size / sum(longest) for size in longest]


def _chart(chart: Chart | Bars) -> list[Any]:
    drawing = draw_bars(chart) if isinstance(chart, Bars) else draw(chart)
    parts: list[Any] = [
        Spacer(1, 4),
        _paragraph(f"{chart.title}, {chart.unit}", _CELL),
        _Drawn(drawing),
    ]
    if isinstance(chart, Chart):
        parts.append(_Key(chart))
    return parts


class _Drawn(Flowable):  # type: ignore[misc] # the library has no types
    """A chart's shapes, y turned upwards."""

    def __init__(self, drawing: Drawing) -> None:
        super().__init__()
        self.drawing = drawing
        self.width, self.height = drawing.width * _SCALE, drawing.height * _SCALE

    def draw(self) -> None:
        pen = self.canv
        pen.scale(_SCALE, _SCALE)
        height = self.drawing.height
        pen.setLineWidth(0.5)
        pen.setStrokeColor(_LINE)
        for x1, x2, y in self.drawing.rules:
            pen.line(x1, height - y, x2, height - y)
        for path in self.drawing.paths:
            _draw_path(pen, path.points, path.series, height, path.is_dashed, path.is_filled)
        for label in self.drawing.labels:
            pen.setFillColor(_MUTED if label.is_muted else _TEXT)
            pen.setFont(FONT, 10)
            write = {"start": pen.drawString, "middle": pen.drawCentredString}.get(
                label.anchor, pen.drawRightString
            )
            write(label.x, height - label.y, latin(label.text))


class _Key(Flowable):  # type: ignore[misc]
    """What a chart's colours stand for."""

    def __init__(self, chart: Chart) -> None:
        super().__init__()
        self.key = key_of(chart)
        self.width, self.height = WIDTH, 12

    def draw(self) -> None:
        pen, x = self.canv, 0.0
        for name, series, kind in self.key:
            corners = ((x, 3), (x + 14, 3), (x + 14, 8), (x, 8))
            ends = ((x, 5), (x + 14, 5))
            is_area = kind == "area"
            _draw_path(pen, corners if is_area else ends, series, 0, kind == "dash", is_area)
            pen.setFillColor(_MUTED)
            pen.setFont(FONT, 7)
            text = latin(name)
            pen.drawString(x + 18, 3, text)
            x += 30 + pen.stringWidth(text, FONT, 7)


def _draw_path(
    pen: Any,
    points: tuple[tuple[float, float], ...],
    series: int,
    height: float,
    is_dashed: bool,
    is_filled: bool,
) -> None:
    """`height` turns y upwards; 0 leaves it."""
    pen.setDash(4, 3) if is_dashed else pen.setDash()
    pen.setStrokeColor(_SERIES[series % len(_SERIES)])
    pen.setFillColor(_SERIES[series % len(_SERIES)])
    pen.setLineWidth(1.4)
    path = pen.beginPath()
    turned = [(x, height - y if height else y) for x, y in points]
    path.moveTo(*turned[0])
    for point in turned[1:]:
        path.lineTo(*point)
    if is_filled:
        path.close()
        pen.setFillAlpha(0.3 if series else 0.85)
    pen.drawPath(path, stroke=0 if is_filled else 1, fill=1 if is_filled else 0)
    pen.setFillAlpha(1)
    pen.setDash()


def _footer(pen: Any, pages: Any) -> None:
    pen.saveState()
    pen.setFont(FONT, 7)
    pen.setFillColor(_MUTED)
    pen.drawString(_MARGIN, 9 * mm, "Headrace capacity report")
    pen.drawRightString(A4[0] - _MARGIN, 9 * mm, f"Page {pages.page}")
    pen.restoreState()

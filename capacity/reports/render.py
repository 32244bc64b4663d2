"""A report's files from its figures: HTML, PDF, CSV and JSON. The same figures give the same bytes.

The HTML stands alone: styles and charts are inside it, no script, nothing is fetched.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from django.conf import settings
from django.template.loader import render_to_string
from django.utils.safestring import SafeString, mark_safe

from capacity.reports.document import document_of
from console.web.exports import csv_text
from console.web.plots import svg
from console.web.units import usd_text

KINDS = {
    "html": "text/html; charset=utf-8",
    "pdf": "application/pdf",
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
}
MAX_BYTES = 8 * 1024 * 1024  # of one file: a week of every list at its bound is about a tenth
CSV_HEAD = ("section", "of", "at", "figure", "value")


class TooLargeError(Exception):
    """A file would be larger than is kept."""


def files_of(figures: Mapping[str, Any]) -> dict[str, bytes]:
    """Every file by kind. Raises `TooLargeError`."""
    # What draws it takes longer to import than anything else of ours, and most processes never do.
    from capacity.reports.pdf import pdf_of  # noqa: PLC0415

    found = {
        "html": html_of(figures).encode(),
        "pdf": pdf_of(document_of(figures)),
        "csv": csv_text([CSV_HEAD, *figure_rows(figures)]).encode(),
        "json": json.dumps(figures, ensure_ascii=False, indent=1).encode(),
    }
    for kind, content in found.items():
        if len(content) > MAX_BYTES:
            raise TooLargeError(f"the {kind} has {len(content)} bytes, {MAX_BYTES} are kept")
    return found


def html_of(figures: Mapping[str, Any]) -> str:
    """The report as one file for a browser or a mail."""
    document = document_of(figures)
    charts = charts_of(figures)
    context = {
        "document": document,
        "styles": _styles(),
        "sections": [(section, charts[section.slug]) for section in document.sections],
    }
    return render_to_string("capacity/report_file.html", context)


def charts_of(figures: Mapping[str, Any]) -> dict[str, list[SafeString]]:
    """Each section's charts as SVG."""
    return {
        section.slug: [svg(chart) for chart in section.charts]
        for section in document_of(figures).sections
    }


def figure_rows(figures: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    """Every figure as a row: section, of what, hour, name, value. Money is in USD, exactly."""
    for name, value in figures["totals"].items():
        yield _row("totals", "all", "", name, value)
    yield from _demand(figures["demand"])
    for section, key, name_of in (
        ("objectives", "objectives", "objective"),
        ("classes", "classes", "work_class"),
        ("pools", "pools", "pool"),
        ("tenants", "tenants", "tenant"),
        ("replicas", "plans", "pool"),
    ):
        for one in figures[key]:
            for name, value in one.items():
                if name != name_of:
                    yield _row(section, one[name_of], "", name, value)
    for group in figures["pool_hours"]:
        yield from _hours("pools", group["pool"], group["hours"])
    for group in figures["engines"]:
        yield from _hours("engines", group["model"], group["hours"])
    yield from _records(figures, "rollouts", "rollout")
    yield from _records(figures, "playbook_runs", "run")
    for act in figures["acts"]:
        yield "acts", act["object"], act["at"], act["act"], f"{act['actor']}: {act['reason']}"


def _records(figures: Mapping[str, Any], section: str, key: str) -> Iterator[tuple[object, ...]]:
    for one in figures.get(section, ()):  # reports of before have none
        for name, value in one.items():
            if name not in (key, "started_at"):
                yield _row(section, str(one[key]), one["started_at"], name, value)


def _demand(demand: list[dict[str, Any]]) -> Iterator[tuple[object, ...]]:
    for series in demand:
        of = f"{series['model']} {series['measure']}"
        for name in ("came", "compared_hours", "error_ratio", "coverage_ratio"):
            yield _row("demand", of, "", name, series[name])
        yield from _hours("demand", of, series["hours"])


def _hours(section: str, of: str, hours: list[dict[str, Any]]) -> Iterator[tuple[object, ...]]:
    for hour in hours:
        for name, value in hour.items():
            if name != "at" and value is not None:
                yield _row(section, of, hour["at"], name, value)


def _row(section: str, of: str, at: str, name: str, value: object) -> tuple[object, ...]:
    if name.endswith("_nanousd"):
        return section, of, at, f"{name.removesuffix('_nanousd')}_usd", usd_text(int(str(value)))
    return section, of, at, name, "" if value is None else value


def _styles() -> SafeString:
    """Our own style sheets, which hold nothing but our text."""
    base = Path(settings.BASE_DIR) / "static" / "css"
    parts = [(base / name).read_text() for name in ("tokens.css", "plot.css", "report.css")]
    return mark_safe("\n".join(parts))  # noqa: S308 - files of ours

"""What a report is made of: sections of tables and charts."""

from dataclasses import dataclass
from datetime import datetime

from console.web.plots import Bars, Chart
from console.web.tables import Column


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text, by column."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Section:
    """One question of the report. `note` says how to read it; `empty` why nothing is there."""

    slug: str
    title: str
    note: str
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart | Bars, ...] = ()
    empty: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """A whole report. `facts` are its headline figures: name, value, unit."""

    title: str
    period: str
    facts: tuple[tuple[str, str, str], ...]
    sections: tuple[Section, ...]


def instant_of(text: str) -> datetime:
    """An instant as the figures hold it."""
    return datetime.fromisoformat(text)

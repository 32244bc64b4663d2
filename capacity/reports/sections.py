"""What a report is made of: sections of tables and charts."""

from dataclasses import dataclass
from datetime import datetime

from console.web.plots import Bars, Chart
from console.web.tables import Column


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text, by column.

    `pages` are addresses in the console, one a row or none at all, where what the row's cell of
    the column `linked` names is shown. Files that leave the console do without.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    pages: tuple[str, ...] = ()
    linked: int = 0

    @property
    def lines(self) -> tuple[tuple[tuple[str, str], ...], ...]:
        """The rows as cells of a text and its address, which may be empty."""
        pages = self.pages or ("",) * len(self.rows)
        return tuple(
            tuple((text, page if at == self.linked else "") for at, text in enumerate(row))
            for row, page in zip(self.rows, pages, strict=True)
        )


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

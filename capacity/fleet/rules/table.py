"""Rows of an inventory table as text: which columns each kind has, and what a cell may hold.

A CSV file has a header of column names. Every fault names its line (the header is line 1) and its
column, and all are found, not just the first.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from console.characters import first_refused, refused_in, said_of

MAX_ROWS = 2000
MAX_CHARS = 512 * 1024
MAX_CELL_CHARS = 20_000
LARGEST = 9_000_000_000_000_000  # of any whole number: fits the table's bigint

Value = str | int | float | None | dict[str, object]


class Cell(StrEnum):
    """What a column holds."""

    TEXT = "text"
    WHOLE = "whole"
    NUMBER = "number"
    OBJECT = "object"


@dataclass(frozen=True, slots=True)
class Column:
    """A column. One that is not needed may be empty or left out: then `default` holds."""

    name: str
    cell: Cell = Cell.TEXT
    is_needed: bool = False
    default: Value = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """A table: its columns, and those that name a row."""

    name: str
    label: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]

    @property
    def header(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(column.name for column in self.columns)


def _needed(name: str, cell: Cell = Cell.TEXT) -> Column:
    return Column(name, cell, is_needed=True)


KINDS = (
    Kind("region", "Regions", (_needed("slug"), _needed("name")), ("slug",)),
    Kind("domain", "Failure domains", (_needed("region"), _needed("slug")), ("region", "slug")),
    Kind(
        "gpu_type",
        "GPU types",
        (
            _needed("name"),
            _needed("memory_gib", Cell.NUMBER),
            _needed("memory_tb_s", Cell.NUMBER),
            _needed("bf16_tflops", Cell.NUMBER),
            Column("fp8_tflops", Cell.NUMBER, default=None),
            _needed("tdp_w", Cell.WHOLE),
            _needed("source"),
            Column("note"),
        ),
        ("name",),
    ),
    Kind(
        "node",
        "Nodes",
        (
            _needed("name"),
            _needed("region"),
            _needed("domain"),
            Column("gpu_type"),
            Column("gpu_count", Cell.WHOLE, default=0),
            Column("state", default="in_service"),
            Column("note"),
        ),
        ("name",),
    ),
    Kind(
        "model",
        "Models",
        (
            _needed("name"),
            _needed("context_tokens", Cell.WHOLE),
            Column("output_cap_tokens", Cell.WHOLE, default=4096),
            Column("bytes_per_token", Cell.NUMBER, default=2.5),
        ),
        ("name",),
    ),
    Kind(
        "artifact",
        "Artifacts",
        (
            _needed("model"),
            _needed("version"),
            _needed("location"),
            Column("sha256"),
            Column("size_bytes", Cell.WHOLE, default=0),
            Column("precision"),
        ),
        ("model", "version"),
    ),
    Kind(
        "pool",
        "Pools",
        (
            _needed("name"),
            _needed("model"),
            _needed("driver"),
            _needed("region"),
            _needed("domain"),
            Column("hardware"),
            Column("gpus_per_replica", Cell.WHOLE, default=0),
            Column("block_size_tokens", Cell.WHOLE, default=16),
            Column("desired_replicas", Cell.WHOLE, default=0),
            Column("spec", Cell.OBJECT, default=None),
        ),
        ("name",),
    ),
)
BY_NAME = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong in one cell, and what to do. `column` is empty for a whole line."""

    column: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A line with its values, or with its faults."""

    line: int
    values: Mapping[str, Value]
    faults: tuple[Fault, ...] = ()


class TableError(Exception):
    """The text as a whole is no table of this kind; the message says what to change."""


def rows_of(kind: Kind, text: str) -> tuple[Row, ...]:
    """Every line of a CSV text. Raises `TableError` for a text that has no rows to speak of."""
    if len(text) > MAX_CHARS:
        raise TableError(f"The file has more than {MAX_CHARS} characters: split it.")
    if character := refused_in(text):
        raise TableError(f"The file holds the character {character}: it is not a CSV text.")
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
    found: list[Row] = []
    seen: dict[tuple[Value, ...], int] = {}
    try:
        header = _header(kind, next(reader, []))
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(found) >= MAX_ROWS:
                raise TableError(f"The file has more than {MAX_ROWS} rows: split it.")
            found.append(_once(kind, _row(kind, header, reader.line_num, cells), seen))
    except csv.Error as error:
        raise TableError(f"Line {reader.line_num} is not CSV: {error}.") from error
    if not found:
        raise TableError("The file has a header and no rows.")
    return tuple(found)


def row_of(kind: Kind, given: Mapping[str, object]) -> Row:
    """One row given as a JSON object."""
    unknown = [name for name in given if name not in kind.header]
    faults = [
        Fault(name, "Unknown column.", f"Known: {', '.join(kind.header)}.") for name in unknown
    ]
    values: dict[str, Value] = {}
    for column in kind.columns:
        raw = given.get(column.name)
        text = json.dumps(raw) if isinstance(raw, dict) else "" if raw is None else str(raw)
        _fill(column, text, values, faults)
    return Row(1, values, tuple(faults))


def _header(kind: Kind, names: Sequence[str]) -> list[str]:
    header = [name.strip() for name in names]
    if unknown := [name for name in header if name not in kind.header]:
        raise TableError(
            f"The header names {', '.join(map(repr, unknown[:5]))}. {kind.label} have the columns "
            f"{', '.join(kind.header)}."
        )
    if len(set(header)) != len(header):
        raise TableError("The header names a column twice.")
    missing = [one.name for one in kind.columns if one.is_needed and one.name not in header]
    if missing:
        raise TableError(f"The header lacks {', '.join(missing)}.")
    return header


def _row(kind: Kind, header: Sequence[str], line: int, cells: Sequence[str]) -> Row:
    if len(cells) != len(header):
        said = f"{len(cells)} cells under {len(header)} columns."
        return Row(line, {}, (Fault("", said, "Quote a cell that holds a comma."),))
    given = dict(zip(header, (cell.strip() for cell in cells), strict=True))
    values: dict[str, Value] = {}
    faults: list[Fault] = []
    for column in kind.columns:
        _fill(column, given.get(column.name, ""), values, faults)
    return Row(line, values, tuple(faults))


def _once(kind: Kind, row: Row, seen: dict[tuple[Value, ...], int]) -> Row:
    """The row; with a fault if an earlier line has the same key."""
    if row.faults:
        return row
    key = tuple(str(row.values[name]) for name in kind.key)
    if key in seen:
        fault = Fault(kind.key[-1], f"Line {seen[key]} has the same key.", "Keep one of them.")
        return Row(row.line, row.values, (fault,))
    seen[key] = row.line
    return row


def _fill(column: Column, text: str, values: dict[str, Value], faults: list[Fault]) -> None:
    if not text:
        if column.is_needed:
            faults.append(Fault(column.name, "It is empty.", "Say it: there is no default."))
        values[column.name] = column.default
        return
    if len(text) > MAX_CELL_CHARS:
        faults.append(Fault(column.name, f"It has more than {MAX_CELL_CHARS} characters."))
        return
    try:
        values[column.name] = _value(column.cell, text)
    except ValueError as error:
        told = "" if column.is_needed else ", or leave it empty for its default"
        faults.append(Fault(column.name, str(error), f"Correct the cell{told}."))


def _value(cell: Cell, text: str) -> Value:
    if cell is Cell.WHOLE:
        return _whole(text)
    if cell is Cell.NUMBER:
        return _number(text)
    return _object(text) if cell is Cell.OBJECT else text


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 16) or int(text) > LARGEST:
        raise ValueError(f"{text[:40]!r} is not a whole number from 0 to {LARGEST}.")
    return int(text)


def _number(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = float("nan")
    if not 0 <= found <= LARGEST:
        raise ValueError(f"{text[:40]!r} is not a number from 0 on.")
    return found


def _object(text: str) -> dict[str, object]:
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"It is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise ValueError('It is not one object: {"name": value, ...}.')  # noqa: TRY004 - as others
    if refused := first_refused(found):
        raise ValueError(f"{refused[0] or 'A name in it'}: {said_of(refused[1])}")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")

"""Demand from a CSV file, summed to hours: what columns it may have, and what is wrong with it.

Columns: `t_s` (seconds from the start, in regular steps) or `at` (ISO instants with offset), and
either sums (`requests`, `input_tokens`, `output_tokens`) or rates (`requests_per_s`, ...). `tenant`
and `model` are optional; others are ignored.
"""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from math import isfinite

from capacity.forecasts.rules.series import hour_of

ROWS_MAX = 500_000
SERIES_MAX = 60
AMOUNT_MAX = 10**15  # an hour's tokens: beyond any fleet, and exact in every place that adds it
HOUR_S = 3600
MEASURES = ("requests", "input_tokens", "output_tokens")


class TableError(ValueError):
    """The file cannot be read as demand; says the line where it can."""


@dataclass(frozen=True, slots=True)
class Hour:
    """Sums of a series' hour."""

    tenant: str
    model: str
    at: datetime
    sums: tuple[int, int, int]


def read_demand(lines: Iterable[str], *, start: datetime, model: str = "") -> list[Hour]:
    """Hours of every series of a file. `start` is the instant of `t_s` 0 and falls on an hour.

    Raises `TableError`.
    """
    reader = csv.DictReader(lines)
    columns = set(reader.fieldnames or ())
    is_rate = "requests_per_s" in columns
    names = [f"{name}_per_s" if is_rate else name for name in MEASURES]
    missing = [name for name in names if name not in columns]
    if missing or not columns & {"t_s", "at"}:
        raise TableError(
            f"the file needs the columns t_s or at, and {', '.join(names)}; "
            f"it has {', '.join(sorted(columns)) or 'none'}"
        )
    sums: dict[tuple[str, str, datetime], list[float]] = {}
    step_s = 0.0
    rows = list(_bounded(reader))
    if is_rate:
        step_s = _step_s(rows)
    for number, row in enumerate(rows, start=2):
        at = _at(row, start, number)
        label = (row.get("tenant") or "")[:64], (row.get("model") or model)[:200]
        cell = sums.setdefault((*label, hour_of(at)), [0.0, 0.0, 0.0])
        for position, name in enumerate(names):
            cell[position] += _amount(row.get(name), name, number) * (step_s if is_rate else 1)
    if len({key[:2] for key in sums}) > SERIES_MAX:
        raise TableError(f"more than {SERIES_MAX} series: keep the largest")
    if any(not key[1] for key in sums):
        raise TableError("no model: add a column `model`, or name one for the whole file")
    found = []
    for (tenant, name, at), cell in sorted(sums.items()):
        if max(cell) > AMOUNT_MAX:
            raise TableError(f"the hour {at.isoformat()} of {name} has more than {AMOUNT_MAX}")
        found.append(Hour(tenant, name, at, (round(cell[0]), round(cell[1]), round(cell[2]))))
    return found


def ending_at(hours: list[Hour], end: datetime) -> list[Hour]:
    """The same hours moved so that the last one ends at `end`."""
    if not hours:
        return hours
    by = end - timedelta(hours=1) - max(hour.at for hour in hours)
    return [Hour(hour.tenant, hour.model, hour.at + by, hour.sums) for hour in hours]


def _bounded(reader: Iterable[dict[str, str]]) -> Iterable[dict[str, str]]:
    for number, row in enumerate(reader):
        if number >= ROWS_MAX:
            raise TableError(f"more than {ROWS_MAX} rows: cut the file")
        yield row


def _step_s(rows: list[dict[str, str]]) -> float:
    """The distance of two rows' times: what a rate is multiplied by."""
    times = sorted({float(row["t_s"]) for row in rows if _is_number(row.get("t_s"))})
    if len(times) < 2:
        raise TableError("rates need the column t_s with at least two different times")
    step_s = min(after - before for before, after in pairwise(times))
    if step_s <= 0 or HOUR_S % step_s:
        raise TableError(f"rates come in steps of {step_s:g} s, which do not divide an hour")
    return step_s


def _at(row: dict[str, str], start: datetime, number: int) -> datetime:
    if row.get("at"):
        try:
            at = datetime.fromisoformat(row["at"])
        except ValueError:
            raise TableError(f"line {number}: at {row['at']!r} is no instant") from None
        if at.tzinfo is None:
            raise TableError(f"line {number}: at {row['at']!r} has no offset")
        return at
    seconds = row.get("t_s")
    if not _is_number(seconds):
        raise TableError(f"line {number}: t_s {seconds!r} is no number")
    if not 0 <= float(str(seconds)) <= 10 * 366 * 86400:
        raise TableError(f"line {number}: t_s lies between 0 and ten years")
    return start + timedelta(seconds=float(str(seconds)))


def _amount(text: str | None, name: str, number: int) -> float:
    if not _is_number(text) or float(str(text)) < 0:
        raise TableError(f"line {number}: {name} {text!r} is no amount")
    return float(str(text))


def _is_number(text: str | None) -> bool:
    try:
        return text is not None and isfinite(float(text))
    except ValueError:
        return False

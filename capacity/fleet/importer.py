"""Bring a CSV file into the inventory: a dry run first, then all of it or nothing.

The dry run does the very same writes and takes them back, so what it says is what will happen.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from django.db import transaction

from capacity.fleet.rules.table import BY_NAME, Fault, Kind, Row, TableError, Value, rows_of
from capacity.fleet.services.assets import Outcome, put
from console.audit.rules import Actor
from console.audit.services import record
from console.errors import DomainError, InvalidInput, NotFound


@dataclass(frozen=True, slots=True)
class Line:
    """What a line does: an outcome, or its faults."""

    line: int
    name: str
    outcome: str
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What a file does, or did (`is_applied`). `digest` names the text."""

    kind: str
    lines: tuple[Line, ...]
    digest: str
    is_applied: bool

    def count(self, outcome: str) -> int:
        """Lines with this outcome; `refused` counts those with a fault."""
        return sum(line.outcome == outcome for line in self.lines)

    @property
    def created(self) -> int:
        """Rows that are new."""
        return self.count(Outcome.CREATED)

    @property
    def changed(self) -> int:
        """Rows that differ from what was recorded."""
        return self.count(Outcome.CHANGED)

    @property
    def same(self) -> int:
        """Rows that say nothing new."""
        return self.count(Outcome.SAME)

    @property
    def refused(self) -> int:
        """Rows with a fault: above 0 nothing is applied."""
        return self.count(REFUSED)


REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault with its line, as REST shows it."""

    line: int
    column: str
    message: str
    hint: str


class ImportRefused(InvalidInput):
    """Lines with faults: nothing was applied."""

    code = "import_refused"

    def __init__(self, report: Report) -> None:
        super().__init__(
            f"{report.refused} of {len(report.lines)} lines have faults: nothing was applied.",
            field="csv",
            hint="Correct the lines in `findings` and send the file again.",
        )
        self.findings = [
            Finding(line.line, fault.column, fault.message, fault.hint)
            for line in report.lines
            for fault in line.faults
        ]


def kind_named(name: str) -> Kind:
    """A kind of inventory rows. Raises `NotFound`."""
    kind = BY_NAME.get(name)
    if kind is None:
        raise NotFound(
            f"No such kind: {name[:40]}.", field="kind", hint=f"One of {', '.join(BY_NAME)}."
        )
    return kind


def digest_of(text: str) -> str:
    """Name of a file's text, so that what is applied is what was looked at."""
    return hashlib.sha256(text.encode()).hexdigest()


def bring_in(*, kind: str, text: str, actor: Actor, is_dry_run: bool) -> Report:
    """Put every row of a CSV text, or say what that would do.

    A fault in any line refuses the whole file. Raises `NotFound` (kind), or `InvalidInput` for a
    text that is no table of this kind.
    """
    found = kind_named(kind)
    try:
        rows = rows_of(found, text)
    except TableError as error:
        raise InvalidInput(str(error), field="csv") from error
    with transaction.atomic():
        lines = [_put(found, row, actor) for row in rows]
        is_applied = not is_dry_run and not any(line.faults for line in lines)
        if is_applied:
            record(
                actor=actor,
                act="inventory.import",
                object_type="inventory",
                object_id=kind,
                after={"rows": len(lines), "sha256": digest_of(text)},
            )
        else:
            transaction.set_rollback(True)
    return Report(kind, tuple(lines), digest_of(text), is_applied)


def _put(kind: Kind, row: Row, actor: Actor) -> Line:
    name = " / ".join(str(row.values.get(one, "")) for one in kind.key)
    if row.faults:
        return Line(row.line, name, REFUSED, row.faults)
    values: Mapping[str, Value] = row.values
    try:
        with transaction.atomic():
            outcome = put(kind=kind.name, values=values, actor=actor)
    except DomainError as error:
        fault = Fault(error.field, error.message, error.hint)
        return Line(row.line, name, REFUSED, (fault,))
    return Line(row.line, name, outcome.value, ())

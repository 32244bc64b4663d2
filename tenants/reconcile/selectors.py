"""Kept reconciliations, newest first."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tenants.models import Reconciliation

MAX_LISTED = 50


@dataclass(frozen=True, slots=True)
class RunView:
    """One run; `lines` and `acts` as they were written, `count` what it left wrong."""

    id: int
    at: datetime
    took_ms: int
    is_repair: bool
    by: str
    count: int
    lines: list[dict[str, Any]]
    acts: list[dict[str, Any]]
    trouble: str

    @property
    def is_clean(self) -> bool:
        """Everything was looked at and nothing differs."""
        return not self.count and not self.trouble


def latest() -> RunView | None:
    """The last run, None before the first."""
    row = Reconciliation.objects.order_by("-pk").first()
    return None if row is None else run_of(row)


def runs(limit: int = MAX_LISTED) -> list[RunView]:
    """The last runs."""
    return [run_of(row) for row in Reconciliation.objects.order_by("-pk")[: min(limit, MAX_LISTED)]]


def run_of(row: Reconciliation) -> RunView:
    """A row as a value."""
    return RunView(
        row.pk,
        row.at,
        row.took_ms,
        row.is_repair,
        row.by,
        row.count,
        row.lines,
        row.acts,
        row.trouble,
    )

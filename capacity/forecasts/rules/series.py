"""Hourly demand as a plain series: zeros where nothing came, cut where nothing is known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

HOUR = timedelta(hours=1)
HISTORY_MAX_H = 21 * 24  # three weeks: two repeats of a week and what changed since


@dataclass(frozen=True, slots=True)
class SeriesKey:
    """Whose demand: where it was seen, a tenant (empty: all of them together), and a model."""

    source: str
    tenant_id: int | None
    tenant: str
    model: str


@dataclass(frozen=True, slots=True)
class Hourly:
    """Sums of whole hours, oldest first; the last ends at `as_of`."""

    as_of: datetime
    values: tuple[int, ...]

    @property
    def since(self) -> datetime:
        """When the first hour begins."""
        return self.as_of - len(self.values) * HOUR


def filled(by_hour: Mapping[datetime, int], as_of: datetime) -> Hourly:
    """The hours before `as_of` from the first one that has anything, at most `HISTORY_MAX_H`.

    An hour without a row is an hour without demand: right for the ledger, which misses nothing.
    """
    known = [at for at in by_hour if at < as_of]
    if not known:
        return Hourly(as_of, ())
    hours = min((as_of - min(known)) // HOUR, HISTORY_MAX_H)
    start = as_of - hours * HOUR
    return Hourly(as_of, tuple(by_hour.get(start + at * HOUR, 0) for at in range(hours)))


def unbroken(by_hour: Mapping[datetime, int]) -> Hourly | None:
    """The newest hours without a gap, at most `HISTORY_MAX_H`; None without any.

    Right for what was measured elsewhere, where a missing hour is unknown and not zero.
    """
    if not by_hour:
        return None
    last = max(by_hour)
    values: list[int] = []
    while last - len(values) * HOUR in by_hour and len(values) < HISTORY_MAX_H:
        values.append(by_hour[last - len(values) * HOUR])
    return Hourly(last + HOUR, tuple(reversed(values)))


def hour_of(at: datetime) -> datetime:
    """The whole UTC hour that a moment lies in."""
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def summed(rows: Sequence[tuple[datetime, int]]) -> dict[datetime, int]:
    """Values added up by hour."""
    found: dict[datetime, int] = {}
    for at, value in rows:
        found[hour_of(at)] = found.get(hour_of(at), 0) + value
    return found

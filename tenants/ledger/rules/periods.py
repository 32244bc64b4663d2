"""A period as few rollup rows as possible: minutes at its edges, hours, days between."""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rollups of one grain (`m`, `h`, `d`) from `since` up to but without `until`."""

    grain: str
    since: datetime
    until: datetime


def floor_to(at: datetime, step: timedelta) -> datetime:
    """Start of the UTC minute, hour or day."""
    start = at.replace(second=0, microsecond=0)
    if step >= HOUR:
        start = start.replace(minute=0)
    return start.replace(hour=0) if step >= DAY else start


def ceil_to(at: datetime, step: timedelta) -> datetime:
    """First start of a UTC minute, hour or day that is not before `at`."""
    start = floor_to(at, step)
    return start if start == at else start + step


def start_of(day: date, zone: str) -> datetime:
    """UTC instant at which a day of that zone begins."""
    return datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone)).astimezone(UTC)


def cover(since: datetime, until: datetime) -> tuple[Stretch, ...]:
    """Stretches that cover [since, until) once, widened to whole minutes; UTC instants."""
    since, until = floor_to(since, MINUTE), ceil_to(until, MINUTE)
    stretches: list[Stretch] = []
    _cover(since, until, [("d", DAY), ("h", HOUR), ("m", MINUTE)], stretches)
    return tuple(sorted(stretches, key=lambda stretch: stretch.since))


def _cover(
    since: datetime,
    until: datetime,
    grains: list[tuple[str, timedelta]],
    found: list[Stretch],
) -> None:
    if since >= until or not grains:
        return
    grain, step = grains[0]
    first, last = ceil_to(since, step), floor_to(until, step)
    if first >= last:
        _cover(since, until, grains[1:], found)
        return
    found.append(Stretch(grain, first, last))
    _cover(since, first, grains[1:], found)
    _cover(last, until, grains[1:], found)

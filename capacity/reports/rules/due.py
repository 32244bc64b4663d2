"""When a report is due: once on each of the zone's days (or weeks), also when clocks change.

A time of day that does not exist (spring) is due at the moment the clocks jump, the first one
after the gap. One that comes twice (autumn) is due the first time. So each day has exactly one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, available_timezones

DAY = timedelta(days=1)
MISSED_MAX = 31  # due times of one outage that are recorded as missed, newest ones
CATCH_UP = timedelta(hours=24)  # the newest missed one is still issued if it is younger
ZONES = frozenset(available_timezones())
DAILY, WEEKLY = "daily", "weekly"


@dataclass(frozen=True, slots=True)
class Times:
    """A schedule's times. `weekday` (0 is Monday) counts for weekly ones."""

    zone: str
    at_time: time
    cadence: str
    weekday: int


@dataclass(frozen=True, slots=True)
class Due:
    """One due time with the zone's day that it is for."""

    at: datetime
    on: date


@dataclass(frozen=True, slots=True)
class Period:
    """What a report is about: `[since, until)`, whole UTC hours."""

    since: datetime
    until: datetime


def instant_of(day: date, at_time: time, zone: str) -> datetime:
    """The UTC instant of a day's time (see the module for clock changes)."""
    tz = ZoneInfo(zone)
    local = datetime.combine(day, at_time, tz)
    found = local.astimezone(UTC)
    if found.astimezone(tz).replace(tzinfo=None) == local.replace(tzinfo=None):
        return found
    # In the gap: before it and after it differ by its length; the jump lies between.
    before = local.replace(fold=0).utcoffset() or timedelta()
    after = local.replace(fold=1).utcoffset() or timedelta()
    low, high = sorted((found - abs(after - before), found))
    while high - low > timedelta(seconds=1):
        middle = low + (high - low) / 2
        if middle.astimezone(tz).utcoffset() == before:
            low = middle
        else:
            high = middle
    return high.replace(microsecond=0)


def due_times(times: Times, after: datetime, until: datetime) -> Iterator[Due]:
    """Due times in `(after, until]`, oldest first."""
    tz = ZoneInfo(times.zone)
    day = after.astimezone(tz).date() - DAY
    last = until.astimezone(tz).date()
    while day <= last:
        if times.cadence == DAILY or day.weekday() == times.weekday:
            at = instant_of(day, times.at_time, times.zone)
            if after < at <= until:
                yield Due(at, day)
        day += DAY


def next_due(times: Times, after: datetime) -> Due:
    """The first due time after a moment."""
    return next(due_times(times, after, after + timedelta(days=9)))


def to_issue(times: Times, after: datetime, now: datetime) -> tuple[Due | None, list[Due]]:
    """The due time to issue now, if any, and those that are recorded as missed, oldest first.

    After an outage only the newest due time is caught up on, and only within `CATCH_UP`.
    """
    # older ones than a year are not even counted
    found = list(due_times(times, max(after, now - timedelta(days=366)), now))
    if not found:
        return None, []
    if now - found[-1].at > CATCH_UP:
        return None, found[-MISSED_MAX:]
    return found[-1], found[:-1][-MISSED_MAX:]


def period_of(times: Times, due: Due) -> Period:
    """The zone's day, or seven days, before the day that the report is due on.

    Cut to whole UTC hours, downwards: figures are kept by the hour.
    """
    days = 7 if times.cadence == WEEKLY else 1
    return Period(
        _hour(instant_of(due.on - days * DAY, time(), times.zone)),
        _hour(instant_of(due.on, time(), times.zone)),
    )


def last_hours(now: datetime, hours: int) -> Period:
    """The whole hours before now."""
    until = _hour(now)
    return Period(until - timedelta(hours=hours), until)


def unfinished_min(now: datetime) -> int:
    """Whole minutes since the last whole hour: `last_hours` leaves them out."""
    return int((now - _hour(now)) / timedelta(minutes=1))


def _hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)

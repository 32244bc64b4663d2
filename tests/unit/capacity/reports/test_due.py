"""Due times over clock changes, outages and edits."""

from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise

import pytest

from capacity.reports.rules.due import (
    Due,
    Times,
    due_times,
    instant_of,
    next_due,
    period_of,
    to_issue,
)

BERLIN = Times("Europe/Berlin", time(2, 30), "daily", 0)


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)


@pytest.mark.parametrize(
    ("day", "at"),
    [
        (date(2025, 3, 29), utc(2025, 3, 29, 1, 30)),
        (date(2025, 3, 30), utc(2025, 3, 30, 1, 0)),  # 02:30 does not exist: when clocks jump
        (date(2025, 3, 31), utc(2025, 3, 31, 0, 30)),
        (date(2025, 10, 25), utc(2025, 10, 25, 0, 30)),
        (date(2025, 10, 26), utc(2025, 10, 26, 0, 30)),  # 02:30 comes twice: the first time
        (date(2025, 10, 27), utc(2025, 10, 27, 1, 30)),
    ],
)
def test_half_past_two_in_berlin(day, at):
    assert instant_of(day, BERLIN.at_time, BERLIN.zone) == at


@pytest.mark.parametrize(
    "zone",
    ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Asia/Kolkata",
     "Africa/Cairo", "Asia/Beirut", "America/Havana", "UTC"],
)  # fmt: skip
@pytest.mark.parametrize("hour", [0, 1, 2, 3, 23])
def test_each_day_of_two_years_has_exactly_one_due_time_in_order(zone, hour):
    times = Times(zone, time(hour, 30), "daily", 0)
    found = list(due_times(times, utc(2024, 12, 31, 23, 59), utc(2026, 12, 31)))
    days = [due.on for due in found]
    assert days == sorted(set(days))
    assert days[-1] - days[0] == timedelta(days=len(days) - 1)
    assert all(a.at < b.at for a, b in pairwise(found))


def test_however_often_one_looks_each_due_time_is_found_once():
    start, seen = utc(2025, 10, 24), []
    at = start
    while at < utc(2025, 10, 29):
        later = at + timedelta(minutes=17)
        seen += due_times(BERLIN, at, later)
        at = later
    assert seen == list(due_times(BERLIN, start, at))
    assert len(seen) == 5


def test_weekly_is_due_on_its_day():
    monday = Times("Asia/Tokyo", time(6), "weekly", 0)
    found = list(due_times(monday, utc(2025, 11, 1), utc(2025, 12, 1)))
    assert [due.on.weekday() for due in found] == [0] * 5
    assert found[0].at == utc(2025, 11, 2, 21)


def test_after_an_outage_one_is_issued_and_the_others_are_missed():
    after = utc(2025, 11, 1, 12)
    now, missed = to_issue(BERLIN, after, utc(2025, 11, 2, 4))  # three hours over one due time
    assert (now, missed) == (Due(utc(2025, 11, 2, 1, 30), date(2025, 11, 2)), [])
    now, missed = to_issue(BERLIN, after, utc(2025, 11, 5, 4))
    assert now.on == date(2025, 11, 5)
    assert [due.on.day for due in missed] == [2, 3, 4]
    weekly = Times("UTC", time(2, 30), "weekly", 0)
    now, missed = to_issue(weekly, after, utc(2025, 11, 5, 4))  # Monday was too long ago
    assert now is None
    assert [due.on for due in missed] == [date(2025, 11, 3)]
    assert to_issue(BERLIN, after, utc(2025, 11, 1, 13)) == (None, [])


def test_a_year_of_missed_reports_is_bounded():
    now, missed = to_issue(BERLIN, utc(2015, 1, 1), utc(2025, 11, 5, 4))
    assert now is not None
    assert len(missed) == 31
    assert missed[-1].on == date(2025, 11, 4)


def test_the_period_is_the_zones_day_in_whole_hours():
    spring = period_of(BERLIN, Due(utc(2025, 3, 31, 0, 30), date(2025, 3, 31)))
    assert (spring.since, spring.until) == (utc(2025, 3, 29, 23), utc(2025, 3, 30, 22))  # 23 h
    autumn = period_of(BERLIN, Due(utc(2025, 10, 27, 1, 30), date(2025, 10, 27)))
    assert autumn.until - autumn.since == timedelta(hours=25)
    week = period_of(
        Times("Asia/Kolkata", time(6), "weekly", 0), Due(utc(2025, 11, 3), date(2025, 11, 3))
    )
    assert week.until - week.since == timedelta(days=7)
    assert (week.until.minute, week.until.hour) == (0, 18)


def test_the_next_due_time_is_after_the_moment():
    due = instant_of(date(2025, 11, 2), BERLIN.at_time, BERLIN.zone)
    assert next_due(BERLIN, due).on == date(2025, 11, 3)
    assert next_due(BERLIN, due - timedelta(seconds=1)).on == date(2025, 11, 2)

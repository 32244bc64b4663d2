from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from tenants.ledger.rules.periods import DAY, HOUR, MINUTE, cover

START = datetime(2026, 3, 1, tzinfo=UTC)
STEPS = {"m": MINUTE, "h": HOUR, "d": DAY}


@given(st.integers(0, 6000), st.integers(0, 6000))
def test_every_minute_is_covered_exactly_once(first: int, length: int) -> None:
    since, until = START + first * MINUTE, START + (first + length) * MINUTE
    found = sorted(cover(since, until), key=lambda part: part.since)
    at = since
    for part in found:
        assert part.since == at
        assert part.until > part.since
        at = part.until
    assert at == until


@given(st.integers(0, 6000), st.integers(1, 6000))
def test_stretches_start_where_rollups_of_their_grain_start(first: int, length: int) -> None:
    for part in cover(START + first * MINUTE, START + (first + length) * MINUTE):
        step = STEPS[part.grain]
        assert (part.since - START) % step == timedelta(0)
        assert (part.until - START) % step == timedelta(0)


def test_seconds_widen_to_whole_minutes() -> None:
    since = START + timedelta(seconds=59)
    assert cover(since, since + timedelta(seconds=2)) == cover(START, START + 2 * MINUTE)


def test_a_month_is_a_handful_of_rows_not_minutes() -> None:
    parts = cover(START + 5 * MINUTE, START + 30 * DAY + 5 * MINUTE)
    assert [part.grain for part in parts] == ["m", "h", "d", "m"]


def test_empty_and_backward_periods_have_no_parts() -> None:
    assert cover(START, START) == ()
    assert cover(START + DAY, START) == ()

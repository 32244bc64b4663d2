"""From sizes and bands to demands, and series from rows."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from capacity.forecasts.rules.demand import (
    BINS_MAX,
    MINUTE,
    Rates,
    Seen,
    binned,
    demands_of,
    measured,
)
from capacity.forecasts.rules.series import HISTORY_MAX_H, HOUR, filled, hour_of, unbroken
from capacity.simulation.catalogue import named
from capacity.simulation.closed_forms import work_of

NOON = datetime(2025, 11, 30, 12, tzinfo=UTC)


def test_bins_keep_every_request_and_token():
    rows = [(1000 + at, at, 50 + at % 700) for at in range(5000)]
    cells = binned(rows)
    assert len(cells) <= BINS_MAX
    assert sum(cell.requests for cell in cells) == 5000
    assert sum(cell.input_tokens for cell in cells) == sum(row[0] for row in rows)
    assert sum(cell.output_tokens for cell in cells) == sum(row[2] for row in rows)
    wide = [(2**at, 0, 2**other) for at in range(30) for other in range(30)]
    assert len(binned(wide)) == BINS_MAX
    assert sum(cell.input_tokens for cell in binned(wide)) == sum(row[0] for row in wide)


def test_demands_bring_exactly_the_planned_requests_and_tokens():
    seen = [Seen(90, 9_000, 900, 4_500), Seen(10, 200_000, 0, 1_000)]
    planned = Rates(requests=7_200, input_tokens=30_000_000, output_tokens=500_000)
    demands = demands_of(seen, planned)
    assert sum(demand.rate_rps for demand in demands) == pytest.approx(2)
    assert sum(d.input_tokens_per_s for d in demands) * 3600 == pytest.approx(30_000_000)
    assert sum(d.output_tokens_per_s for d in demands) * 3600 == pytest.approx(500_000)
    assert demands[0].cached_ratio == pytest.approx(0.1)


def test_sizes_apart_cost_more_than_their_mean():
    """The square of a prompt: planning at the mean would buy too little."""
    seen = [Seen(90, 90 * 800, 0, 90 * 200), Seen(10, 10 * 60_000, 0, 10 * 200)]
    planned = Rates(3600, sum(s.input_tokens for s in seen) * 36, 100 * 200 * 36)
    times = named("8b-bf16-h100").times
    apart = sum(d.rate_rps * work_of(times, d).total_s for d in demands_of(seen, planned))
    mean = sum(d.rate_rps * work_of(times, d).total_s for d in demands_of([], planned))
    assert apart > 1.2 * mean


def test_no_planned_request_is_no_demand():
    assert demands_of([Seen(1, 1, 0, 1)], Rates(0, 0, 0)) == []


def test_a_missing_hour_of_the_ledger_is_zero_and_of_elsewhere_the_start():
    rows = {NOON - 5 * HOUR: 4, NOON - 4 * HOUR: 5, NOON - 2 * HOUR: 7}
    assert filled(rows, NOON).values == (4, 5, 0, 7, 0)
    cut = unbroken(rows)
    assert (cut.as_of, cut.values) == (NOON - HOUR, (7,))
    assert filled({}, NOON).values == ()
    assert unbroken({}) is None


def test_history_is_bounded():
    rows = {NOON - at * HOUR: at for at in range(1, 2 * HISTORY_MAX_H)}
    assert len(filled(rows, NOON).values) == len(unbroken(rows).values) == HISTORY_MAX_H


def test_hours_are_those_of_utc():
    india = timezone(timedelta(hours=5, minutes=30))
    assert hour_of(datetime(2025, 11, 30, 17, 45, tzinfo=india)) == NOON


def test_minutes_before_the_first_request_are_no_lull():
    now = NOON + timedelta(seconds=40)
    each = (240, 240_000, 24_000)
    old = {NOON - at * MINUTE: each for at in range(20)}
    assert measured(old, now, is_new=False) == (Rates(14_400, 14_400_000, 1_440_000), 15)
    # began 14 s into 11:57: 11:58 and 11:59 are whole, the running minute is not
    new = {NOON - 3 * MINUTE: (184, 184_000, 18_400)}
    new |= {NOON - at * MINUTE: each for at in (2, 1)} | {NOON: (160, 160_000, 16_000)}
    assert measured(new, now, is_new=True) == (Rates(14_400, 14_400_000, 1_440_000), 2)
    assert measured({NOON: each}, now, is_new=True) is None
    assert measured({NOON - MINUTE: each}, now, is_new=True) is None
    # known for longer, but silent since: that is a lull
    assert measured({NOON - 3 * MINUTE: each}, now, is_new=False) == (
        Rates(960, 960_000, 96_000),
        15,
    )

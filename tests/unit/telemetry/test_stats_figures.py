"""Live figures: trailing windows, groups, unknown percentiles."""

import pytest

from routing.contracts.live import LiveSlice
from routing.contracts.slices import SliceDelta
from telemetry.stats import sketch
from telemetry.stats.figures import (
    BY_SLICE,
    BY_TENANT,
    OVER_ALL,
    P99_SAMPLES_MIN,
    SPEND_MINUTES,
    WINDOW_S,
    Spend,
    Trailing,
    group_id,
    rows_of,
)
from telemetry.stats.windows import SliceKey, key_of


def delta(tenant: str, seconds: list[float], work_class: str = "standard", **more: object):
    pairs: dict[int, int] = {}
    sketch.add(pairs, ((sketch.index_of(value), 1) for value in seconds))
    return SliceDelta(
        tenant, "m", "p", work_class, requests=len(seconds), ttft_s=list(pairs.items()), **more
    )


def rows(trailing: Trailing, view: str, spend: Spend | None = None) -> list[LiveSlice]:
    return rows_of(trailing, spend or Spend(), 100, view, {"1": "acme", "2": "globex"})


def test_reports_leave_the_window_after_sixty_seconds_whatever_order_they_came_in() -> None:
    trailing = Trailing()
    trailing.add(1010, [delta("1", [0.2])])
    trailing.add(1000, [delta("1", [0.1])])
    trailing.expire(1000 + WINDOW_S)
    (row,) = rows(trailing, BY_SLICE)
    assert row.requests == 1
    assert row.ttft_p50_s == pytest.approx(0.2, rel=0.011)
    trailing.expire(1010 + WINDOW_S)
    assert rows(trailing, BY_SLICE) == []
    assert trailing.sums == {}


def test_groups_merge_sketches_and_work_classes() -> None:
    trailing = Trailing()
    trailing.add(1000, [delta("1", [0.1] * 90), delta("1", [1.0] * 10, "batch")])
    trailing.add(1001, [delta("2", [5.0] * 100)])
    by_slice = rows(trailing, BY_SLICE)
    assert [(row.tenant, row.requests) for row in by_slice] == [("acme", 100), ("globex", 100)]
    (total,) = rows(trailing, OVER_ALL)
    assert total.requests == 200
    assert total.ttft_p50_s == pytest.approx(1.0, rel=0.011)
    assert total.ttft_p95_s == pytest.approx(5.0, rel=0.011)


def test_no_p99_below_thirty_samples() -> None:
    trailing = Trailing()
    trailing.add(1000, [delta("1", [0.1] * (P99_SAMPLES_MIN - 1))])
    assert rows(trailing, BY_TENANT)[0].ttft_p99_s is None
    trailing.add(1001, [delta("1", [0.1])])
    assert rows(trailing, BY_TENANT)[0].ttft_p99_s is not None


def test_idle_means_unknown_percentiles_and_a_total_row_all_the_same() -> None:
    (total,) = rows(Trailing(), OVER_ALL)
    assert (total.ttft_p50_s, total.ttft_p95_s, total.ttft_p99_s) == (None, None, None)
    assert (total.requests, total.spend_nanousd) == (0, 0)


def test_refusals_alone_make_a_row() -> None:
    trailing = Trailing()
    trailing.add(1000, [SliceDelta("1", "m", "", "standard", refused={"rate_limited": 3})])
    (row,) = rows(trailing, BY_SLICE)
    assert (row.refused, row.requests, row.pool) == (3, 0, "")


def test_spend_is_the_sum_of_its_minutes_and_old_minutes_leave() -> None:
    key = key_of(delta("1", []))
    spend = Spend()
    for minute, amount in ((100 - SPEND_MINUTES, 1), (100 - SPEND_MINUTES + 1, 10), (100, 5)):
        spend.add(minute, key, amount)
    (row,) = rows(Trailing(), BY_TENANT, spend)
    assert row.spend_nanousd == 15
    assert (row.spend_minutes_nanousd[0], row.spend_minutes_nanousd[-1]) == (10, 5)
    spend.expire(100)
    assert min(spend.minutes) == 100 - SPEND_MINUTES + 1


def test_ids_tell_rows_apart_that_concatenate_alike() -> None:
    assert group_id(("1", "ab", "c")) != group_id(("1", "a", "bc"))
    assert SliceKey("1", "m", "p", "batch").as_other().tenant_id == "1"

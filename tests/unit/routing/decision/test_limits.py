"""Window edges in the tenant's zone, and which counters a request touches."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest

from routing.contracts.enums import Dimension, LimitScope, WindowKind, WorkClass
from routing.contracts.snapshot import KeyEntry, Limit, TenantEntry
from routing.decision.limits import groups_for, limit_name, window_edges

HOUR = 3_600_000
DAY = 24 * HOUR


def ms(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def test_minute_aligns_to_the_stores_clock_in_every_zone():
    now = ms("2026-03-29T01:30:30")
    for zone in ("UTC", "Asia/Kathmandu", "America/St_Johns"):
        assert window_edges(WindowKind.MINUTE, zone, now) == (
            now - 30_000,
            now + 30_000,
            now + 90_000,
        )


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("UTC", "2026-03-29", 24),
        ("Europe/Berlin", "2026-03-29", 23),
        ("Europe/Berlin", "2026-10-25", 25),
        ("America/New_York", "2026-03-08", 23),
        ("Asia/Kathmandu", "2026-03-29", 24),
        ("Australia/Lord_Howe", "2026-04-05", 24.5),
        ("Africa/Cairo", "2026-04-24", 23),  # midnight itself does not exist
        ("America/Havana", "2026-11-01", 25),  # midnight happens twice
    ],
)
def test_day_has_the_length_that_its_zone_gives_it(zone: str, day: str, hours: float):
    noon = ms(f"{day}T12:00:00", zone)
    start, end, next_end = window_edges(WindowKind.DAY, zone, noon)
    assert end - start == hours * HOUR
    assert end < next_end
    for instant in range(start, end, HOUR // 4):
        assert window_edges(WindowKind.DAY, zone, instant)[0] == start
    assert window_edges(WindowKind.DAY, zone, end)[0] == end
    assert window_edges(WindowKind.DAY, zone, start - 1)[1] == start


def test_windows_follow_each_other_without_gap_or_overlap():
    for zone in ("Europe/Berlin", "America/Havana", "Pacific/Apia", "UTC"):
        for kind in (WindowKind.DAY, WindowKind.WEEK, WindowKind.MONTH):
            now = ms("2026-01-01T00:00:00")
            for _ in range(60):
                start, end, next_end = window_edges(kind, zone, now)
                assert start <= now < end < next_end
                assert window_edges(kind, zone, end)[:2] == (end, next_end)
                now = end


def test_week_begins_on_monday_and_month_on_its_first():
    now = ms("2026-02-11T10:00:00", "Europe/Berlin")
    week = window_edges(WindowKind.WEEK, "Europe/Berlin", now)
    month = window_edges(WindowKind.MONTH, "Europe/Berlin", now)
    assert week[0] == ms("2026-02-09T00:00:00", "Europe/Berlin")
    assert month == tuple(ms(f"2026-0{m}-01T00:00:00", "Europe/Berlin") for m in (2, 3, 4))


def test_gauge_has_no_window_and_unknown_zone_is_an_error():
    with pytest.raises(ValueError, match="no window"):
        window_edges(WindowKind.NOW, "UTC", 0)
    with pytest.raises(ZoneInfoNotFoundError):
        window_edges(WindowKind.DAY, "Nowhere/None", 0)


def tenant(*limits: Limit) -> TenantEntry:
    return TenantEntry("1", "acme", 0, "UTC", "s", ("*",), limits)


KEY = KeyEntry("k1", "1", "p", "hr", ("*",))


def touched(*limits: Limit) -> dict[tuple[LimitScope, WindowKind], dict[Dimension, int]]:
    groups = groups_for(tenant(*limits), KEY, "m1", WorkClass.BATCH)
    return {(g.scope, g.window): dict(g.dims) for g in groups}


def test_day_and_concurrency_are_counted_without_any_limit():
    assert touched() == {
        (LimitScope.TENANT, WindowKind.DAY): {
            Dimension.REQUESTS: -1,
            Dimension.INPUT_TOKENS: -1,
            Dimension.OUTPUT_TOKENS: -1,
            Dimension.SPEND_NANOUSD: -1,
        },
        (LimitScope.TENANT, WindowKind.NOW): {Dimension.CONCURRENCY: -1},
    }


def test_only_limits_of_this_key_model_and_class_apply():
    def on(scope: LimitScope, subject: str) -> Limit:
        return Limit(scope, Dimension.REQUESTS, WindowKind.MINUTE, 5, subject)

    mine = [
        on(LimitScope.KEY, "k1"),
        on(LimitScope.TENANT_MODEL, "m1"),
        on(LimitScope.TENANT_CLASS, "batch"),
    ]
    others = [
        on(LimitScope.KEY, "k2"),
        on(LimitScope.TENANT_MODEL, "m2"),
        on(LimitScope.TENANT_CLASS, "standard"),
    ]
    found = touched(*mine, *others)
    assert len(found) == 5
    assert all(found[(limit.scope, WindowKind.MINUTE)] == {Dimension.REQUESTS: 5} for limit in mine)


def test_limits_of_one_scope_and_window_share_a_group():
    found = touched(
        Limit(LimitScope.TENANT, Dimension.SPEND_NANOUSD, WindowKind.DAY, 7),
        Limit(LimitScope.TENANT, Dimension.KV_TOKENS, WindowKind.NOW, 9),
        Limit(LimitScope.TENANT, Dimension.KV_TOKENS, WindowKind.NOW, 8),
    )
    assert len(found) == 2
    assert found[(LimitScope.TENANT, WindowKind.DAY)][Dimension.SPEND_NANOUSD] == 7
    assert found[(LimitScope.TENANT, WindowKind.NOW)] == {
        Dimension.CONCURRENCY: -1,
        Dimension.KV_TOKENS: 8,
    }


def test_public_names_of_limits():
    assert limit_name(Dimension.SPEND_NANOUSD, WindowKind.DAY) == "spend_per_day"
    assert limit_name(Dimension.REQUESTS, WindowKind.MINUTE) == "requests_per_minute"
    assert limit_name(Dimension.CONCURRENCY, WindowKind.NOW) == "concurrency"


def test_edges_of_an_instant_do_not_depend_on_what_was_asked_before():
    now = int(datetime(2026, 5, 5, 12, tzinfo=UTC).timestamp() * 1000)
    first = window_edges(WindowKind.DAY, "Asia/Tokyo", now)
    window_edges(WindowKind.DAY, "Asia/Tokyo", now + 40 * DAY)
    assert window_edges(WindowKind.DAY, "Asia/Tokyo", now) == first

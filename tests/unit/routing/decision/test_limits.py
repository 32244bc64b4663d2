"""Window edges in the tenant's zone, and which counters a request touches."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest

from routing.contracts.enums import Dimension, LimitScope, WindowKind, WorkClass
from routing.contracts.snapshot import KeyEntry, Limit, TenantEntry
from routing.decision.limits import groups_for, limit_name, rates_of, window_edges
from routing.store.plans import suffix_of

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


def starts_of(kind: WindowKind, zone: str, since: str, anchor_min: int, count: int) -> list[str]:
    """Local beginnings of the windows from that of `since` on."""
    now, found = ms(since, zone), []
    for _ in range(count):
        start, now, _ = window_edges(kind, zone, now, anchor_min)
        local = datetime.fromtimestamp(start / 1000, ZoneInfo(zone))
        found.append(local.strftime("%Y-%m-%d %H:%M"))
    return found


@pytest.mark.parametrize(
    ("day", "since", "starts"),
    [
        (15, "2026-02-15T09:59:00", ["2026-01-15 10:00", "2026-02-15 10:00", "2026-03-15 10:00"]),
        (31, "2026-02-20T00:00:00", ["2026-01-31 10:00", "2026-02-28 10:00", "2026-03-31 10:00"]),
        (31, "2026-04-30T10:00:00", ["2026-04-30 10:00", "2026-05-31 10:00", "2026-06-30 10:00"]),
        (30, "2028-02-28T12:00:00", ["2028-01-30 10:00", "2028-02-29 10:00", "2028-03-30 10:00"]),
        (29, "2026-12-30T00:00:00", ["2026-12-29 10:00", "2027-01-29 10:00", "2027-02-28 10:00"]),
    ],
)
def test_a_month_begins_at_its_anchor_or_on_its_last_day(day: int, since: str, starts: list[str]):
    anchor = (day - 1) * 1440 + 600
    assert starts_of(WindowKind.MONTH, "Europe/Berlin", since, anchor, 3) == starts


def test_a_week_begins_on_its_day_and_a_day_at_its_hour_over_clock_changes():
    wednesday = starts_of(WindowKind.WEEK, "Europe/Berlin", "2026-03-24T23:59:00", 2 * 1440, 3)
    assert wednesday == ["2026-03-18 00:00", "2026-03-25 00:00", "2026-04-01 00:00"]
    spring = starts_of(WindowKind.DAY, "Europe/Berlin", "2026-03-28T03:00:00", 150, 3)
    assert spring == ["2026-03-28 02:30", "2026-03-29 03:30", "2026-03-30 02:30"]
    start, end, _ = window_edges(
        WindowKind.DAY, "Europe/Berlin", ms("2026-10-25T12:00:00", "Europe/Berlin"), 150
    )
    assert start == ms("2026-10-25T00:30:00")  # 02:30 comes twice: the first
    assert end - start == 25 * HOUR


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


def test_an_anchored_window_shares_no_counter_with_the_calendars():
    month = Limit(LimitScope.TENANT, Dimension.SPEND_NANOUSD, WindowKind.MONTH, 7)
    tokens = Limit(
        LimitScope.TENANT, Dimension.INPUT_TOKENS, WindowKind.MONTH, 9, anchor_min=20_760
    )
    day = Limit(LimitScope.TENANT, Dimension.SPEND_NANOUSD, WindowKind.DAY, 5, anchor_min=60)
    groups = groups_for(tenant(month, tokens, day), KEY, "m1", WorkClass.BATCH)
    windows = {(g.window, g.anchor_min): g for g in groups}
    assert len(windows) == len(groups) == 5
    assert dict(windows[WindowKind.DAY, 0].dims)[Dimension.SPEND_NANOUSD] == -1
    assert windows[WindowKind.DAY, 60].dims == ((Dimension.SPEND_NANOUSD, 5),)
    assert len({suffix_of("1", group, 0) for group in groups}) == 5
    (rate,) = rates_of(groups).tokens
    assert (rate.amount, rate.anchor_min) == (9, 20_760)


def test_public_names_of_limits():
    assert limit_name(Dimension.SPEND_NANOUSD, WindowKind.DAY) == "spend_per_day"
    assert limit_name(Dimension.REQUESTS, WindowKind.MINUTE) == "requests_per_minute"
    assert limit_name(Dimension.CONCURRENCY, WindowKind.NOW) == "concurrency"


def test_edges_of_an_instant_do_not_depend_on_what_was_asked_before():
    now = int(datetime(2026, 5, 5, 12, tzinfo=UTC).timestamp() * 1000)
    first = window_edges(WindowKind.DAY, "Asia/Tokyo", now)
    window_edges(WindowKind.DAY, "Asia/Tokyo", now + 40 * DAY)
    assert window_edges(WindowKind.DAY, "Asia/Tokyo", now) == first

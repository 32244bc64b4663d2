"""Windows partition time: every instant has one window, in every zone, over every clock change."""

from calendar import monthrange
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

from hypothesis import given, settings
from hypothesis import strategies as st

from routing.contracts.enums import WindowKind
from routing.decision.limits import window_edges

ZONES = sorted(available_timezones())
KINDS = [kind for kind in WindowKind if kind is not WindowKind.NOW]
DAY_MIN = 1_440
ANCHORS = {WindowKind.DAY: DAY_MIN, WindowKind.WEEK: 7 * DAY_MIN, WindowKind.MONTH: 31 * DAY_MIN}
LONGEST_JUMP = timedelta(hours=2)
FROM_MS, UNTIL_MS = 1_577_836_800_000, 1_956_528_000_000  # 2020 to 2031


@given(
    st.sampled_from(KINDS), st.sampled_from(ZONES), st.integers(FROM_MS, UNTIL_MS), st.booleans()
)
@settings(max_examples=400, deadline=None, derandomize=True)
def test_every_instant_lies_in_one_window_and_windows_touch(
    kind: WindowKind, zone: str, now_ms: int, is_at_edge: bool
) -> None:
    if is_at_edge:
        now_ms = window_edges(kind, zone, now_ms)[1]
    start, end, next_end = window_edges(kind, zone, now_ms)
    assert start <= now_ms < end < next_end
    assert window_edges(kind, zone, start)[:2] == (start, end)
    assert window_edges(kind, zone, end - 1)[:2] == (start, end)
    assert window_edges(kind, zone, end)[:2] == (end, next_end)
    assert window_edges(kind, zone, start - 1)[1] == start


@st.composite
def anchored(draw: st.DrawFn) -> tuple[WindowKind, int]:
    kind = draw(st.sampled_from(list(ANCHORS)))
    return kind, draw(st.integers(1, ANCHORS[kind] - 1))


@given(anchored(), st.sampled_from(ZONES), st.integers(FROM_MS, UNTIL_MS), st.booleans())
@settings(max_examples=400, deadline=None, derandomize=True)
def test_anchored_windows_touch_and_begin_at_their_anchor(
    window: tuple[WindowKind, int], zone: str, now_ms: int, is_at_edge: bool
) -> None:
    kind, anchor = window
    if is_at_edge:
        now_ms = window_edges(kind, zone, now_ms, anchor)[1]
    start, end, next_end = window_edges(kind, zone, now_ms, anchor)
    assert start <= now_ms < end < next_end
    for inside in (start, (start + end) // 2, end - 1):
        assert window_edges(kind, zone, inside, anchor) == (start, end, next_end)
    assert window_edges(kind, zone, end, anchor)[:2] == (end, next_end)
    assert window_edges(kind, zone, start - 1, anchor)[1] == start
    for edge in (start, end, next_end):
        assert_at_anchor(kind, anchor, edge, ZoneInfo(zone))


def assert_at_anchor(kind: WindowKind, anchor: int, edge_ms: int, zone: ZoneInfo) -> None:
    """The clock on the wall shows the anchor, or what it shows in its place when it jumps."""
    local = datetime.fromtimestamp(edge_ms / 1000, zone).replace(tzinfo=None)
    days, minutes = divmod(anchor, DAY_MIN)
    first = local.replace(hour=0, minute=0)
    if kind is WindowKind.WEEK:
        first += timedelta(days=days - first.weekday())
    elif kind is WindowKind.MONTH:
        last = monthrange(first.year, first.month)[1]
        first = first.replace(day=min(days + 1, last))
    wanted = first + timedelta(minutes=minutes)
    utc = wanted.replace(tzinfo=zone).astimezone(UTC)
    exists = utc.astimezone(zone).replace(tzinfo=None) == wanted
    if exists:
        assert local == wanted
        assert edge_ms == utc.timestamp() * 1000  # of two, the first
    else:
        assert timedelta(0) < local - wanted <= LONGEST_JUMP

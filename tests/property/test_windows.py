"""Windows partition time: every instant has one window, in every zone, over every clock change."""

from zoneinfo import available_timezones

from hypothesis import given, settings
from hypothesis import strategies as st

from routing.contracts.enums import WindowKind
from routing.decision.limits import window_edges

ZONES = sorted(available_timezones())
KINDS = [kind for kind in WindowKind if kind is not WindowKind.NOW]
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

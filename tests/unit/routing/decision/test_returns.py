from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.contracts.enums import WindowKind
from routing.decision.limits import window_edges
from routing.decision.returns import LINES_MAX, PRIOR_S, WINDOWS_AHEAD, Promises

MINUTE = (WindowKind.MINUTE, "UTC", 0)
NAME = ("acme", "requests")
END_MS = 1_800_000_000_000


@given(
    limit=st.integers(1, 20),
    needs=st.lists(st.integers(1, 20), max_size=60),
    kind=st.sampled_from([WindowKind.MINUTE, WindowKind.DAY, WindowKind.MONTH]),
)
def test_no_window_is_promised_more_than_its_limit(
    limit: int, needs: list[int], kind: WindowKind
) -> None:
    promises, edges = Promises(), (kind, "Europe/Berlin", 0)
    end_ms = window_edges(kind, "Europe/Berlin", END_MS)[1]
    told: Counter[int] = Counter()
    for need in needs:
        if need > limit:
            continue
        at_ms = promises.in_window(NAME, need, limit, edges, end_ms)
        assert at_ms >= end_ms
        assert window_edges(kind, "Europe/Berlin", at_ms)[0] == at_ms
        told[at_ms] += need
    promised = sorted(told)[:WINDOWS_AHEAD]
    assert all(told[at_ms] <= limit for at_ms in promised)
    assert len(told) <= WINDOWS_AHEAD + 1


def test_gateways_share_the_promises() -> None:
    both = [Promises(), Promises()]
    told: Counter[int] = Counter()
    for promises in both:
        promises.gateways = 2
        for _ in range(6):
            told[promises.in_window(NAME, 1, 10, MINUTE, END_MS)] += 1
    assert told == {END_MS: 10, END_MS + 60_000: 2}


def test_the_first_caller_is_always_told_the_next_window() -> None:
    promises = Promises()
    promises.gateways = 50
    assert promises.in_window(NAME, 1, 1, MINUTE, END_MS) == END_MS


def test_a_new_window_starts_over_but_keeps_what_was_promised_in_it() -> None:
    promises = Promises()
    for _ in range(3):
        promises.in_window(NAME, 1, 2, MINUTE, END_MS)
    # The third was told the window after; in that minute's own line it comes first.
    assert promises.in_window(NAME, 1, 2, MINUTE, END_MS + 60_000) == END_MS + 60_000
    assert promises.in_window(NAME, 1, 2, MINUTE, END_MS + 60_000) == END_MS + 120_000
    assert promises.in_window(NAME, 1, 2, MINUTE, END_MS + 600_000) == END_MS + 600_000


def test_callers_of_a_gauge_come_one_after_another_at_the_rate_that_it_frees_room() -> None:
    promises = Promises()
    for _ in range(50):
        promises.ended("acme", 2.0)
    running_s = promises.running_s("acme")
    assert running_s == pytest.approx(2.0, rel=0.05)
    told = [promises.in_turn(NAME, 1, 4, "acme", END_MS) for _ in range(5)]
    assert told[0] - END_MS == pytest.approx(running_s * 1000, abs=2)
    gaps = [after - before for before, after in pairwise(told)]
    assert gaps == pytest.approx([running_s * 1000 / 4] * 4, abs=2)
    # An hour later nobody waits.
    later_ms = END_MS + 3_600_000
    at_ms = promises.in_turn(NAME, 1, 4, "acme", later_ms)
    assert at_ms - later_ms == pytest.approx(running_s * 1000, abs=2)


def test_a_durations_spread_makes_the_wait_longer() -> None:
    steady, uneven = Promises(), Promises()
    for number in range(200):
        steady.ended("acme", 2.0)
        uneven.ended("acme", 1.0 if number % 2 else 3.0)
    assert uneven.running_s("acme") > steady.running_s("acme") + 1.0
    assert Promises().running_s("acme") == PRIOR_S


def test_a_flood_cannot_push_the_line_out_of_sight() -> None:
    promises = Promises()
    for _ in range(5_000):
        last_ms = promises.in_window(NAME, 1, 1, MINUTE, END_MS)
        turn_ms = promises.in_turn(("g",), 1, 1, "acme", END_MS)
    assert last_ms <= END_MS + WINDOWS_AHEAD * 60_000
    assert turn_ms <= END_MS + 122_000


def test_lines_are_bounded() -> None:
    promises = Promises()
    for number in range(LINES_MAX + 10):
        promises.in_window((str(number),), 1, 1, MINUTE, END_MS)
    assert len(promises._lines) <= LINES_MAX

"""A caller may ask so often in a window, whoever else asks."""

from console.web.pace import MAX_CALLERS, Pace


def test_a_caller_is_held_until_its_window_ends_and_others_are_not():
    pace = Pace(most=2, window_s=10)
    assert [pace.wait_s(1, now_s) for now_s in (100.0, 101.0)] == [0.0, 0.0]
    assert pace.wait_s(1, 104.0) == 6.0
    assert pace.wait_s(2, 104.0) == 0.0
    assert pace.wait_s(1, 110.0) == 0.0


def test_memory_is_bounded_and_the_oldest_window_goes_first():
    pace = Pace(most=1, window_s=10)
    pace.wait_s(0, 0.0)
    for caller in range(1, MAX_CALLERS):
        pace.wait_s(caller, 1.0)
    assert pace.wait_s(0, 2.0) > 0
    pace.wait_s(MAX_CALLERS, 2.0)  # one more caller than fit: that of the oldest window goes
    assert pace.wait_s(0, 3.0) == 0.0
    assert pace.wait_s(MAX_CALLERS - 1, 3.0) > 0

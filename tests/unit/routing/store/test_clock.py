"""The store's time, learned from its replies."""

from routing.store.clock import WINDOW_MS, StoreClock


class Local:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_local_wall_clock_is_used_until_the_store_speaks():
    local = Local()
    clock = StoreClock(local, 5_000_000)
    local.now_s += 2
    assert clock.now_ms() == 5_002_000


def test_quickest_reply_sets_the_offset_and_slow_ones_do_not_spoil_it():
    local = Local()
    clock = StoreClock(local, 0)
    clock.reset(9_000_000)
    clock.observe(9_000_400)  # read 400 ms later by the store than we thought
    assert clock.now_ms() == 9_000_400
    clock.observe(9_000_100)  # this one was 300 ms on its way
    assert clock.now_ms() == 9_000_400


def test_store_clock_that_steps_back_is_followed_within_two_windows():
    local = Local()
    clock = StoreClock(local, 0)
    clock.reset(9_000_000)
    for _ in range(3):
        local.now_s += WINDOW_MS / 1000
        behind = 8_900_000 + int(local.now_s * 1000) - 1_000_000
        clock.observe(behind)
    assert clock.now_ms() == behind


def test_another_server_starts_over():
    local = Local()
    clock = StoreClock(local, 0)
    clock.reset(9_000_000)
    clock.reset(1_000)
    assert clock.now_ms() == 1_000

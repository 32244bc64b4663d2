"""Windows: folding deltas, frames once, counters over a restart."""

import itertools

import pytest

from routing.contracts.slices import SliceDelta
from telemetry.stats import windows
from telemetry.stats.windows import Counter, Seen, SliceKey, SliceSum, Tally


def delta(**fields: object) -> SliceDelta:
    return SliceDelta("1", "m", "p", "standard", **fields)  # type: ignore[arg-type]


def test_what_leaves_the_window_is_what_entered_it() -> None:
    first = delta(requests=2, refused={"rate_limited": 1}, spend_nanousd=5, ttft_s=[(3, 2)])
    second = delta(requests=1, ttft_s=[(3, 1), (4, 1)], output_tokens=9)
    total = SliceSum()
    total.add(first)
    total.add(second)
    total.subtract(first)
    only_second = SliceSum()
    only_second.add(second)
    assert total == only_second
    total.subtract(second)
    assert total.is_empty


def test_sums_survive_the_store() -> None:
    total = SliceSum()
    total.add(delta(requests=2, refused={"x": 1}, ttft_s=[(-345, 2)], e2e_s=[(1, 1)]))
    assert windows.decode_sum(windows.encode_sum(total)) == total
    key = SliceKey("1", 'a"/:~', "p", "batch")
    assert windows.decode_key(windows.encode_key(key)) == key


def test_new_sums_share_nothing() -> None:
    one, two = SliceSum(), SliceSum()
    one.add(delta(ttft_s=[(1, 1)]))
    assert two.ttft_s == {}


def test_a_full_window_merges_newcomers_into_their_tenants_other() -> None:
    key = SliceKey("7", "m", "p", "standard")
    full = windows.SLICES_MAX
    assert windows.place(key, is_known=False, known_count=full - 1) == key
    assert windows.place(key, is_known=True, known_count=full) == key
    assert windows.place(key, is_known=False, known_count=full) == ("7", "other", "other", "other")


def test_each_frame_counts_once_in_any_order() -> None:
    for order in itertools.permutations([0, 1, 2, 5]):
        seen, folded = Seen(), []
        for seq in order + order:
            after = windows.see(seen, seq, 1)
            if after is not None:
                folded.append(seq)
                seen = after
        assert sorted(folded) == [0, 1, 2, 5], order


def test_a_frame_too_old_to_know_is_not_folded_again() -> None:
    seen = windows.see(windows.see(Seen(), 1, 1), 200, 1)  # type: ignore[arg-type]
    assert seen is not None
    assert windows.see(seen, 1, 1) is None
    assert windows.see(seen, 199, 1) is not None


@pytest.mark.parametrize(
    ("before", "after", "rate"),
    [
        (None, Counter(500, 10), None),
        (Counter(100, 0), Counter(150, 10), 5.0),
        (Counter(100_000, 0), Counter(500, 10), None),
        (Counter(100, 0, run=1.0), Counter(900, 10, run=2.0), None),
        (Counter(100, 10), Counter(150, 10), None),
    ],
)
def test_rate_is_unknown_over_a_restart(
    before: Counter | None, after: Counter, rate: float | None
) -> None:
    assert windows.rate_per_s(before, after) == rate


def test_mean_of_a_period_holds_over_a_restart() -> None:
    first, second, restarted = Tally(10, 5), Tally(18, 9), Tally(9, 2)
    assert windows.mean_s(None, first) is None
    assert windows.mean_s(first, second) == 2.0
    assert windows.mean_s(second, restarted) == 4.5
    assert windows.mean_s(restarted, restarted) is None

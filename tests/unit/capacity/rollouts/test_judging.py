"""Is a new replica worse: seeded samples of known shape, and the edges."""

import math
import random

import pytest

from capacity.rollouts.rules.judging import Bar, Finding, judge, summed
from telemetry.stats.compare import Z_99, Z_999, comparable, least_share, like_ratio, slower_z
from telemetry.stats.sketch import GAMMA, index_of
from telemetry.stats.tries import Tries

LOG_SD = 0.6  # of times to first output


OCTAVE = 10  # of a prompt of 512 to 1,023 tokens


def tries(
    requests: int, failed: int = 0, median_s: float = 0.1, seed: int = 1, streams: int | None = None
) -> Tries:
    found, chance = Tries(requests, failed), random.Random(seed)
    for _ in range(requests - failed if streams is None else streams):
        bin_ = index_of(math.exp(chance.gauss(math.log(median_s), LOG_SD)))
        found.add_times(OCTAVE, [(bin_, 1)])
    return found


def mixed(shares: dict[int, int], slower: float = 1.0, seed: int = 1) -> Tries:
    """So many streams of each octave, whose time grows with the prompt: 1 ms for each 8 tokens."""
    found, chance = Tries(sum(shares.values())), random.Random(seed)
    for octave, count in shares.items():
        for _ in range(count):
            median_s = slower * 0.02 + slower * 2**octave / 8000
            seconds = math.exp(chance.gauss(math.log(median_s), LOG_SD / 2))
            found.add_times(octave, [(index_of(seconds), 1)])
    return found


def finding(new: Tries, old: Tries, bar: Bar | None = None) -> Finding:
    return judge((new, new), (old, old), bar or Bar()).finding


def test_equals_fit_and_one_in_a_hundred_at_most_does_not() -> None:
    found = [
        finding(tries(60, median_s=0.125, seed=at), tries(200, seed=at + 10_000))
        for at in range(400)
    ]  # at the very edge of what is allowed: 1.25 times
    assert found.count(Finding.SLOWER) <= 12
    assert set(found) <= {Finding.FIT, Finding.SLOWER}


def test_one_of_twice_the_time_is_found_with_fifty_requests() -> None:
    found = [
        finding(tries(50, median_s=0.2, seed=at), tries(50, seed=at + 10_000)) for at in range(100)
    ]
    assert found.count(Finding.SLOWER) >= 90


def test_a_faster_one_fits() -> None:
    assert finding(tries(100, median_s=0.05), tries(100, seed=2)) is Finding.FIT


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        ((20, 5), (20, 0), Finding.FAILING),  # five of the first twenty: at once
        ((20, 4), (20, 0), Finding.TOO_FEW),
        ((5, 5), (0, 0), Finding.FAILING),  # also where the old ones had none
        ((100, 6), (100, 6), Finding.FIT),  # whatever breaks both breaks both
        ((100, 50), (100, 50), Finding.FIT),
        ((100, 60), (100, 30), Finding.FAILING),
        ((100, 2), (100, 0), Finding.FIT),
        ((1000, 60), (1000, 0), Finding.FAILING),
        ((49, 0), (500, 0), Finding.TOO_FEW),
        ((500, 0), (49, 0), Finding.TOO_FEW),
        ((50, 0), (50, 0), Finding.FIT),
    ],
)
def test_errors_and_numbers_decide(new, old, expected) -> None:
    assert finding(tries(*new), tries(*old, seed=2)) is expected


def test_one_that_gateways_gave_up_on_fails_however_few_of_its_requests_did() -> None:
    found = judge((tries(500, 5),) * 2, (tries(500, seed=2),) * 2, Bar(), "failing")
    assert found.finding is Finding.FAILING
    assert found.words.startswith("gateways stopped sending it work, it is failing: it failed 5 of")


LONG, SHORT = {13: 120, 8: 30}, {13: 60, 8: 400}


def test_one_that_got_the_long_prompts_is_not_blamed_for_them() -> None:
    found = [
        judge((mixed(LONG, seed=at),) * 2, (mixed(SHORT, seed=at + 500),) * 2, Bar())
        for at in range(60)
    ]
    assert sum(one.finding is Finding.SLOWER for one in found) <= 2
    assert all(one.new.ttft_p50_s > 2 * one.old.ttft_p50_s for one in found)  # of all sizes
    assert "times for prompts of like size" in found[0].words


def test_a_slower_one_is_found_behind_the_short_prompts_that_it_got() -> None:
    found = [
        judge((mixed(SHORT, 2.0, seed=at),) * 2, (mixed(LONG, seed=at + 500),) * 2, Bar())
        for at in range(60)
    ]
    assert sum(one.finding is Finding.SLOWER for one in found) >= 58
    assert all(one.new.ttft_p50_s < one.old.ttft_p50_s for one in found)


def test_prompts_of_unlike_sizes_alone_are_too_few_to_judge() -> None:
    found = judge((mixed({13: 100}),) * 2, (mixed({8: 400, 13: 3}),) * 2, Bar())
    assert found.finding is Finding.TOO_FEW
    assert found.words == (
        "100 first outputs of it and 3 of the old ones had prompts of like size, 25 of each are"
        " needed"
    )


def test_words_hold_both_sides_figures() -> None:
    failing = judge((tries(20, 14),) * 2, (tries(40, 1),) * 2, Bar())
    assert "failed 14 of 20 requests (70.0%), the old ones 1 of 40 (2.5%)" in failing.words
    assert "at most 2 points above" in failing.words
    slow = judge((tries(80, median_s=0.4),) * 2, (tries(80, seed=2),) * 2, Bar())
    assert "its TTFT p50 is" in slow.words
    assert "above the 1.25 times" in slow.words
    assert slow.new.ttft_p50_s == pytest.approx(0.4, rel=0.2)
    few = judge((tries(3),) * 2, (tries(40),) * 2, Bar())
    assert few.words == "3 requests reached it and 40 the old ones, 50 of each are needed"


def test_times_come_from_the_second_half_and_errors_from_all_of_it() -> None:
    few_of_late = tries(100), tries(20)
    found = judge(few_of_late, (tries(100), tries(100)), Bar())
    assert found.finding is Finding.TOO_FEW
    assert found.words.startswith("20 first outputs came from it and 100 from the old ones of late")
    cold_then_well = tries(100, median_s=2.0), tries(60)
    assert judge(cold_then_well, (tries(100), tries(100)), Bar()).finding is Finding.FIT
    failed_early = tries(60, 12), tries(50)
    assert judge(failed_early, (tries(100), tries(100)), Bar()).finding is Finding.FAILING


def test_without_streams_errors_alone_decide() -> None:
    answers = tries(100, streams=0)
    found = judge((answers, answers), (answers, answers), Bar())
    assert found.finding is Finding.FIT
    assert "no times to first output" in found.words


def test_bounds_of_the_tests() -> None:
    assert least_share(0, 0, Z_99) == least_share(0, 50, Z_99) == 0.0
    assert 0.09 < least_share(5, 20, Z_99) < 0.10  # Wilson by hand: 0.0934
    assert least_share(5, 20, Z_999) < least_share(5, 20, Z_99)
    assert slower_z({}, {4: {1: 3}}, 1.0) is None
    assert slower_z({4: {5: 10}}, {4: {5: 10}}, 1.0) == 0.0  # all tied: no order at all
    assert slower_z({4: {9: 10}}, {4: {5: 10}}, 1.0) == pytest.approx(
        4.359, abs=0.01
    )  # all above, tied
    one, other = (
        slower_z({4: {9: 3, 5: 4}}, {4: {5: 6, 7: 2}}, 1.0),
        slower_z({4: {5: 6, 7: 2}}, {4: {9: 3, 5: 4}}, 1.0),
    )
    assert one is not None
    assert other is not None
    assert one == pytest.approx(-other)
    strata = slower_z({4: {9: 10}, 5: {9: 10}}, {4: {5: 10}, 5: {5: 10}}, 1.0)
    assert strata == pytest.approx(4.359 * math.sqrt(2), abs=0.02)  # two strata that say the same
    assert slower_z({4: {9: 10}}, {5: {5: 10}}, 1.0) is None  # nothing alike
    assert like_ratio({4: {9: 10}}, {5: {5: 10}}) is None
    assert like_ratio({4: {9: 10}}, {4: {5: 10}}) == pytest.approx(GAMMA**4)
    assert comparable({4: {9: 10}, 6: {1: 3}}, {4: {5: 7}, 5: {5: 2}}) == (10, 7)


def test_sums_of_several_replicas_are_one() -> None:
    found = summed({"a": tries(3, 1), "b": tries(5), "c": tries(7)}, ["a", "b", "gone"])
    assert (found.requests, found.failed) == (8, 1)

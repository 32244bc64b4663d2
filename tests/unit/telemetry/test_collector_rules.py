"""Exposition text to samples, samples to states."""

import random
from pathlib import Path

import pytest

from routing.contracts.enums import ReplicaHealth
from telemetry.collector.rules import (
    ARRIVALS_MAX,
    STALE_AFTER_S,
    EngineSample,
    Outcome,
    advance,
    first_track,
    parse_exposition,
)

SAMPLE = Path(__file__).parents[2] / "data" / "vllm-0.32-metrics.txt"


def test_a_real_vllm_page_is_read() -> None:
    sample = parse_exposition(SAMPLE.read_bytes(), at_s=5.0)
    assert sample is not None
    assert (sample.running, sample.waiting, sample.kv_usage_ratio) == (0, 0, 0.0)
    assert (sample.prompt_tokens, sample.prefix_hits) == (4047.0, 1152.0)
    assert (sample.kv_capacity_tokens, sample.block_size_tokens) == (2_097_152, 128)
    assert sample.run == 1.79596252399e09
    assert sample.ttft_count
    assert sample.ttft_sum_s
    assert sample.at_s == 5.0


def test_names_of_older_engines_are_accepted_and_newer_ones_win() -> None:
    old = parse_exposition(b'vllm:gpu_cache_usage_perc{engine="0"} 0.25\n', 0)
    assert old is not None
    assert old.kv_usage_ratio == 0.25
    for page in (
        b"vllm:gpu_cache_usage_perc 0.25\nvllm:kv_cache_usage_perc 0.5\n",
        b"vllm:kv_cache_usage_perc 0.5\nvllm:gpu_cache_usage_perc 0.25\n",
    ):
        both = parse_exposition(page, 0)
        assert both is not None
        assert both.kv_usage_ratio == 0.5


def test_engines_of_one_process_add_up_and_share_occupancy() -> None:
    sample = parse_exposition(
        b'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 4\n'
        b'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.4\n',
        0,
    )
    assert sample is not None
    assert sample.running == 7
    assert sample.kv_usage_ratio == pytest.approx(0.3)


def test_braces_and_quotes_inside_labels_do_not_end_them() -> None:
    sample = parse_exposition(
        rb'vllm:num_requests_running{model_name="a}\" b{c",engine="0"} 2' + b"\n", 0
    )
    assert sample is not None
    assert sample.running == 2


def test_what_cannot_be_read_is_unknown_never_zero() -> None:
    sample = parse_exposition(
        b"vllm:num_requests_running 1\nvllm:num_requests_waiting NaN\n"
        b"vllm:kv_cache_usage_perc +Inf\nvllm:prompt_tokens_total abc\n",
        0,
    )
    assert sample is not None
    assert sample.running == 1
    assert (sample.waiting, sample.kv_usage_ratio, sample.prompt_tokens) == (None, None, None)


def test_a_page_of_something_else_is_no_engine() -> None:
    assert parse_exposition(b"<html>hello</html>", 0) is None
    assert parse_exposition(b"process_start_time_seconds 5\n", 0) is None


def sample(at_s: float, **fields: float) -> Outcome:
    return Outcome(sample=EngineSample(at_s=at_s, running=1, **fields))  # type: ignore[arg-type]


def test_an_unanswered_scrape_keeps_values_until_three_periods_passed() -> None:
    track = advance(first_track("r", "p", 0), sample(0.5, kv_usage_ratio=0.9), 0.5, 500)
    late = Outcome(reason="no answer")
    kept = advance(track, late, 0.5 + STALE_AFTER_S, 3500)
    assert (kept.state.health, kept.state.at_ms) == (ReplicaHealth.OK, 500)
    stale = advance(kept, late, 0.6 + STALE_AFTER_S, 3600)
    assert stale.state.health is ReplicaHealth.STALE
    assert (stale.state.kv_usage_ratio, stale.state.at_ms) == (0.9, 500)


def test_a_replica_that_never_answered_is_stale_and_unknown() -> None:
    track = advance(first_track("r", "p", 0), Outcome(reason="no answer"), 1, 1000)
    assert track.state.health is ReplicaHealth.STALE
    assert (track.state.at_ms, track.state.kv_usage_ratio) == (0, None)


def test_a_refused_connection_is_lost_at_once_and_its_figures_unknown() -> None:
    track = advance(first_track("r", "p", 0), sample(0.5, kv_usage_ratio=0.9), 0.5, 500)
    lost = advance(track, Outcome(is_gone=True, reason="connection refused"), 1.5, 1500)
    assert lost.state.health is ReplicaHealth.LOST
    assert lost.state.kv_usage_ratio is None
    back = advance(lost, sample(2.5, kv_usage_ratio=0.1), 2.5, 2500)
    assert (back.state.health, back.state.kv_usage_ratio) == (ReplicaHealth.OK, 0.1)


def test_rates_begin_anew_after_an_engine_restart() -> None:
    track = first_track("r", "p", 0)
    rates = []
    for second, tokens in enumerate([100_000, 100_050, 500, 560]):
        track = advance(track, sample(second, generation_tokens=tokens), second, second * 1000)
        rates.append(track.state.generation_tokens_per_s)
    assert rates == [None, 50.0, None, 60.0]


def test_prefix_hit_ratio_is_of_the_interval_and_unknown_without_queries() -> None:
    track = first_track("r", "p", 0)
    ratios = []
    for second, (hits, queries) in enumerate([(90, 100), (91, 110), (91, 110)]):
        outcome = sample(second, prefix_hits=hits, prefix_queries=queries)
        track = advance(track, outcome, second, second * 1000)
        ratios.append(track.state.prefix_hit_ratio)
    assert ratios == [None, 0.1, None]


def served_first_come(seed: int, aborted_one_in: int = 0) -> list[tuple[int, float, float | None]]:
    """(requests waiting, the oldest one's true age, age as told) each second of a random queue."""
    draw = random.Random(seed)
    waiting: list[float] = []
    running: list[float] = []  # when each ends
    ended, track, told = 0, first_track("r0", "p", 0.0), []
    for tick in range(1, 600):
        now_s = tick / 4
        for end_s in [one for one in running if one <= now_s]:
            running.remove(end_s)
            ended += 1
        rate = 3 if tick // 100 % 2 else 0.5  # the queue grows, then drains
        waiting += [now_s] * sum(draw.random() < rate / 8 for _ in range(8))
        if aborted_one_in and waiting and draw.random() < 1 / aborted_one_in:
            waiting.pop(draw.randrange(len(waiting)))
        while waiting and len(running) < 4:
            waiting.pop(0)
            running.append(now_s + draw.uniform(0.5, 4))
        if tick % 4:
            continue
        sample = EngineSample(
            now_s, running=len(running), waiting=len(waiting), queue_count=float(ended), run=1.0
        )
        track = advance(track, Outcome(sample), now_s, int(now_s * 1000))
        true_s = now_s - waiting[0] if waiting else 0.0
        told.append((len(waiting), true_s, track.state.queue_age_s))
    return told


@pytest.mark.parametrize("seed", range(5))
def test_the_age_of_the_oldest_waiting_request_is_known_to_an_interval(seed: int) -> None:
    told = served_first_come(seed)
    assert max(true_s for _, true_s, _ in told) > 10
    assert {said for waiting, _, said in told if not waiting} == {0.0}
    for _, true_s, said in told:
        assert said is not None
        assert true_s - 1 - 1e-9 <= said <= true_s + 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_requests_that_leave_the_queue_unserved_are_forgotten_when_it_empties(seed: int) -> None:
    told = served_first_come(seed, aborted_one_in=6)
    assert any(true_s > 5 for _, true_s, _ in told)
    for _, true_s, said in told:
        assert said is not None
        assert said >= true_s - 1 - 1e-9  # it may look older, never younger
    assert {said for waiting, _, said in told if not waiting} == {0.0}


def test_a_queue_is_unknown_where_the_page_does_not_say_and_starts_over_with_the_engine() -> None:
    track = first_track("r0", "p", 0.0)
    for at_s, run, waiting, said in (
        (1, 1, 2, 0.0),
        (4, 1, 2, 3.0),
        (5, 2, 2, 0.0),
        (7, 2, 0, 0.0),
    ):
        sample = EngineSample(
            float(at_s), running=1, waiting=waiting, queue_count=5.0, run=float(run)
        )
        track = advance(track, Outcome(sample), float(at_s), at_s * 1000)
        assert track.state.queue_age_s == said
    silent = EngineSample(8.0, running=1, waiting=3, run=2.0)
    track = advance(track, Outcome(silent), 8.0, 8000)
    assert track.state.queue_age_s is None


def test_a_queue_that_never_empties_is_remembered_within_its_bound() -> None:
    track = first_track("r0", "p", 0.0)
    for at_s in range(1, 2 * ARRIVALS_MAX):
        sample = EngineSample(float(at_s), running=1, waiting=at_s, queue_count=0.0, run=1.0)
        track = advance(track, Outcome(sample), float(at_s), at_s * 1000)
        assert len(track.arrivals) <= ARRIVALS_MAX
    assert track.state.queue_age_s == 2 * ARRIVALS_MAX - 2

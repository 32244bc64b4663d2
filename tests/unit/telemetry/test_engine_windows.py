"""Scrapes to windows: deltas, and which windows say nothing of how long a step takes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capacity.simulation.calibration import Window
from telemetry.collector.rules import EngineSample, parse_exposition
from telemetry.collector.windows import Closed, Filling, fold

PAGE = Path(__file__).parents[2] / "data" / "vllm-0.32-metrics.txt"


def sample(at_s: float, **changes: Any) -> EngineSample:
    """An engine that runs 40 steps a second: 80 prompt tokens and 160 answered, 25 ms apart."""
    steps = 40.0 * at_s
    base = EngineSample(
        at_s=at_s,
        running=4,
        kv_usage_ratio=0.25,
        kv_capacity_tokens=8000,
        prompt_tokens=100 * at_s,
        computed_tokens=80 * at_s,
        generation_tokens=160 * at_s,
        preemptions=1.0,
        ttft_count=2 * at_s,
        steps=steps,
        itl_sum_s=0.025 * 156 * at_s,
        itl_count=156 * at_s,
        run=7.0,
    )
    return replace(base, **changes)


def folded(*samples: EngineSample) -> Closed | None:
    filling: Filling | None = None
    closed = None
    for one in samples:
        filling, closed = fold(filling, one, "p-0", 123)
    return closed


def test_a_window_holds_what_happened_in_it_and_the_mean_kv_at_work() -> None:
    idle = sample(3.0, running=0, kv_usage_ratio=0.0)
    fuller = sample(4.0, kv_usage_ratio=0.75)
    closed = folded(sample(1.0), sample(2.0), idle, fuller, sample(6.0))
    assert closed is not None
    window = closed.window
    assert window is not None
    assert (window.replica_id, window.at_ms, window.steps) == ("p-0", 123, 200)
    assert window.kv_tokens == pytest.approx(8000 * (0.25 + 0.25 + 0.75 + 0.25) / 4)
    assert window.itl_s == pytest.approx(0.025)
    found = Window.of_engine(window)
    assert found.prefill_per_step == pytest.approx(2.0)
    assert found.decodes_per_step == pytest.approx(4.0)
    assert found.prompt_tokens == pytest.approx(50.0)
    assert found.is_usable


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (sample(6.0, run=8.0), "restarted"),
        (sample(6.0, steps=3.0), "restarted"),  # a counter fell
        (sample(6.0, preemptions=2.0), "preempted"),
        (sample(6.0, steps=59.0), "few_steps"),  # 19
        (sample(6.0, itl_count=156.0, itl_sum_s=4.0), "few_steps"),  # no gap was seen
    ],
)
def test_windows_that_say_nothing_are_only_counted(last: EngineSample, why: str) -> None:
    assert folded(sample(1.0), last) == Closed(skipped=why)


def test_idle_unknown_and_torn_windows_are_nothing() -> None:
    assert folded(sample(1.0), sample(4.9)) is None  # not full
    assert folded(sample(1.0), sample(6.0, steps=40.0)) is None  # nothing ran
    assert folded(sample(1.0, steps=None), sample(6.0)) is None  # the engine does not say
    assert folded(sample(1.0), sample(12.0)) is None  # scrapes failed in between
    # The next window begins where the torn one ended.
    again = folded(sample(1.0), sample(12.0), sample(17.0))
    assert again is not None
    assert again.window is not None
    assert again.window.steps == 200


def test_a_real_page_says_all_that_a_window_needs() -> None:
    found = parse_exposition(PAGE.read_bytes(), 1.0)
    assert found is not None
    assert (found.steps, found.computed_tokens) == (1334.0, 2895.0)
    assert found.itl_count == 7340.0
    assert found.itl_sum_s == pytest.approx(25.576, abs=1e-3)
    # The steps' own sum of tokens is what was computed and what was answered.
    assert found.computed_tokens + (found.generation_tokens or 0) == pytest.approx(10275.0)


def test_an_engine_of_old_names_says_what_it_computed_by_what_it_did_not_find() -> None:
    page = (
        b"vllm:num_requests_running 1\nvllm:prompt_tokens_total 100\n"
        b"vllm:gpu_prefix_cache_hits_total 30\nvllm:gpu_prefix_cache_queries_total 100\n"
        b"vllm:time_per_output_token_seconds_sum 2.5\nvllm:time_per_output_token_seconds_count 10\n"
    )
    found = parse_exposition(page, 1.0)
    assert found is not None
    assert (found.computed_tokens, found.itl_sum_s, found.itl_count) == (70.0, 2.5, 10.0)

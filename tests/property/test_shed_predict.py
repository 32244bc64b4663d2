"""Who is turned away, what a wait is predicted to be, and what an endpoint holds."""

import math
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.contracts.enums import ReplicaHealth
from routing.decision.breaker import Breaker
from routing.decision.filters import Candidate, Need, Report
from routing.decision.predict import (
    Ahead,
    StepModel,
    most_with_affinity,
    predicted_ttft_s,
    scorer,
    ttft_s,
)
from routing.decision.residency import Residency, entries_for
from routing.decision.select import Group, select
from routing.decision.shed import (
    Pressure,
    Value,
    ceiling,
    first_to_go,
    is_shed,
    retry_after_s,
    saturation,
)

MODEL = StepModel(7.47e-3, 14.4e-6, 24.5e-9, 2.25e-9, 8192)
counts = st.integers(0, 200_000)


@given(st.integers(2, 6), st.floats(0, 3))
def test_a_class_is_never_shed_before_one_below_it(classes: int, pressure: float) -> None:
    shed = [is_shed(rank, classes, pressure) for rank in range(classes)]
    assert shed == sorted(shed)
    assert (ceiling(0, classes), ceiling(classes - 1, classes)) == (1.0, pytest.approx(0.7))


def test_saturation_is_the_mean_of_the_worse_of_queue_and_kv() -> None:
    assert saturation([Pressure(1.0, 0.45), Pressure(0.0, 0.9)], 2.0) == pytest.approx(0.75)
    assert saturation([], 2.0) == math.inf


@given(st.floats(0, 100), st.floats(0.01, 10), st.floats(0, 2), st.floats(0, 0.999))
def test_retry_after_is_bounded_and_jitters_upwards(
    backlog_s: float, target_s: float, load: float, draw: float
) -> None:
    exact = retry_after_s(backlog_s, target_s, load, 0.0)
    assert exact <= retry_after_s(backlog_s, target_s, load, draw) <= exact * 1.2 <= 36.0
    if load >= 1:
        assert exact == 30.0


def test_retry_after_is_backlog_over_what_drains() -> None:
    assert retry_after_s(5.0, 2.0, 0.75, 0.0) == pytest.approx(12.0)


def test_class_goes_before_progress_and_progress_before_spend() -> None:
    rows = [Value("high", 2), Value("early", 1, 1, 4), Value("late", 1, 3, 4, 50.0)]
    assert [one.request_id for one in first_to_go(rows, 3)] == ["early", "late", "high"]


@given(counts, st.integers(0, 500), st.integers(0, 500_000), st.integers(1, 100_000))
def test_prediction_grows_with_everything_ahead_and_falls_with_the_hit(
    queued: int, decodes: int, context: int, tokens: int
) -> None:
    ahead = Ahead(queued, decodes, context)
    plain = ttft_s(MODEL, ahead, tokens)
    assert plain > 0
    assert ttft_s(MODEL, Ahead(queued + 1000, decodes, context), tokens) >= plain
    assert ttft_s(MODEL, Ahead(queued, decodes + 10, context + 10_000), tokens) >= plain
    assert ttft_s(MODEL, ahead, tokens, tokens // 2) <= plain + 1e-12


def test_prediction_of_an_idle_engine_is_its_one_step() -> None:
    expected = 7.47e-3 + 14.4e-6 * 1000 + 2.25e-9 * 1000 * 500
    assert ttft_s(MODEL, Ahead(), 1000) == pytest.approx(expected)


def candidates(*names: str) -> list[Candidate]:
    found = [Candidate(name, "p", Breaker(name), 100_000, ready_at_s=-1e9) for name in names]
    for one in found:
        one.report = Report(0.0, ReplicaHealth.OK, 0, 0, 0.0, 0)
    return found


def chosen(hits: dict[str, int], ahead: dict[str, Ahead], members: list[Candidate]) -> str:
    score = scorer(
        lambda name: MODEL,
        lambda name: ahead.get(name, Ahead()),
        lambda name: hits.get(name, 0),
        output_q50_tokens=200,
        affinity_most=most_with_affinity(sum(one.in_flight for one in members), len(members)),
    )
    choice = select([Group(1, 1.0, members)], Need("r", 4000, 4200), 0.0, score)
    assert choice is not None
    assert all(predicted_ttft_s(terms) > 0 for _one, terms in choice.compared)
    return choice.candidate.id


def test_cache_draws_until_its_queue_costs_more_than_it_saves() -> None:
    members = candidates("warm", "cold")
    assert chosen({"warm": 3900}, {}, members) == "warm"
    assert chosen({"warm": 3900}, {"warm": Ahead(1000)}, members) == "warm"
    assert chosen({"warm": 3900}, {"warm": Ahead(20_000)}, members) == "cold"


def test_cache_draws_no_more_than_a_quarter_above_the_mean() -> None:
    members = candidates("warm", "cold")
    members[0].in_flight = 3  # of 3: the cap is ceil(1.25 * 1.5) + 1 = 3
    assert most_with_affinity(3, 2) == 3
    assert chosen({"warm": 3900}, {"warm": Ahead(10)}, members) == "cold"


def chain_of(prompt: list[int]) -> list[int]:
    return [hash(tuple(prompt[: n + 1])) for n in range(len(prompt))]


@given(st.lists(st.lists(st.integers(0, 9), max_size=12), max_size=30), st.integers(0, 60))
def test_index_holds_prefixes_only_and_no_more_than_its_entries(
    prompts: list[list[int]], entries: int
) -> None:
    index = Residency(entries)
    for at, prompt in enumerate(prompts):
        chain = chain_of(prompt)
        index.sent(chain)
        assert index.held(chain) == min(len(chain), entries)
        assert 2 * len(index) <= 5 * entries
        assert_newest_are_there(index, prompts[: at + 1], entries)
    index.forget()
    assert len(index) == 0


def assert_newest_are_there(index: Residency, prompts: list[list[int]], entries: int) -> None:
    """Back from the last prompt, each that fits with all after it into 3/4 of the entries."""
    blocks: set[int] = set()
    for prompt in reversed(prompts):
        chain = chain_of(prompt)
        blocks.update(chain)
        if 4 * len(blocks) > 3 * entries:
            return
        assert index.held(chain) == len(chain)


def test_a_full_index_takes_no_more_memory_however_much_goes_through_it() -> None:
    index, entries = Residency(20_000), 20_000
    draw = random.Random(1)

    def fill(times: int) -> int:
        tracemalloc.reset_peak()
        for _ in range(times * entries):
            index.sent([draw.getrandbits(64)])
        return tracemalloc.get_traced_memory()[1]

    tracemalloc.start()
    try:
        full = fill(3)
        assert fill(20) <= 1.05 * full
        assert full / entries < 120
    finally:
        tracemalloc.stop()


def test_index_is_as_large_as_the_cache_it_mirrors() -> None:
    assert entries_for(2_500_000) == 31_250

"""The rollout's state machine, case by case."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capacity.drivers.base import Identity
from capacity.rollouts.rules.judging import Bar, Finding, Judgement
from capacity.rollouts.rules.lanes import (
    CHECK_LIMIT_S,
    LANE_STEPS,
    LaneView,
    Limits,
    Member,
    NewReplica,
    Step,
    Verdict,
    advance,
    checked,
    left_s,
    misfit,
    next_to_replace,
    pause_is_due,
    progress_ratio,
)
from routing.contracts.enums import ReplicaHealth, ReplicaLifecycle

LIMITS = Limits(load_s=100, warm_s=60)
WARMING = NewReplica(ReplicaLifecycle.WARMING)
READY = NewReplica(ReplicaLifecycle.READY)
LOADING = NewReplica(ReplicaLifecycle.LOADING)


def next_of(step: Step, new: NewReplica | None, age_s: float = 1.0, **fields: bool):
    return advance(LaneView(step, 1000.0, new, **fields), LIMITS, 1000.0 + age_s)


@pytest.mark.parametrize(
    ("step", "new", "age_s", "verdict", "to"),
    [
        (Step.SURGE, None, 0, Verdict.GO, Step.LOAD),
        (Step.LOAD, NewReplica(ReplicaLifecycle.COLD), 99, Verdict.WAIT, None),
        (Step.LOAD, LOADING, 100, Verdict.WAIT, None),
        (Step.LOAD, LOADING, 100.1, Verdict.FAIL, None),
        (Step.LOAD, WARMING, 5000, Verdict.GO, Step.IDENTIFY),
        (Step.IDENTIFY, WARMING, 1, Verdict.CHECK, None),
        (Step.IDENTIFY, LOADING, 1, Verdict.FAIL, None),
        (Step.PROBE, WARMING, 1, Verdict.CHECK, None),
        (Step.PROBE, None, 1, Verdict.FAIL, None),
        (Step.WARM, READY, 59.9, Verdict.WAIT, None),
        (Step.WARM, READY, 60, Verdict.GO, Step.JUDGE),
        (Step.JUDGE, READY, 0, Verdict.GO, Step.SHIFT),
        (Step.JUDGE, LOADING, 0, Verdict.FAIL, None),
        (Step.WARM, LOADING, 60, Verdict.FAIL, None),
        (Step.SHIFT, READY, 0, Verdict.GO, Step.DRAIN),
        (Step.DRAIN, READY, 5000, Verdict.WAIT, None),
        (Step.DRAIN, None, 1, Verdict.WAIT, None),
    ],
)
def test_each_step_waits_goes_or_fails(step, new, age_s, verdict, to) -> None:
    found = next_of(step, new, age_s)
    assert (found.verdict, found.step) == (verdict, to)
    assert found.cause or found.verdict in (Verdict.GO, Verdict.CHECK)


def judgement(finding: Finding) -> Judgement:
    return Judgement(finding, f"it is {finding}")


@pytest.mark.parametrize(
    ("step", "finding", "age_s", "holds", "verdict", "to"),
    [
        # Errors end it at once, times to first output only where it is judged.
        (Step.WARM, Finding.FAILING, 1, False, Verdict.FAIL, None),
        (Step.WARM, Finding.SLOWER, 1, False, Verdict.WAIT, None),
        (Step.WARM, Finding.FIT, 1, False, Verdict.WAIT, None),
        (Step.WARM, Finding.FIT, 60, False, Verdict.GO, Step.JUDGE),
        (Step.JUDGE, Finding.FAILING, 1, False, Verdict.FAIL, None),
        (Step.JUDGE, Finding.SLOWER, 1, False, Verdict.FAIL, None),
        (Step.JUDGE, Finding.FIT, 0, False, Verdict.GO, Step.SHIFT),
        (Step.JUDGE, Finding.TOO_FEW, 29.9, True, Verdict.WAIT, None),
        (Step.JUDGE, Finding.TOO_FEW, 30, True, Verdict.HOLD, None),
        (Step.JUDGE, Finding.TOO_FEW, 30, False, Verdict.GO, Step.SHIFT),
    ],
)
def test_a_judgement_decides_whether_the_old_one_goes(
    step, finding, age_s, holds, verdict, to
) -> None:
    limits = Limits(load_s=100, warm_s=60, bar=Bar(limit_s=30, holds_on_too_few=holds))
    lane = LaneView(step, 1000.0, READY, judgement=judgement(finding))
    found = advance(lane, limits, 1000.0 + age_s)
    assert (found.verdict, found.step) == (verdict, to)
    if step is Step.JUDGE:
        assert f"it is {finding}" in found.cause
    if (finding, verdict) == (Finding.TOO_FEW, Verdict.GO):
        assert found.cause.startswith("not judged")


def test_a_person_is_waited_for_once_at_each_point() -> None:
    taken, stops = 0, []
    for replaced in (0, 1, 1, 2, 3, 3, 4):
        if pause_is_due([1, 3], replaced, taken):
            stops.append(replaced)
            taken = replaced
    assert stops == [1, 3]


def test_progress_never_falls_and_ends_at_one() -> None:
    seen = [
        progress_ratio(2, replaced, step) for replaced in (0, 1) for step in LANE_STEPS[:-1]
    ] + [progress_ratio(2, 2, None)]
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (0.0, 1.0)
    assert progress_ratio(0, 0, None) == 0.0


def test_time_left_counts_what_the_open_lane_has_behind_it() -> None:
    assert left_s(3, 100.0, 40.0) == 260.0
    assert left_s(3, 100.0, 500.0) == 200.0  # slower than the last ones: the rest is still to come
    assert left_s(0, 100.0, 0.0) == 0.0


def test_a_drained_lane_is_done() -> None:
    assert next_of(Step.DRAIN, READY, is_old_gone=True).step is Step.DONE


@pytest.mark.parametrize("step", [Step.LOAD, Step.IDENTIFY, Step.PROBE, Step.WARM])
def test_a_broken_engine_fails_the_lane_before_the_old_one_goes(step) -> None:
    for new in (
        NewReplica(ReplicaLifecycle.FAILED, "it died"),
        NewReplica(ReplicaLifecycle.LOADING, "it died", failures=1),
    ):
        found = next_of(step, new)
        assert (found.verdict, found.cause) == (Verdict.FAIL, "it died")


@pytest.mark.parametrize("health", list(ReplicaHealth))
def test_only_hung_or_lost_stops_one_that_warms_up(health) -> None:
    new = NewReplica(ReplicaLifecycle.READY, health=health, health_reason="why")
    found = next_of(Step.WARM, new, 61)
    is_bad = health in (ReplicaHealth.HUNG, ReplicaHealth.LOST)
    assert found.verdict is (Verdict.FAIL if is_bad else Verdict.GO)
    assert next_of(Step.JUDGE, new, 61).verdict is found.verdict


def test_a_clock_set_back_makes_nothing_late() -> None:
    assert next_of(Step.LOAD, LOADING, -5000).verdict is Verdict.WAIT


@given(st.sampled_from(list(Step)), st.floats(0, 1e6), st.booleans())
def test_a_lane_never_goes_back(step, age_s, gone) -> None:
    if step in (Step.DONE, Step.DROPPED):
        return
    for new in (WARMING, READY):
        found = next_of(step, new, age_s, is_old_gone=gone)
        if found.verdict is Verdict.GO:
            assert LANE_STEPS.index(found.step) == LANE_STEPS.index(step) + 1


def test_no_answer_is_asked_again_until_the_limit_and_a_wrong_one_is_final() -> None:
    assert checked(Step.PROBE, "no", is_answer=False, age_s=1).verdict is Verdict.WAIT
    late = checked(Step.PROBE, "no", is_answer=False, age_s=CHECK_LIMIT_S + 1)
    assert late.verdict is Verdict.FAIL
    assert checked(Step.IDENTIFY, "wrong", is_answer=True, age_s=0).verdict is Verdict.FAIL
    assert checked(Step.IDENTIFY, "", is_answer=True, age_s=0).step is Step.PROBE
    assert checked(Step.PROBE, "", is_answer=True, age_s=0).step is Step.WARM


@pytest.mark.parametrize(
    ("seen", "version", "said"),
    [
        (Identity(("m",), "w", "0.32.0+cpu", "w"), "0.32.0", ""),
        (Identity(("m",), "w", "0.32.0", "w"), "0.32", ""),
        (Identity(("m",), "w", "0.32.0", ""), "", ""),
        (Identity(("m",), "w", "0.320.0", "w"), "0.32", "version 0.320.0, not 0.32"),
        (Identity(("x", "y"), "w", "1", "w"), "", "serves x, y, not m"),
        (Identity((), "", "", ""), "", "serves nothing"),
        (Identity(("m",), "old", "1", "new"), "", "loaded old, not new"),
        (Identity(("m",), "w", "", "w"), "1", "version unknown"),
    ],
)
def test_an_engine_is_what_was_asked_for_or_says_why_not(seen, version, said) -> None:
    found = misfit(seen, "m", version)
    assert said in found
    assert bool(found) == bool(said)


def test_idle_replicas_are_replaced_first_and_those_at_the_goal_never() -> None:
    members = [Member(1, 0, 1, True), Member(2, 1, 1, False), Member(3, 2, 2, True)]
    assert next_to_replace(members, 2) == members[1]
    assert next_to_replace(members, 1) == members[2]
    assert next_to_replace(members[2:], 2) is None

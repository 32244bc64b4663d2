"""Steps told at once are the steps taken one by one."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capacity.simulation.engine import Replica
from capacity.simulation.kv import chain_hashes
from capacity.simulation.leap import Leap
from capacity.simulation.profiles import EngineProfile, StepTimes
from capacity.simulation.requests import EngineRequest

PROFILE = EngineProfile(
    name="test", times=StepTimes(0.01, 1e-4, 1e-6, 1e-8), kv_blocks=40, token_budget=128, seats=4
)
Ended = dict[str, tuple[float | None, float | None, int, int]]


def drive(requests: list[tuple[float, EngineRequest]], *, leaps: bool) -> tuple[Ended, Replica]:
    """Serve arrivals to the end: (first token, last token, cached, preemptions) of each."""
    engine = Replica(PROFILE)
    queue = sorted(requests, key=lambda item: item[0])
    now_s, done = 0.0, {}
    while True:
        while queue and queue[0][0] <= now_s:
            engine.submit(queue[0][1], queue.pop(0)[0])
        leap = engine.leap(now_s) if leaps else None
        if leap is not None:
            steps = leap.begun_by(queue[0][0]) if queue else leap.steps
            emitted, now_s = engine.commit(leap, steps), leap.end_s(steps)
        elif (result := engine.step(now_s)) is not None:
            emitted, now_s = result.emitted, result.end_s
        elif queue:
            now_s = queue[0][0]
            continue
        else:
            return done, engine
        for one in emitted:
            if one.finish is not None:
                done[one.request.id] = (
                    one.first_token_s,
                    one.last_token_s,
                    one.cached_tokens,
                    one.preemptions,
                )


arrivals = st.lists(
    st.tuples(
        st.floats(0, 3), st.integers(1, 300), st.integers(1, 120), st.sampled_from(["", "a", "b"])
    ),
    min_size=1,
    max_size=9,
)


@given(arrivals)
@settings(max_examples=200, deadline=None)
def test_leaps_change_nothing(rows: list[tuple[float, int, int, str]]) -> None:
    requests = [
        (
            at_s,
            EngineRequest(
                str(n),
                prompt,
                output,
                block_hashes=chain_hashes(
                    [f"{name}{i}".encode() for i in range(prompt + output)], 16
                )
                if name
                else (),
            ),
        )
        for n, (at_s, prompt, output, name) in enumerate(rows)
    ]
    plain, slow = drive(requests, leaps=False)
    leapt, fast = drive(requests, leaps=True)
    assert leapt.keys() == plain.keys() == {str(n) for n in range(len(rows))}
    for name, found in leapt.items():
        assert found == pytest.approx(plain[name], rel=1e-9)
    assert fast.counters == slow.counters
    assert fast.blocks.used_count == slow.blocks.used_count == 0


def test_leap_begins_a_step_only_before_the_instant() -> None:
    leap = Leap(start_s=1.0, steps=10, decodes=1, first_s=0.1, growth_s=0.0)
    assert leap.begun_by(1.05) == 1
    assert leap.begun_by(1.25) == 3
    assert leap.begun_by(99.0) == 10


def test_a_leap_ends_with_the_shortest_answer() -> None:
    engine = Replica(replace(PROFILE, kv_blocks=1000))
    engine.submit(EngineRequest("a", 10, 50), 0.0)
    engine.submit(EngineRequest("b", 10, 20), 0.0)
    assert engine.step(0.0) is not None
    leap = engine.leap(0.0)
    assert leap is not None
    assert leap.steps == 19
    ended = [one.request.id for one in engine.commit(leap, 19) if one.finish]
    assert ended == ["b"]
    assert engine.running_count == 1

"""The scheduler does what vLLM's does, one fact a test."""

import math
import random
from dataclasses import replace

import pytest

from capacity.simulation.catalogue import named
from capacity.simulation.engine import Replica
from capacity.simulation.kv import chain_hashes
from capacity.simulation.profiles import EngineProfile, StepTimes
from capacity.simulation.requests import EngineRequest, Finish, NeverFitsError, StepResult

PROFILE = EngineProfile(
    name="test",
    times=StepTimes(0.01, 1e-4, 1e-6, 1e-8),
    kv_blocks=64,
    block_tokens=16,
    token_budget=256,
    seats=8,
    context_tokens=1024,
)


def replica(*, by_priority: bool = False, **changes: object) -> Replica:
    return Replica(replace(PROFILE, **changes), by_priority=by_priority)  # type: ignore[arg-type]


def hashes(tokens: int, name: str = "a", salt: str = "") -> tuple[int, ...]:
    return chain_hashes([f"{name}{n}".encode() for n in range(tokens)], 16, salt)


def step(engine: Replica, now_s: float) -> StepResult:
    result = engine.step(now_s)
    assert result is not None
    return result


def run_out(engine: Replica, now_s: float = 0.0) -> tuple[list[str], float]:
    """Step until idle: ids in the order in which they ended, and the end."""
    ended = []
    while (result := engine.step(now_s)) is not None:
        now_s = result.end_s
        ended += [one.request.id for one in result.emitted if one.finish is not None]
    return ended, now_s


def test_idle_replica_has_no_step() -> None:
    assert replica().step(0.0) is None


def test_step_takes_what_the_model_says() -> None:
    engine = replica()
    engine.submit(EngineRequest("a", 100, 3), 0.0)
    first = step(engine, 0.0)
    assert first.duration_s == pytest.approx(0.01 + 1e-4 * 100 + 1e-8 * 100 * 50)
    second = step(engine, first.end_s)
    assert (second.prefill_tokens, second.decodes, second.context_tokens) == (0, 1, 101)
    assert second.duration_s == pytest.approx(0.01 + 1e-4 + 1e-6 * 101)


def test_long_prompt_is_cut_to_the_budget_and_decodes_go_first() -> None:
    engine = replica()
    engine.submit(EngineRequest("old", 16, 50), 0.0)
    step(engine, 0.0)
    engine.submit(EngineRequest("long", 600, 1), 0.0)
    result = step(engine, 1.0)
    assert (result.decodes, result.prefill_tokens) == (1, 255)
    assert [one.request.id for one in result.emitted] == ["old"]


def test_long_prefill_threshold_applies_only_in_company() -> None:
    engine = replica(long_prefill_tokens=32)
    engine.submit(EngineRequest("alone", 200, 2), 0.0)
    assert step(engine, 0.0).prefill_tokens == 200
    engine.submit(EngineRequest("second", 200, 1), 0.0)
    assert step(engine, 1.0).prefill_tokens == 32


def test_first_come_first_served() -> None:
    engine = replica(seats=1)
    for name in "abc":
        engine.submit(EngineRequest(name, 16, 2), 0.0)
    assert run_out(engine)[0] == ["a", "b", "c"]


def test_lower_priority_value_is_served_sooner() -> None:
    engine = replica(by_priority=True, seats=1)
    engine.submit(EngineRequest("low", 16, 2, priority=10), 0.0)
    engine.submit(EngineRequest("high", 16, 2, priority=-10), 0.5)
    assert run_out(engine, 1.0)[0] == ["high", "low"]


def test_request_waits_until_its_whole_prompt_fits() -> None:
    engine = replica(kv_blocks=20)
    engine.submit(EngineRequest("a", 160, 20), 0.0)
    engine.submit(EngineRequest("b", 200, 1), 0.0)
    result = step(engine, 0.0)
    assert (engine.running_count, engine.waiting_count) == (1, 1)
    assert [one.request.id for one in result.admitted] == ["a"]
    assert run_out(engine, result.end_s)[0] == ["a", "b"]


def test_newest_is_preempted_and_recomputed_first() -> None:
    engine = replica(kv_blocks=20, seats=2)
    a = engine.submit(EngineRequest("a", 140, 100), 0.0)
    b = engine.submit(EngineRequest("b", 150, 30), 0.0)
    c = engine.submit(EngineRequest("c", 16, 2), 0.0)
    admitted = []
    now_s = 0.0
    while (result := engine.step(now_s)) is not None:
        now_s = result.end_s
        admitted += [one.request.id for one in result.admitted]
        assert not (result.preempted and result.admitted)
    assert (a.preemptions, b.preemptions > 0, c.preemptions) == (0, True, 0)
    assert engine.counters.preemptions == b.preemptions
    assert admitted == ["a", *["b"] * (b.preemptions + 1), "c"]
    assert b.made_tokens == 30


def test_priority_preempts_the_largest_priority_not_the_newest() -> None:
    engine = replica(by_priority=True, kv_blocks=20)
    low = engine.submit(EngineRequest("low", 140, 100, priority=5), 0.0)
    high = engine.submit(EngineRequest("high", 150, 100, priority=1), 0.0)
    run_out(engine)
    assert low.preemptions > 0
    assert high.preemptions == 0


def test_prefix_hits_are_whole_blocks_and_leave_one_token() -> None:
    engine = replica()
    first = engine.submit(EngineRequest("a", 64, 1, block_hashes=hashes(64)), 0.0)
    step(engine, 0.0)
    again = engine.submit(EngineRequest("b", 64, 1, block_hashes=hashes(64)), 1.0)
    result = step(engine, 1.0)
    assert (first.cached_tokens, again.cached_tokens) == (0, 48)
    assert result.prefill_tokens == 16
    longer = engine.submit(EngineRequest("c", 71, 1, block_hashes=hashes(71)), 2.0)
    step(engine, 2.0)
    assert longer.cached_tokens == 64
    assert (engine.counters.prefix_queries, engine.counters.prefix_hits) == (199, 112)


def test_salt_isolates_the_prefix_cache() -> None:
    engine = replica()
    engine.submit(EngineRequest("a", 64, 1, block_hashes=hashes(64, salt="one")), 0.0)
    step(engine, 0.0)
    other = engine.submit(EngineRequest("b", 64, 1, block_hashes=hashes(64, salt="two")), 1.0)
    step(engine, 1.0)
    assert other.cached_tokens == 0


def test_generated_blocks_are_found_by_the_next_turn() -> None:
    engine = replica()
    chain = hashes(96)
    engine.submit(EngineRequest("turn1", 48, 34, block_hashes=chain), 0.0)
    run_out(engine)
    turn2 = engine.submit(EngineRequest("turn2", 96, 1, block_hashes=chain), 9.0)
    step(engine, 9.0)
    assert turn2.cached_tokens == 80


def test_least_recently_released_blocks_are_evicted_first() -> None:
    engine = replica(kv_blocks=8)
    for at, name in enumerate("abc"):  # c needs blocks: those of a go first
        engine.submit(EngineRequest(name, 48, 1, block_hashes=hashes(48, name)), at)
        step(engine, at)
    kept = engine.submit(EngineRequest("b2", 48, 1, block_hashes=hashes(48, "b")), 4.0)
    step(engine, 4.0)
    lost = engine.submit(EngineRequest("a2", 48, 1, block_hashes=hashes(48, "a")), 5.0)
    step(engine, 5.0)
    assert kept.cached_tokens == 32
    assert lost.cached_tokens < 32


def test_end_of_a_prefix_is_evicted_before_its_beginning() -> None:
    engine = replica(kv_blocks=6)
    chain = hashes(80)
    engine.submit(EngineRequest("a", 80, 1, block_hashes=chain), 0.0)
    step(engine, 0.0)
    engine.submit(EngineRequest("other", 40, 1), 1.0)  # one blank block, then two of the prefix
    step(engine, 1.0)
    again = engine.submit(EngineRequest("b", 80, 1, block_hashes=chain), 2.0)
    step(engine, 2.0)
    assert again.cached_tokens == 48


def test_abort_frees_blocks_for_the_next_step() -> None:
    engine = replica(kv_blocks=20)
    engine.submit(EngineRequest("a", 300, 5), 0.0)
    engine.submit(EngineRequest("b", 300, 1), 0.0)
    step(engine, 0.0)
    aborted = engine.abort("a")
    assert aborted is not None
    assert aborted.finish is Finish.ABORT
    assert engine.abort("a") is None
    assert engine.kv_usage_ratio == 0
    assert run_out(engine, 1.0)[0] == ["b"]
    assert (engine.running_count, engine.waiting_count, engine.waiting_tokens) == (0, 0, 0)


def test_request_that_can_never_fit_is_refused() -> None:
    with pytest.raises(NeverFitsError):
        replica(kv_blocks=4).submit(EngineRequest("a", 60, 10), 0.0)


@pytest.mark.parametrize(("rate_per_s", "seed"), [(15.5, 3), (24.6, 4)])
def test_mean_step_follows_the_closed_form(rate_per_s: float, seed: int) -> None:
    """decision-core 1.4: mean step = t0 / (1 - rho), rho from the run's own served work."""
    engine = Replica(named("reference"))
    times = engine.profile.times
    rng = random.Random(seed)
    log_sd = math.sqrt(math.log(2))
    now_s = next_s = 0.0
    durations: list[float] = []
    fixed_s = work_s = 0.0
    serial = 0
    while now_s < 90:
        while next_s <= now_s:
            serial += 1
            prompt = max(1, round(rng.lognormvariate(math.log(800) - log_sd**2 / 2, log_sd)))
            output = max(1, round(rng.expovariate(1 / 300)))
            engine.submit(EngineRequest(str(serial), prompt, output), next_s)
            next_s += rng.expovariate(rate_per_s)
        result = step(engine, now_s)
        if now_s > 30:
            durations.append(result.duration_s)
            fixed_s += times.t0_s
            work_s += result.duration_s - times.t0_s
        now_s = result.end_s
    rho = work_s / (work_s + fixed_s)
    offered = rate_per_s * 0.02537
    assert sum(durations) / len(durations) == pytest.approx(times.t0_s / (1 - rho), rel=0.001)
    assert rho == pytest.approx(offered, rel=0.12)

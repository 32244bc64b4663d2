"""The worked cases C1 to C12 of the decision core, by the functions that plans and the lab use."""

from math import isclose

import pytest

from capacity.forecasts.rules.sizing import (
    Binds,
    after_loss,
    highest_before_loss,
    need_of,
    plan_of,
    retry_factor,
    share_to_shed,
    with_domain_lost,
    with_share_lost,
)
from capacity.simulation.catalogue import named
from capacity.simulation.closed_forms import (
    Demand,
    Lengths,
    chunk_budget,
    decodes_in_flight,
    highest_utilisation,
    kv_tokens,
    mean_itl_s,
    tokens_per_decode_step,
    utilisation,
    work_of,
)
from capacity.simulation.profiles import StepTimes

C3 = Demand(120, 800, 300)


def near(value: float, wanted: float, tolerance: float = 0.01) -> bool:
    return isclose(value, wanted, rel_tol=tolerance)


def test_c1_half_the_requests_twenty_times_longer_is_ten_times_the_input() -> None:
    before = Demand(100, 1_000, 0).input_tokens_per_s
    after = Demand(50, 1_000, 0).input_tokens_per_s + Demand(50, 20_000, 0).input_tokens_per_s
    assert (before, after, after / before) == (100_000, 1_050_000, 10.5)


def test_c2_an_assistant_whose_half_grew_tenfold() -> None:
    before = Demand(20 / 60, 1_500, 200)
    after = [Demand(10 / 60, 1_500, 200), Demand(10 / 60, 15_000, 200)]
    grown = sum(part.input_tokens_per_s for part in after)
    assert isclose(before.input_tokens_per_s, 500) and isclose(grown, 2_750)
    assert isclose(grown / before.input_tokens_per_s, 5.5)
    assert isclose(sum(part.output_tokens_per_s for part in after), before.output_tokens_per_s)


@pytest.mark.parametrize(
    ("profile", "gpus_each", "work_s", "rps_each", "replicas", "gpus"),
    [
        ("8b-bf16-h100", 1, 0.0225, 31.2, 4, 4),
        ("70b-fp8-h100-tp4", 4, 0.0485, 10.8, 12, 48),
        ("32b-bf16-h100-tp2", 2, None, 7.4, 17, 34),
    ],
)
def test_c3_what_120_rps_of_800_and_300_need(
    profile: str, gpus_each: int, work_s: float | None, rps_each: float, replicas: int, gpus: int
) -> None:
    assert (C3.input_tokens_per_s, C3.output_tokens_per_s) == (96_000, 36_000)
    engine = named(profile)
    if work_s is not None:
        assert near(work_of(engine.times, C3).total_s, work_s)
    need = need_of(engine, [C3], 0.025)
    assert near(need.rps_per_replica, rps_each)
    assert need.binds is Binds.COMPUTE
    assert (need.replicas, (need.replicas or 0) * gpus_each) == (replicas, gpus)


def test_c3_eight_gpus_of_the_small_model_are_half_full() -> None:
    engine = named("8b-bf16-h100")
    assert near(highest_utilisation(engine.times, 0.025), 0.70)
    assert near(C3.rate_rps / (8 * need_of(engine, [C3], 0.025).rps_per_replica), 0.48)


def test_c3_eight_gpus_of_the_large_model_carry_a_fifth() -> None:
    need = need_of(named("70b-fp8-h100-tp4"), [C3], 0.025)
    assert near(2 * need.rps_per_replica / C3.rate_rps, 0.18, 0.03)


def test_c4_tokens_before_retries() -> None:
    demand = Demand(30, 2_000, 300)
    assert (demand.input_tokens_per_s, demand.output_tokens_per_s) == (60_000, 9_000)


def test_c5_decodes_and_kv_in_flight() -> None:
    demand = [Demand(10, 2_000, 300)]
    assert isclose(decodes_in_flight(demand, 0.030), 90)
    held = kv_tokens(demand, 0.030)
    assert isclose(held, 193_500)
    assert near(held * 163_840 / 1e9, 31.7)
    assert isclose(kv_tokens(demand, 0.030, prefill_s=0.1), 193_500 + 10 * 0.1 * 2_000)


def test_c6_the_longest_requests_hold_the_tokens() -> None:
    lengths = Lengths(2_000, 1.5)
    found = [round(lengths.quantile(share)) for share in (0.5, 0.95, 0.99)]
    assert found == [pytest.approx(want, rel=0.001) for want in (1_109, 6_617, 13_866)]
    assert lengths.held_by_longest(0.01) == pytest.approx(0.107, abs=5e-4)
    assert lengths.held_by_longest(0.05) == pytest.approx(0.288, abs=5e-4)
    assert isclose(lengths.second_moment, 3.25 * 2_000**2)


def test_c7_two_of_eight_lost() -> None:
    assert isclose(after_loss(0.75, 2 / 8), 1.0)
    assert isclose(highest_before_loss(0.85, 2 / 8), 0.6375)


def test_c8_nine_needed_over_three_zones() -> None:
    assert with_domain_lost(9, 3) == 15  # 13.5 -> 14 -> five in each
    assert with_share_lost(9, 1 / 3) == 14
    with pytest.raises(ValueError, match="only domain"):
        with_domain_lost(9, 1)


def test_c9_what_retries_multiply() -> None:
    assert retry_factor(0.5, 4) == 1.875
    assert retry_factor(1, 4) == 4
    assert retry_factor(1, 4, layers=3) == 64
    for failure in (0.0, 0.3, 1.0):
        assert retry_factor(failure, 4, budget=0.1) <= 1.1


def test_c10_losing_the_cache_multiplies_prefill() -> None:
    warm = Demand(120, 800, 300, cached_ratio=0.6)
    assert isclose(warm.computed_tokens_per_s, 38_400)
    assert isclose(C3.computed_tokens_per_s / warm.computed_tokens_per_s, 2.5)


def test_c11_users_to_tokens() -> None:
    demand = Demand(1_000 * 15 / 3600, 3_000, 250)
    assert isclose(demand.input_tokens_per_s, 12_500)
    assert near(demand.output_tokens_per_s, 1_042, 0.001)
    assert near(Demand(1_000 * 50 / 3600, 3_000, 250).input_tokens_per_s, 41_667, 0.001)


def test_c12_what_to_shed_after_a_quarter_is_lost() -> None:
    assert share_to_shed(after_loss(0.775, 0.25), 0.85) == pytest.approx(0.177, abs=5e-4)
    assert share_to_shed(0.5, 0.85) == 0


def test_latency_of_the_closed_form_at_the_checked_loads() -> None:
    """Moments of the stated lengths: input lognormal 800 cv 1, output exponential 300."""
    times = StepTimes(7.47e-3, 14.4e-6, 24.5e-9, 2.25e-9)
    mean_in, mean_out = 800.0, 300.0
    square_in, square_out = Lengths(mean_in, 1).second_moment, 2 * mean_out**2
    w = (
        times.c_s * (mean_in + mean_out)
        + times.d_s * (mean_out * mean_in + square_out / 2)
        + times.e_s * square_in / 2
    )
    assert near(w, 0.02537, 0.002)
    assert near(mean_itl_s(times, 15.5 * w), 0.0123, 0.01)
    assert mean_itl_s(times, 1.0) == float("inf")


def test_chunk_budget_and_speculation() -> None:
    times = named("8b-bf16-h100").times
    assert chunk_budget(times, 0.050, 250_000, 1_000) == pytest.approx(2_300, rel=0.05)
    assert chunk_budget(times, 0.005, 0, 0) == 0
    assert tokens_per_decode_step(3, 0.0) == 1
    assert tokens_per_decode_step(3, 1.0) == 4
    assert near(tokens_per_decode_step(3, 0.7), 1 + 0.7 + 0.49 + 0.343)


def test_what_binds() -> None:
    engine = named("70b-fp8-h100-tp4")
    slow = need_of(engine, [C3], engine.times.t0_s)
    assert (slow.replicas, slow.binds) == (None, Binds.LATENCY)
    assert plan_of(slow, 3).replicas is None and plan_of(slow, 3).set_by == "latency target"
    long = need_of(named("8b-bf16-h100"), [Demand(1, 100_000, 2_000, cached_ratio=0.99)], 0.1)
    assert long.binds is Binds.KV and long.by_kv > long.by_compute
    assert need_of(engine, [], 0.05).replicas == 0


def test_plan_is_the_largest_of_its_three() -> None:
    need = need_of(named("8b-bf16-h100"), [Demand(270, 800, 300)], 0.025)
    assert need.replicas == 9
    plan = plan_of(need, 3)
    assert (plan.domain_lost, plan.quarter_lost, plan.replicas) == (15, 12, 15)
    assert plan.set_by == "one domain lost"
    assert plan_of(need, 1).domain_lost is None and plan_of(need, 1).replicas == 12
    more = need_of(named("8b-bf16-h100"), [Demand(270, 800, 300)], 0.025, retry_ratio=0.1)
    assert (more.replicas or 0) >= 9 and isclose(more.by_compute, need.by_compute * 1.1)


def test_utilisation_adds_up_over_sizes() -> None:
    times = named("8b-bf16-h100").times
    parts = [Demand(10, 800, 300), Demand(5, 4_000, 100, cached_ratio=0.5)]
    assert isclose(utilisation(times, parts), sum(utilisation(times, [part]) for part in parts))

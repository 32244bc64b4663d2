"""The simulator says what queueing theory and a pencil say."""

from dataclasses import replace

import pytest

from capacity.simulation.closed_forms import Demand, decodes_in_flight, mean_itl_s, work_of
from capacity.simulation.engine import Replica
from capacity.simulation.hardware import GPUS, MODELS, Precision
from capacity.simulation.options import moved_s
from capacity.simulation.requests import EngineRequest
from capacity.simulation.roofline import PRIOR, roofline
from capacity.simulation.scenario import Scenario
from capacity.simulation.workload import (
    Arrival,
    Lengths,
    Phase,
    exponential,
    fixed,
    lognormal,
    stream,
)
from tests.simulating import REFERENCE, fleet, profile, run


@pytest.mark.parametrize("tokens_per_s", [176.5, 75.8])
def test_256_tokens_take_as_long_as_the_speed_says(tokens_per_s: float) -> None:
    done = run(Scenario(fleet(profile(1 / tokens_per_s)), 10.0), [Arrival(0.0, 1, 256)])
    total = done.measures.total()
    assert total.e2e.mean_s == pytest.approx(256 / tokens_per_s, rel=1e-12)
    assert total.itl.count == 255
    assert total.itl.mean_s == pytest.approx(1 / tokens_per_s, rel=1e-12)


def test_batch_computed_by_hand() -> None:
    # t0 10 ms, c 1 ms a token, d 0.1 ms a context token.
    # A at 0: 4 in, 3 out. B at 5 ms: 2 in, 2 out.
    times = profile(0.010, 0.001, 0.0001)
    done = run(Scenario(fleet(times), 1.0), [Arrival(0.0, 4, 3, "a"), Arrival(0.005, 2, 2, "b")])
    # Step 1 is A's prefill: 10 + 4. Step 2: A decodes over 5, B's prefill: 10 + 1 + 2 + 0.5.
    # Step 3: A over 6, B over 3: 10 + 2 + 0.9.
    first, second, third = 0.014, 0.0135, 0.0129
    a, b = done.measures.total("a"), done.measures.total("b")
    assert a.ttft.mean_s == pytest.approx(first)
    assert a.e2e.mean_s == pytest.approx(first + second + third)
    assert a.itl.mean_s == pytest.approx((second + third) / 2)
    assert b.ttft.mean_s == pytest.approx(first + second - 0.005)
    assert b.e2e.mean_s == pytest.approx(first + second + third - 0.005)


@pytest.mark.parametrize("sizes", [fixed(40), exponential(40.0), lognormal(40.0, 1.5)])
def test_shared_processor_stretches_every_job_by_one_over_one_minus_rho(sizes: Lengths) -> None:
    # A step that costs 1 ms a token, no more, is processor sharing in quanta of a token: the mean
    # stretch is 1/(1-rho) whatever the distribution of sizes (M/G/1-PS).
    rho, c_s, until_s = 0.6, 0.001, 1000.0
    phase = Phase(0.0, until_s, rho / (40 * c_s), fixed(1), sizes)
    done = run(Scenario(fleet(profile(0.0, c_s)), until_s, from_s=20.0), stream([phase], 3))
    total = done.measures.total()
    mean_tokens = total.output_tokens / total.ok
    assert total.e2e.mean_s is not None
    measured_rho = total.output_tokens * c_s / (until_s - 20.0)
    stretch = total.e2e.mean_s / (mean_tokens * c_s)
    assert stretch == pytest.approx(1 / (1 - measured_rho), rel=0.05)


def test_number_in_system_is_rate_times_time_in_it() -> None:
    until_s = 300.0
    phase = Phase(0.0, until_s, 15.0, lognormal(800.0, 1.0, 8000), exponential(200.0))
    scenario = Scenario(fleet(REFERENCE), until_s, from_s=50.0, scrape_s=0.1)
    done = run(scenario, stream([phase], 5))
    total, report = done.measures.total(), done.report()
    assert total.e2e.mean_s is not None
    inside = report["running_mean"] + report["waiting_mean"]
    assert inside == pytest.approx(total.ok / 250.0 * total.e2e.mean_s, rel=0.02)


@pytest.mark.parametrize(("rate", "budget"), [(15.5, 8192), (24.6, 2048), (26.7, 1024)])
def test_steady_state_is_the_closed_form_of_its_own_moments(rate: float, budget: int) -> None:
    until_s, from_s = 300.0, 60.0
    seen: list[Arrival] = []

    def arrivals():
        phase = Phase(0.0, until_s, rate, lognormal(800.0, 1.0), exponential(300.0))
        for arrival in stream([phase], 11):
            if arrival.at_s >= from_s:
                seen.append(arrival)
            yield arrival

    engine = replace(REFERENCE, token_budget=budget)
    done = run(Scenario(fleet(engine), until_s, from_s=from_s), arrivals())
    times = engine.times
    work = sum(
        work_of(times, Demand(0, one.input_tokens, one.output_tokens)).total_s for one in seen
    )
    expected_s = mean_itl_s(times, work / (until_s - from_s))
    itl_s = done.measures.total().itl.mean_s
    assert itl_s == pytest.approx(expected_s, rel=0.03)
    demand = Demand(rate, 0, done.measures.total().output_tokens / (until_s - from_s) / rate)
    assert itl_s is not None
    assert done.report()["running_mean"] == pytest.approx(
        decodes_in_flight([demand], itl_s), rel=0.05
    )


def test_eight_slots_of_8192_tokens_take_eight_times_110_megabytes() -> None:
    slot_bytes, slots, tokens = 110e6, 8, 8192
    bytes_per_token = slot_bytes / tokens
    engine = Replica(profile(0.01, kv_blocks=slots * tokens // 16, seats=16, token_budget=1 << 17))
    calls = [engine.submit(EngineRequest(f"r{n}", tokens - 64, 64), 0.0) for n in range(9)]
    step = engine.step(0.0)
    assert step is not None
    # All slots are taken by the prompts; the ninth waits although a seat is free.
    assert (engine.running_count, engine.waiting_count) == (slots, 1)
    now_s = step.end_s
    fullest = 0.0
    while (step := engine.step(now_s)) is not None:
        now_s = step.end_s
        fullest = max(fullest, engine.kv_usage_ratio)
    assert fullest == 1.0
    assert fullest * engine.profile.kv_tokens * bytes_per_token == pytest.approx(880e6)
    assert all(one.made_tokens == 64 for one in calls)
    assert engine.running_count == engine.waiting_count == 0


def test_fewer_weight_bytes_speed_decode_and_leave_prefill_alone() -> None:
    # MXFP4 weights are widened to bf16 before they are multiplied: bytes fall, FLOPs do not.
    model, gpu = MODELS["llama-3.1-8b"], GPUS["h100"]
    wide, narrow = (
        roofline(model, gpu, tp=1, weights=weights, kv=Precision.BF16).times()
        for weights in (Precision.BF16, Precision.FP4)
    )
    saved = model.layer_bytes(Precision.BF16, 1) - model.layer_bytes(Precision.FP4, 1)
    assert wide.t0_s - narrow.t0_s == pytest.approx(PRIOR.weight * saved / gpu.bandwidth)
    assert (wide.c_s, wide.d_s, wide.e_s) == (narrow.c_s, narrow.d_s, narrow.e_s)
    decode = [times.seconds(0, 1, 1000, 0.0) for times in (wide, narrow)]
    assert decode[0] / decode[1] > 1.5
    # Of a prompt's own time, the step's fixed part aside, nothing changes.
    prompt = [times.seconds(8192, 0, 0, 8192 * 4096) - times.t0_s for times in (wide, narrow)]
    assert prompt[0] == pytest.approx(prompt[1], rel=1e-12)


@pytest.mark.parametrize(
    ("gbit_per_s", "wire_s", "real_s"), [(25.0, 64.0, 80.0), (400.0, 4.0, 5.0)]
)
def test_200_gigabytes_over_a_link(gbit_per_s: float, wire_s: float, real_s: float) -> None:
    link = gbit_per_s * 1e9 / 8
    assert moved_s(200e9, link_bytes_per_s=link, efficiency=1.0) == pytest.approx(wire_s)
    assert moved_s(200e9, link_bytes_per_s=link, efficiency=0.8) == pytest.approx(real_s)
    assert moved_s(200e9, link_bytes_per_s=link) == pytest.approx(real_s)  # 0.8 unless said

"""Options of a profile against values worked out by hand."""

import json
from dataclasses import replace
from typing import Any

import pytest

from capacity.simulation.catalogue import Origin, estimate, named
from capacity.simulation.document import (
    DocumentError,
    read_document,
    scenario_of,
    streams_of,
)
from capacity.simulation.engine import Replica
from capacity.simulation.hardware import GPUS, MODELS, Precision
from capacity.simulation.options import tokens_per_step, transfer_s, with_speculation
from capacity.simulation.profile_document import ProfileError, profile_json, read_profile
from capacity.simulation.profiles import StepTimes, Tier, UnknownProfileError
from capacity.simulation.requests import EngineRequest
from capacity.simulation.roofline import kv_tokens, roofline
from capacity.simulation.scenario import PrefillPart, ReplicaSpec, Scenario
from capacity.simulation.workload import Arrival
from tests.simulating import fleet, profile, run

MILLION = 1e-6


def alone(engine: Replica, name: str, prompt: int, output: int, hashes: tuple[int, ...] = ()):
    """Seconds until the first and the last token of a request that has the engine to itself."""
    one = engine.submit(EngineRequest(name, prompt, output, block_hashes=hashes), 0.0)
    now_s = 0.0
    while (step := engine.step(now_s)) is not None:
        now_s = step.end_s
    assert one.first_token_s is not None
    return one, one.first_token_s, now_s


# -- speculative decoding


def test_tokens_of_a_step_are_the_sum_of_the_powers_of_acceptance() -> None:
    assert tokens_per_step(3, 0.7) == pytest.approx(1 + 0.7 + 0.7**2 + 0.7**3)  # 2.533
    assert tokens_per_step(4, 0.0) == 1.0
    assert tokens_per_step(4, 1.0) == 5.0


def test_speculation_speeds_decode_by_hand_and_leaves_prefill_alone() -> None:
    plain = profile(t0_s=10e-3, c_s=20e-6, d_s=1e-9, e_s=0.0)
    drafting = with_speculation(plain, draft_tokens=3, acceptance=0.7, draft_step_s=0.5e-3)
    made = 2.533
    # A step of 8 sequences over 8,000 tokens checks 4 tokens of each: (10 + 1.5 ms) + 20 us * 32
    # + 8 us = 12.148 ms for 2.533 tokens of each.
    by_hand = (10e-3 + 3 * 0.5e-3 + 20e-6 * 32 + 1e-9 * 8000) / made
    assert drafting.times.seconds(0, 8, 8000, 0.0) == pytest.approx(by_hand, rel=1e-9)
    alone_s = drafting.times.seconds(4096, 0, 0, 0.0) - drafting.times.t0_s
    assert alone_s == pytest.approx(20e-6 * 4096)
    _one, first_s, last_s = alone(Replica(drafting), "a", 100, 1001)
    _two, plain_first_s, plain_last_s = alone(Replica(plain), "a", 100, 1001)
    gained = (plain_last_s - plain_first_s) / (last_s - first_s)
    assert gained == pytest.approx(2.533 * 10.02 / 11.58, rel=0.001)


# -- FP8


def test_fp8_weights_halve_their_bytes_and_fp8_kv_doubles_the_tokens() -> None:
    model, gpu = MODELS["llama-3.1-70b"], GPUS["h100"]

    def room(weights: Precision, kv: Precision) -> tuple[float, int, float]:
        found = roofline(model, gpu, tp=4, weights=weights, kv=kv)
        tokens = kv_tokens(model, gpu, tp=4, weights=weights, kv=kv)
        return found.weight_s, tokens, found.kv_s

    bf16, fp8 = room(Precision.BF16, Precision.BF16), room(Precision.FP8, Precision.FP8)
    head_s = model.vocab * 8192 * 2 / (4 * 3.35e12)
    assert bf16[0] - head_s == pytest.approx(2 * (fp8[0] - head_s))
    assert bf16[2] == pytest.approx(2 * fp8[2])
    # 327,680 bytes a token in bf16, half in FP8, in what weights and 14 GiB leave.
    free = 0.92 * 80 * 2**30 * 4 - model.layer_params - 2 * 128_256 * 8192 * 2 - 4 * 3.5 * 2**30
    assert fp8[1] == int(free / 163_840)
    mixed = room(Precision.FP8, Precision.BF16)
    assert mixed[1] == int(free / 327_680)


def test_a_mixture_reads_the_experts_that_its_tokens_touch() -> None:
    found = roofline(
        MODELS["minimax-m2.5"], GPUS["h200"], tp=8, weights=Precision.FP8, kv=Precision.BF16
    )
    whole = 62 * 256 * 3 * 3072 * 1536 / (8 * 4.8e12)  # bytes of all experts over bandwidth
    assert found.expert_s == pytest.approx(whole)
    times = StepTimes(0.0, 0.0, 0.0, 0.0, expert_s=whole, expert_ratio=8 / 256)
    assert times.seconds(0, 1, 0, 0.0) == pytest.approx(whole / 32)
    assert times.seconds(0, 16, 0, 0.0) == pytest.approx(whole * (1 - (31 / 32) ** 16))  # 0.398
    assert times.seconds(8192, 0, 0, 0.0) == pytest.approx(whole)


# -- tiers of KV


def test_evicted_prefix_comes_back_from_the_tiers_at_their_speed() -> None:
    # 40 blocks of KV; a prompt of 32 blocks, then another that pushes it out, then the first again.
    tiers = (Tier("cpu", 10 * 16, 1 * MILLION), Tier("nvme", 100 * 16, 5 * MILLION))
    engine = Replica(replace(profile(c_s=100 * MILLION, kv_blocks=40), tiers=tiers))
    hashes = tuple(range(1, 33))
    alone(engine, "first", 513, 1, hashes)
    alone(engine, "other", 639, 1, tuple(range(100, 139)))
    again, first_s, _last_s = alone(engine, "again", 513, 1, hashes)
    assert again.cached_tokens == 512
    # The end of a sequence is evicted first: its first ten blocks are in the CPU tier.
    by_hand = 160 * 1 * MILLION + 352 * 5 * MILLION + 1 * 100 * MILLION
    assert first_s == pytest.approx(by_hand)


def test_without_tiers_an_evicted_prefix_is_computed_again() -> None:
    engine = Replica(profile(c_s=100 * MILLION, kv_blocks=40))
    hashes = tuple(range(1, 33))
    alone(engine, "first", 513, 1, hashes)
    alone(engine, "other", 639, 1, tuple(range(100, 139)))
    again, first_s, _last_s = alone(engine, "again", 513, 1, hashes)
    assert again.cached_tokens == 0
    assert first_s == pytest.approx(513 * 100 * MILLION)


# -- a prefill pool of its own


def test_transfer_of_kv_takes_its_bytes_over_the_link() -> None:
    # 8,192 tokens of the 70B in bf16, 327,680 bytes each, over 400 Gb/s of which 80 % are reached.
    found = transfer_s(8192, kv_bytes_per_token=327_680, link_bytes_per_s=50e9)
    assert found == pytest.approx(2.684e9 / 40e9, rel=1e-3)  # 67.1 ms


def test_a_pair_adds_the_transfer_and_frees_decodes_of_others_prompts() -> None:
    engine = profile(t0_s=5e-3, c_s=50 * MILLION)
    spec = ReplicaSpec("e0", engine, prefill=PrefillPart(engine, 2 * MILLION))
    arrivals = [Arrival(0.0, 1000, 101), Arrival(0.3, 8000, 2)]
    total = run(Scenario((spec,), 10.0), arrivals).measures.total()
    assert total.ok == 2
    # The first: prefill 55 ms, 2 ms of transfer, a step of its own with one prompt token.
    first_s = 5e-3 + 1000 * 50e-6 + 1000 * 2e-6 + 5e-3 + 50e-6
    assert total.ttft.quantile(0.0) == pytest.approx(first_s, rel=0.011)
    # No gap between tokens is longer than a step of two decodes: nobody's prompt is in between.
    assert total.itl.quantile(1.0) <= 1.011 * (5e-3 + 2 * 50e-6)
    together = run(Scenario(fleet(engine), 10.0), arrivals).measures.total()
    longest_s = together.itl.quantile(1.0)
    assert longest_s is not None
    assert longest_s > 8000 * 50e-6


def test_a_pair_holds_nothing_when_all_is_done() -> None:
    engine = profile(t0_s=5e-3, c_s=50 * MILLION, kv_blocks=200)
    spec = ReplicaSpec("e0", engine, prefill=PrefillPart(engine, 2 * MILLION))
    arrivals = [Arrival(0.01 * n, 300 + n, 40) for n in range(200)]
    done = run(Scenario((spec,), 60.0), arrivals)
    assert done.measures.total().ok == 200
    assert done.stations["e0"].load() == (0, 0, 0.0)


# -- names, files, documents


def test_an_estimate_says_where_it_comes_from() -> None:
    measured = estimate("qwen3-32b", "h100", tp=4, weights=Precision.BF16)
    assert "30 published" in measured.source
    assert measured.error_ratio == pytest.approx(0.037)
    prior = estimate("qwen3-32b", "mi300x", tp=1, weights=Precision.BF16)
    assert prior.source.startswith("prior, unverified")
    assert prior.error_ratio is None
    said = estimate("gpt-oss-120b", "b200", tp=2, weights=Precision.FP4)
    assert (said.origin, said.source) == (
        Origin.AICONFIGURATOR,
        "aiconfigurator 0.12.0, unverified",
    )
    assert named("qwen3-32b/h100/tp4/bf16") == measured.profile
    asked = [
        estimate("qwen3-32b", "h100", tp=4, weights=Precision.BF16, origin=origin)
        for origin in (Origin.MEASURED, Origin.AICONFIGURATOR, Origin.PRIOR)
    ]
    assert len({one.profile.times for one in asked}) == 3
    assert {one.profile.kv_blocks for one in asked} == {measured.profile.kv_blocks}
    with pytest.raises(UnknownProfileError, match="no times of origin measured"):
        estimate("qwen3-32b", "mi300x", tp=1, weights=Precision.BF16, origin=Origin.MEASURED)
    with pytest.raises(UnknownProfileError, match="no room for KV"):
        estimate("llama-3.1-70b", "h100", tp=1, weights=Precision.BF16)
    with pytest.raises(UnknownProfileError, match="models llama"):
        named("gpt-9/h100/tp1/bf16")


def test_a_written_profile_is_read_again() -> None:
    raw = json.dumps(profile_json(named("demo"), {"url": "http://x"})).encode()
    assert read_profile(raw) == named("demo")
    bad = json.loads(raw)
    bad["times"]["t0_s"] = -1
    with pytest.raises(ProfileError, match=r"times\.t0_s"):
        read_profile(json.dumps(bad).encode())


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"speculation": {"draft_tokens": 0, "acceptance": 0.5}}, "draft_tokens"),
        (
            {
                "tiers": [
                    {"name": "cpu", "kv_tokens": 1, "gbytes_per_s": 0, "kv_bytes_per_token": 1}
                ]
            },
            "tiers: cpu",
        ),
        (
            {"prefill": {"profile": "x", "link_gbytes_per_s": 1, "kv_bytes_per_token": 1}},
            "no engine profile",
        ),
        ({"profile": "absent.json"}, "absent.json"),
        (
            {"electricity": {"gpus": 1, "power_w": 700, "grid_g_per_kwh": 350, "pue": 0.9}},
            "electricity: pue: 1 to 5",
        ),
        (
            {"electricity": {"gpus": 1, "power_w": 700, "grid_g_per_kwh": 350, "pue": "much"}},
            "pue",
        ),
    ],
)
def test_a_bad_option_is_refused_by_name(part: dict, message: str) -> None:
    document = {
        "until_s": 1,
        "fleet": [{"profile": "demo", "replicas": 1, **part}],
        "workload": [{"rate_per_s": 1, "input": {"mean": 1}, "output": {"mean": 1}}],
    }
    with pytest.raises(DocumentError, match=message):
        scenario_of(read_document(json.dumps(document).encode()))


def test_a_fleet_that_says_what_it_runs_on_has_a_footprint() -> None:
    """By hand: 4 GPUs of 700 W at PUE 1.2 are 3.36 kW; the second begins after half of the time."""
    part = {
        "profile": "demo",
        "replicas": 1,
        "electricity": {"gpus": 4, "power_w": 700, "grid_g_per_kwh": 350, "pue": 1.2},
    }
    document = {
        "until_s": 60,
        "fleet": [part, {**part, "ready_at_s": 30}],
        "tenants": [{"id": "t", "output_nanousd": 1_000_000}],
        "workload": [{"rate_per_s": 2, "input": {"mean": 32}, "output": {"mean": 8}}],
    }

    def report() -> dict[str, Any]:
        read = read_document(json.dumps(document).encode())
        return run(scenario_of(read), streams_of(read)[0]).report()

    found = report()
    answers = found["total"]["ok"]
    assert answers > 60
    assert found["energy_kwh"] == pytest.approx(3.36 * 90 / 3600)
    made_g = 4 * 90 * 150_000 / (4 * 365.25 * 86_400)
    assert found["gco2e"] == pytest.approx(350 * 3.36 * 90 / 3600 + made_g)
    assert found["per_answer"]["gco2e"] == pytest.approx(found["gco2e"] / answers)
    assert found["per_answer"]["spend_nanousd"] == pytest.approx(8)

    document["fleet"][1].pop("electricity")
    unknown = report()
    assert (unknown["energy_kwh"], unknown["gco2e"]) == (None, None)
    assert unknown["per_answer"] == {"spend_nanousd": pytest.approx(8), "gco2e": None}

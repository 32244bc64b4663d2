"""The bundled engine serves by what a scenario's fleet may add to a profile."""

import json
from typing import Any

import pytest

from capacity.engine.config import parse
from capacity.simulation.document import read_document, scenario_of
from tests.engines import engine

SPECULATION = {"draft_tokens": 3, "acceptance": 0.7}
TIERS = [{"name": "cpu", "kv_tokens": 4096, "gbytes_per_s": 20, "kv_bytes_per_token": 131072}]
FP8 = "llama-3.1-70b/h100/tp4/fp8"


def test_server_and_simulator_make_one_profile_of_the_same_options() -> None:
    flags = ("--model", "m", "--profile", FP8)
    options = ("--speculative-config", json.dumps(SPECULATION), "--kv-tiers", json.dumps(TIERS))
    served = parse([*flags, *options]).profile
    part = {"profile": FP8, "replicas": 1, "speculation": SPECULATION, "tiers": TIERS}
    document = {
        "until_s": 1,
        "fleet": [part],
        "workload": [{"rate_per_s": 1, "input": {"mean": 1}, "output": {"mean": 1}}],
    }
    simulated = scenario_of(read_document(json.dumps(document).encode())).replicas[0].profile
    assert (served.times, served.tiers) == (simulated.times, simulated.tiers)
    assert (served.kv_blocks, served.token_budget) == (simulated.kv_blocks, simulated.token_budget)
    assert served.times.t0_s < parse(flags).profile.times.t0_s


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--profile", "gpu-of-dreams"), "no engine profile"),
        (("--speculative-config", '{"draft_tokens": 0, "acceptance": 1}'), "draft_tokens"),
        (("--kv-tiers", '[{"name": "cpu"}]'), "kv_tokens"),
    ],
)
def test_a_bad_option_is_one_clear_line(
    flags: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(["--model", "m", *flags])
    assert words in capsys.readouterr().err


def cached_tokens(answer: dict[str, Any]) -> int:
    details = answer["usage"]["prompt_tokens_details"] or {}
    return int(details.get("cached_tokens", 0))


@pytest.mark.parametrize("has_tiers", [True, False])
def test_a_prefix_that_was_pushed_out_is_found_in_the_tiers_over_http(*, has_tiers: bool) -> None:
    flags = ["--profile", "demo", "--time-scale", "50", "--kv-blocks", "40"]
    if has_tiers:
        flags += ["--kv-tiers", json.dumps(TIERS)]
    with engine(*flags) as served:
        first, other = "first words " * 170, "other things " * 160
        for text in (first, other):
            assert cached_tokens(served.chat(text, max_tokens=1)) == 0
        found = cached_tokens(served.chat(first, max_tokens=1))
    assert (found >= 400) is has_tiers


def test_a_drafting_engine_answers_faster_than_a_step_takes() -> None:
    options = ("--speculative-config", json.dumps(SPECULATION))
    with engine("--profile", "demo", *options) as served:
        served.chat("go", max_tokens=60, ignore_eos=True)
        metrics = served.metrics()
    gap_s = (
        metrics["vllm:inter_token_latency_seconds_sum"]
        / metrics["vllm:inter_token_latency_seconds_count"]
    )
    # A step of 25 ms gives 2.53 tokens; a busy machine only adds to 10 ms.
    assert 0.0099 <= gap_s < 0.0225

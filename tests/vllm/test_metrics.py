"""What our rules read is on a real engine's page, moves as it should, and survives its restarts."""

import os
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from telemetry.collector import rules
from telemetry.collector.rules import EngineSample, parse_exposition
from tests.collecting import endpoint, start_collector
from tests.stack import publish, wait_until
from tests.vllm.conftest import RunningVllm
from tests.vllm.serving import TEXT, Call, directly, pool_of, snapshot_of, store_client, wait_load

SAMPLE = Path(__file__).resolve().parent.parent / "data" / "vllm-0.32-metrics.txt"
ONLY_WITH_LORA = {"vllm:lora_requests_info"}
MANY = 16
ANSWER_TOKENS = 300


def page_of(engine: RunningVllm) -> str:
    return httpx.get(f"{engine.url}/metrics", timeout=10, trust_env=False).text


def sample_of(engine: RunningVllm) -> EngineSample:
    sample = parse_exposition(page_of(engine).encode(), time.monotonic())
    assert sample is not None
    return sample


def families(text: str) -> set[str]:
    return {
        family.name
        for family in text_string_to_metric_families(text)
        if family.name.startswith("vllm:")
    }


def test_every_name_that_the_rules_need_is_on_the_live_page(tiny_vllm: RunningVllm) -> None:
    directly(tiny_vllm, "for the histograms").finish()
    page = page_of(tiny_vllm)
    names = {
        sample.name for family in text_string_to_metric_families(page) for sample in family.samples
    }
    missing = {ours for ours, known in rules._NAMES.items() if names.isdisjoint(known)}
    assert missing == set()
    newest = {known[0] for known in rules._NAMES.values()}
    assert newest <= names, "0.32 uses the newest name of each"
    sample = sample_of(tiny_vllm)
    unknown = [name for name in sample.__slots__ if getattr(sample, name) is None]
    assert unknown == []
    assert sample.block_size_tokens == 32


def test_the_live_page_is_the_page_that_other_tests_are_held_to(tiny_vllm: RunningVllm) -> None:
    assert families(page_of(tiny_vllm)) == families(SAMPLE.read_text()) - ONLY_WITH_LORA


def test_pressure_shows_as_kv_use_waiting_and_preemptions(small_kv_vllm: RunningVllm) -> None:
    wait_load(small_kv_vllm, 0)
    before = sample_of(small_kv_vllm)
    assert before.kv_capacity_tokens == 128 * 32
    text = TEXT * 12
    asked: list[Call] = []
    under_way: list[Call] = []

    def is_under_pressure() -> bool:
        """One look; what has been answered is asked again, so that no slow look comes too late."""
        under_way[:] = [call for call in under_way if not call.has_ended.is_set()]
        for _ in range(MANY - len(under_way)):
            words = f"{len(asked)} {text}"
            call = directly(small_kv_vllm, words, max_tokens=ANSWER_TOKENS, ignore_eos=True)
            asked.append(call)
            under_way.append(call)
        now = sample_of(small_kv_vllm)
        return (now.kv_usage_ratio or 0) > 0.8 and (now.waiting or 0) > 0

    wait_until(is_under_pressure, 240, "a full cache and a queue")
    assert [call.finish(240).status for call in asked] == [200] * len(asked)
    after = sample_of(small_kv_vllm)
    assert (after.preemptions or 0) > (before.preemptions or 0)
    made = (after.generation_tokens or 0) - (before.generation_tokens or 0)
    assert made >= len(asked) * ANSWER_TOKENS
    wait_load(small_kv_vllm, 0)


def test_the_collector_tells_a_real_engines_rates(
    store: "redis.Redis[bytes]", tmp_path: Path, tiny_vllm: RunningVllm
) -> None:
    publish(store, snapshot_of(pool_of("p1", tiny_vllm)))
    with closing(store_client()) as client, start_collector(os.environ["REDIS_URL"], tmp_path):
        call = directly(tiny_vllm, "rates", stream=True, max_tokens=1500)

        def busy() -> bool:
            state = endpoint(client, "p1")
            return bool(state and state.running == 1 and (state.generation_tokens_per_s or 0) > 1)

        wait_until(busy, 30, "a rate")
        state = endpoint(client, "p1")
        assert state is not None
        assert state.engine_version.startswith("0.32")
        assert state.kv_capacity_tokens
        assert (state.kv_usage_ratio or 0) > 0 or state.kv_capacity_tokens > 1_000_000
        call.hang_up()


def test_older_names_are_read_the_same(tiny_vllm: RunningVllm) -> None:
    page = page_of(tiny_vllm)
    older = page
    for known in rules._NAMES.values():
        for name in known[1:]:
            older = older.replace(known[0], name)
    assert older != page
    at_s = time.monotonic()
    assert parse_exposition(older.encode(), at_s) == parse_exposition(page.encode(), at_s)


@pytest.fixture(autouse=True)
def _idle(tiny_vllm: RunningVllm) -> None:
    wait_load(tiny_vllm, 0)

"""The engine's metrics against a scrape of real vLLM 0.32 (tests/data/vllm-0.32-metrics.txt)."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.engines import EngineProcess, engine

SAMPLE = Path(__file__).resolve().parent.parent / "data" / "vllm-0.32-metrics.txt"
ONLY_WITH_LORA = {"vllm:lora_requests_info"}
SAMPLE_CONTEXT_TOKENS = 4096


def families(text: str) -> dict[str, Metric]:
    return {
        family.name: family
        for family in text_string_to_metric_families(text)
        if family.name.startswith("vllm:")
    }


@pytest.fixture(scope="module")
def running() -> Iterator[EngineProcess]:
    with engine("--max-model-len", str(SAMPLE_CONTEXT_TOKENS), "--time-scale", "50") as process:
        process.chat("one", max_tokens=3)
        yield process


@pytest.fixture(scope="module")
def ours(running: EngineProcess) -> dict[str, Metric]:
    return families(running.get("/metrics")[1].decode())


@pytest.fixture(scope="module")
def real() -> dict[str, Metric]:
    return families(SAMPLE.read_text())


def test_every_family_is_there_and_none_is_invented(
    ours: dict[str, Metric], real: dict[str, Metric]
) -> None:
    assert set(ours) == set(real) - ONLY_WITH_LORA


def shape(family: Metric) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    """Sample names with their labels; values that depend on the model or the machine left out."""
    free = {"model_name", "block_size", "effective_attention_block_size", "num_gpu_blocks"}
    free |= {"kv_cache_max_concurrency", "kv_cache_size_tokens", "kv_cache_memory_bytes"}
    return {
        (
            sample.name,
            tuple(sorted((k, "" if k in free else v) for k, v in sample.labels.items())),
        )
        for sample in family.samples
    }


def test_types_labels_and_bucket_edges_are_vllms(
    ours: dict[str, Metric], real: dict[str, Metric]
) -> None:
    for name, family in ours.items():
        assert family.type == real[name].type, name
        assert shape(family) == shape(real[name]), name

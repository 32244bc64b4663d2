"""What the local models promise, on the engine itself: ASCII, sameness, exact continuation."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.vllm.conftest import RunningVllm

ASK = "user: tell me about the water\nassistant:"
pytestmark = pytest.mark.timeout(900)


def complete(engine: RunningVllm, prompt: str = ASK, **asked: Any) -> dict[str, Any]:
    body = {"model": engine.model, "prompt": prompt, "temperature": 0, **asked}
    request = Request(
        f"{engine.url}/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urlopen(request, timeout=120) as answer:
        return json.load(answer)


def text_of(answer: dict[str, Any]) -> str:
    return answer["choices"][0]["text"]


def test_2000_sampled_tokens_are_ascii_and_all_are_given(tiny_vllm: RunningVllm) -> None:
    answers = [
        complete(tiny_vllm, f"hello {index}", max_tokens=500, temperature=1.0) for index in range(4)
    ]
    assert sum(answer["usage"]["completion_tokens"] for answer in answers) == 2000
    assert {answer["choices"][0]["finish_reason"] for answer in answers} == {"length"}
    texts = [text_of(answer) for answer in answers]
    assert all(text.isascii() for text in texts)
    assert len({*"".join(texts).split()}) > 100


def test_known_words_are_a_token_each(tiny_vllm: RunningVllm) -> None:
    usage = complete(tiny_vllm, " the water" * 500, max_tokens=1)["usage"]
    assert usage["prompt_tokens"] == 1000


def test_replicas_answer_alike_alone_and_in_a_crowd(
    tiny_pair: tuple[RunningVllm, RunningVllm],
) -> None:
    first, second = tiny_pair
    expected = text_of(complete(first, max_tokens=200))
    assert len(set(expected.split())) > 20

    def ask(index: int) -> str:
        if index % 2:
            return text_of(complete(second, f"noise {index} " * index, max_tokens=80))
        return text_of(complete(second, max_tokens=200))

    with ThreadPoolExecutor(8) as threads:
        crowd = list(threads.map(ask, range(16)))
    assert set(crowd[::2]) == {expected}


def test_answer_cut_anywhere_goes_on_alike_elsewhere(
    tiny_pair: tuple[RunningVllm, RunningVllm],
) -> None:
    first, second = tiny_pair
    words = text_of(complete(first, max_tokens=120)).split(" ")
    for cut in (2, 31, 90):
        said, rest = " ".join(words[:cut]), " " + " ".join(words[cut:])
        assert text_of(complete(second, ASK + said, max_tokens=120)).startswith(rest)


def test_prefix_miss_of_the_small_model_costs_ten_hits(tight_vllm: RunningVllm) -> None:
    misses, hits = [], []
    for index in range(3):
        prompt = f" {index}" + " the water" * 1500
        misses.append(seconds_to_first_token(tight_vllm, prompt))
        hits.append(min(seconds_to_first_token(tight_vllm, prompt) for _ in range(3)))
    print(f"miss {sorted(misses)} hit {sorted(hits)}")
    assert sorted(misses)[1] >= 10 * sorted(hits)[1]


def seconds_to_first_token(engine: RunningVllm, prompt: str) -> float:
    started_s = time.perf_counter()
    complete(engine, prompt, max_tokens=1)
    return time.perf_counter() - started_s

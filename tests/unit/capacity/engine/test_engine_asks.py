"""Bodies are checked as vLLM checks them."""

import json
from typing import Any

import pytest

from capacity.engine.asks import Ask, AskError, Limits, read_chat, read_completion, read_tokenize
from capacity.simulation.catalogue import named
from capacity.simulation.requests import Finish

LIMITS = Limits(model="m", profile=named("demo"), seed=0, by_priority=False)


def chat(**fields: Any) -> Ask:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello there"}], **fields}
    return read_chat(json.dumps(body).encode(), LIMITS)


def completion(**fields: Any) -> Ask:
    return read_completion(json.dumps({"model": "m", "prompt": "hi", **fields}).encode(), LIMITS)


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "other"}, 404, "model"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_tokens": 16_384}, 400, "input_tokens"),
        ({"n": 0}, 400, "n"),
        ({"n": 65}, 400, "n"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages"),
        ({"stream_options": {"include_usage": True}}, 400, "stream_options"),
        ({"cache_salt": ""}, 400, "cache_salt"),
        ({"priority": 1}, 400, "priority"),
        ({"max_tokens": "many"}, 400, None),
    ],
)
def test_bad_call_is_refused_with_the_field(fields: dict, status: int, param: str | None) -> None:
    with pytest.raises(AskError) as caught:
        chat(**fields)
    assert (caught.value.status, caught.value.param) == (status, param)


def test_bytes_that_are_not_json_are_refused() -> None:
    with pytest.raises(AskError) as caught:
        read_completion(b"{", LIMITS)
    assert caught.value.status == 400


def test_length_is_the_least_of_limit_and_drawn_unless_told_otherwise() -> None:
    free = chat().works[0].request
    assert free.finish is Finish.STOP
    assert chat(max_tokens=5).works[0].request.output_tokens == min(5, free.output_tokens)
    forced = chat(max_tokens=500, ignore_eos=True).works[0].request
    assert (forced.output_tokens, forced.finish) == (500, Finish.LENGTH)
    assert chat(min_tokens=900, max_tokens=1000).works[0].request.output_tokens >= 900


def test_completion_gets_sixteen_tokens_by_default() -> None:
    assert completion(ignore_eos=True).works[0].request.output_tokens == 16


def test_newer_name_of_the_limit_wins() -> None:
    ask = chat(max_tokens=9, max_completion_tokens=4, ignore_eos=True)
    assert ask.works[0].request.output_tokens == 4


def test_prompts_may_be_texts_or_token_ids() -> None:
    ids = read_tokenize(b'{"prompt": "hello world"}')
    assert len(ids) == 3
    assert completion(prompt=["a", "b"], n=2).works[3].request.prompt_tokens == 1
    assert completion(prompt=[[356, 353], [356]]).prompt_tokens == 3
    assert completion(prompt=[356, 353]).prompt_tokens == 2
    with pytest.raises(AskError):
        completion(prompt=[100])


def test_salt_changes_the_blocks_and_not_the_text() -> None:
    long = {"messages": [{"role": "user", "content": "word " * 100}]}
    plain, salted = chat(**long).works[0], chat(**long, cache_salt="t1").works[0]
    assert plain.text == salted.text
    assert not set(plain.request.block_hashes) & set(salted.request.block_hashes)


def test_tools_are_part_of_the_prompt() -> None:
    assert chat(tools=[{"type": "function"}]).prompt_tokens > chat().prompt_tokens

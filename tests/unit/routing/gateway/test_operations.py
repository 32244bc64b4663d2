"""What each operation reads of a body, and what it puts into the forwarded one."""

import base64
import json
import struct
from typing import Any

import pytest

from routing.decision.estimate import Rates, estimate
from routing.decision.types import Refusal
from routing.gateway.dialects.anthropic import COUNT_TOKENS, MESSAGES
from routing.gateway.dialects.body import Call, Decided, forwarded_body, read_call
from routing.gateway.dialects.openai import EMBEDDINGS, RERANK, SCORE, TOKENIZE
from routing.gateway.dialects.operation import Operation
from routing.gateway.dialects.responses import RESPONSES
from tests.stack import ALPHA

HEAD = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 640, 480)
PICTURE = base64.b64encode(HEAD + bytes(30_000)).decode()
SOURCE = {"type": "base64", "media_type": "image/png", "data": PICTURE}
IMAGE = {"type": "image", "source": SOURCE}


def read(operation: Operation, **fields: Any) -> Call:
    found = read_call(json.dumps({"model": "m"} | fields).encode(), operation)
    assert isinstance(found, Call), found
    return found


def refused(operation: Operation, **fields: Any) -> str:
    found = read_call(json.dumps({"model": "m"} | fields).encode(), operation)
    assert isinstance(found, Refusal)
    return found.param


def said(*content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(content)}]


@pytest.mark.parametrize("content", [IMAGE, {"type": "tool_result", "content": [IMAGE]}])
def test_a_picture_of_a_message_is_no_text(content: dict[str, Any]) -> None:
    ask = read(MESSAGES, max_tokens=5, messages=said(content)).ask
    assert ask.images == 1
    assert ask.input_bytes < 300
    assert 100 < ask.picture_tokens < 16_385


def test_text_that_looks_like_a_picture_is_held_as_text() -> None:
    hidden = {"type": "tool_use", "id": "t", "name": "f", "input": IMAGE}
    ask = read(MESSAGES, max_tokens=5, messages=said(hidden)).ask
    assert ask.images == 0
    assert ask.input_bytes > len(PICTURE)


def test_a_picture_of_a_response_is_no_text() -> None:
    part = {"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}"}
    ask = read(RESPONSES, input=said(part)).ask
    assert (ask.images, ask.input_bytes < 300) == (1, True)
    hidden = said({"type": "input_text", "text": "", "annotation": part})
    assert read(RESPONSES, input=hidden).ask.input_bytes > len(PICTURE)
    afar = said({"type": "input_image", "image_url": "https://example.com/a.png"})
    assert read(RESPONSES, input=afar).ask.images == 1


def test_a_side_of_one_text_is_read_for_each_of_the_other() -> None:
    query, texts = "q" * 1000, ["d"] * 7
    for call in (
        read(RERANK, query=query, documents=texts),
        read(SCORE, text_1=query, text_2=texts),
        read(SCORE, queries=[query], documents=texts),
    ):
        assert call.ask.prompts == 7
        assert call.ask.input_bytes > 7_000
        assert call.ask.choices == 0
    pairs = read(SCORE, data_1=[query] * 7, data_2=texts).ask
    assert 7_000 < pairs.input_bytes < 7_200


def test_what_is_missing_or_does_not_match_is_named() -> None:
    assert refused(RERANK, query="a") == "documents"
    assert refused(RERANK, query=["a"], documents=["b"]) == "query"
    assert refused(SCORE, text_1=["a", "b"], text_2=["c", "d", "e"]) == "text_2"
    assert refused(SCORE, text_1="a") == "text_1"
    assert refused(EMBEDDINGS, input=[]) == "input"
    assert refused(EMBEDDINGS) == "input"
    assert refused(MESSAGES, messages=said()) == "max_tokens"
    assert refused(TOKENIZE) == "prompt"
    assert refused(RESPONSES, input="hi", kv_transfer_params={}) == "kv_transfer_params"
    assert refused(RESPONSES, input=["hi"]) == "input"


def test_an_input_that_is_neither_text_nor_items_is_told_both() -> None:
    found = read_call(b'{"model": "m", "input": 5}', RESPONSES)
    assert isinstance(found, Refusal)
    assert (found.param, "a string or an array" in found.message) == ("input", True)


def test_only_what_generates_is_told_a_bound() -> None:
    decided = Decided("real", 77, "salt", 10, "req-1")
    embedded = json.loads(forwarded_body(read(EMBEDDINGS, input="a"), decided))
    assert embedded == {"model": "real", "input": "a", "cache_salt": "salt", "priority": 10}
    counted = json.loads(forwarded_body(read(COUNT_TOKENS, messages=said()), decided))
    assert set(counted) == {"model", "messages"}
    call = read(RESPONSES, input="a", request_id="stolen", cache_salt="mine", stream=True)
    sent = json.loads(forwarded_body(call, decided))
    assert sent["max_output_tokens"] == 77
    assert (sent["request_id"], sent["cache_salt"]) == ("req-1", "salt")
    assert "stream_options" not in sent
    message = read(MESSAGES, messages=said(), max_tokens=500)
    sent = json.loads(forwarded_body(message, decided))
    assert (sent["max_tokens"], "priority" in sent) == (77, False)


def test_counting_may_be_longer_than_the_context() -> None:
    rates = Rates(2.0)
    long = [{"role": "user", "content": "word " * 9_000}]
    counted = read(COUNT_TOKENS, messages=long).ask
    found = estimate(counted, ALPHA, rates=rates, context_tokens=4096, output_cap_tokens=10)
    assert not isinstance(found, Refusal)
    assert (found.amounts.input_tokens > 22_000, found.amounts.output_tokens) == (True, 0)
    asked = read(MESSAGES, messages=long, max_tokens=1).ask
    assert isinstance(
        estimate(asked, ALPHA, rates=rates, context_tokens=4096, output_cap_tokens=10), Refusal
    )

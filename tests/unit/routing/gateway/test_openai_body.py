import json

import pytest

from routing.decision.types import Reason, Refusal
from routing.gateway.dialects.body import Call, Decided, forwarded_body, read_call
from routing.gateway.dialects.openai import CHAT, COMPLETIONS
from routing.gateway.dialects.strict import is_deeper

MESSAGES = [{"role": "user", "content": "hi"}]


def read(body: object, *, is_chat: bool = True) -> Call:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    found = read_call(raw, CHAT if is_chat else COMPLETIONS)
    assert isinstance(found, Call), found
    return found


def refused(raw: bytes, *, is_chat: bool = True) -> Refusal:
    found = read_call(raw, CHAT if is_chat else COMPLETIONS)
    assert isinstance(found, Refusal), "accepted"
    assert found.reason is Reason.INVALID_REQUEST
    return found


def with_field(text: str) -> bytes:
    return b'{"model":"m","messages":[{"role":"user","content":"hi"}],%s}' % text.encode()


@pytest.mark.parametrize(
    "raw",
    [
        with_field('"x":' + "[" * 5000 + "]" * 5000),
        with_field('"tools":' + '{"a":' * 2000 + "1" + "}" * 2000),
        with_field('"tools":' + "[" * 200 + "]" * 200),
        with_field('"model":"m"'),
        with_field('"x":1,"x":2'),
        with_field('"x":{"c":1,"y":2},"x":123456,"y":2'),  # lengths alone would not tell
        with_field('"mod\\u0065l":"other"'),
        with_field('"temperature":NaN'),
        with_field('"temperature":1e400'),
        b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"model":"m","messages":[{"role":"user","content":"\xff\xfe"}]}',
        b"[]",
        b"",
        b"nonsense",
        b'{"model":"m","messages":[]}',
        b'{"model":"m","messages":"hi"}',
        b'{"model":"m","messages":[1]}',
        b'{"model":7,"messages":[{}]}',
        b'{"messages":[{}]}',
        b'{"model":"m","messages":[' + b",".join([b"{}"] * 100_000) + b"]}",
        with_field('"stream":"yes"'),
        with_field('"max_tokens":-1'),
        with_field('"max_tokens":1.5'),
        with_field('"n":0'),
        with_field('"fallbacks":["other"]'),
        with_field('"api_base":"http://127.0.0.1:1"'),
        with_field('"base_url":"http://127.0.0.1:1"'),
        with_field('"endpoint":"http://127.0.0.1:1"'),
    ],
)
def test_broken_or_hostile_bodies_are_refused(raw: bytes) -> None:
    refused(raw)


def test_a_refusal_names_the_field() -> None:
    assert refused(with_field('"n":0')).param == "n"
    assert refused(with_field('"fallbacks":[]')).param == "fallbacks"


def test_large_bodies_are_still_checked_for_utf8() -> None:
    text = b"x" * 40_000
    refused(b'{"model":"m","messages":[{"role":"user","content":"' + text + b'\xff"}]}')
    read(b'{"model":"m","messages":[{"role":"user","content":"' + text + '世"}]}'.encode())


@pytest.mark.parametrize("space", ["", " ", "\n\t "])
def test_values_are_located_whatever_the_spacing(space: str) -> None:
    raw = (
        f'{space}{{{space}"model"{space}:{space}"m"{space},"messages":[{{}}],"n":2{space}}}{space}'
    )
    call = read(raw.encode())
    found = {name: call.body[a:b] for name, (a, b) in call.spans.items()}
    assert found == {"model": b'"m"', "messages": b"[{}]", "n": b"2"}
    assert call.body[call.end : call.end + 1] == b"}"


def forwarded(
    body: dict[str, object], *, is_chat: bool = True, **decided: object
) -> tuple[bytes, dict[str, object]]:
    values = {"model": "served", "output_tokens": 100, "cache_salt": "s"} | decided
    raw = forwarded_body(read(body, is_chat=is_chat), Decided(**values))  # type: ignore[arg-type]
    pairs: list[list[str]] = []
    json.loads(raw, object_pairs_hook=lambda p: pairs.append([k for k, _ in p]) or dict(p))
    assert len(set(pairs[-1])) == len(pairs[-1]), "a field twice"
    return raw, json.loads(raw)


def test_only_what_the_gateway_decides_changes() -> None:
    body = {
        "model": "m",
        "messages": MESSAGES,
        "temperature": 0.70,
        "user": "ü",
        "vllm_xargs": {"a": [1]},
    }
    raw, sent = forwarded(body)
    assert sent == body | {"model": "served", "max_tokens": 100, "cache_salt": "s"}
    assert json.dumps(MESSAGES).encode() in raw


def test_the_callers_bound_is_kept_below_ours_and_cut_above() -> None:
    assert forwarded({"model": "m", "messages": MESSAGES, "max_tokens": 7})[1]["max_tokens"] == 7
    assert (
        forwarded({"model": "m", "messages": MESSAGES, "max_tokens": 700})[1]["max_tokens"] == 100
    )
    sent = forwarded({"model": "m", "messages": MESSAGES, "max_completion_tokens": 700})[1]
    assert sent["max_completion_tokens"] == 100
    assert "max_tokens" not in sent
    assert (
        forwarded({"model": "m", "messages": MESSAGES, "max_tokens": None})[1]["max_tokens"] == 100
    )


def test_usage_is_always_asked_in_streams_and_other_options_stay() -> None:
    body = {"model": "m", "messages": MESSAGES, "stream": True}
    assert forwarded(body)[1]["stream_options"] == {"include_usage": True}
    options = {"include_usage": False, "chunk": 1}
    sent = forwarded(body | {"stream_options": options})[1]
    assert sent["stream_options"] == {"include_usage": True, "chunk": 1}
    assert "stream_options" not in forwarded({"model": "m", "messages": MESSAGES})[1]


def test_priority_and_cache_salt_of_the_caller_are_replaced() -> None:
    sent = forwarded({"model": "m", "messages": MESSAGES, "priority": -9, "cache_salt": "mine"})[1]
    assert sent["priority"] == 0
    assert sent["cache_salt"] == "s"


@pytest.mark.parametrize("own", [{}, {"priority": -9}])
def test_an_engine_that_takes_priorities_is_told_the_class_s(own: dict[str, object]) -> None:
    body = {"model": "m", "messages": MESSAGES} | own
    assert forwarded(body, priority=10)[1]["priority"] == 10
    assert forwarded({"model": "m", "messages": MESSAGES})[1].get("priority") is None


def test_ask_counts_choices_prompts_pictures_and_ids() -> None:
    assert read({"model": "m", "messages": MESSAGES, "n": 3, "max_tokens": 5}).ask.choices == 3
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 300_000}}
    ask = read({"model": "m", "messages": [{"role": "user", "content": [picture]}]}).ask
    assert ask.images == 1
    assert ask.input_bytes < 300
    prompts = read({"model": "m", "prompt": ["a", "b"], "n": 2}, is_chat=False).ask
    assert prompts.choices == 4
    ids = read({"model": "m", "prompt": [1, 2, 3]}, is_chat=False).ask
    assert (ids.input_tokens, ids.input_bytes) == (3, 0)
    tools = [{"type": "function", "function": {"name": "f" * 500}}]
    assert read({"model": "m", "messages": MESSAGES, "tools": tools}).ask.input_bytes > 500


def test_depth_is_measured_outside_strings() -> None:
    assert not is_deeper(json.dumps({"a": "[" * 500, 'q"\\': "{" * 500}).encode(), 5)
    assert is_deeper(b"[" * 6 + b"]" * 6, 5)
    assert not is_deeper(b"[" * 5 + b"]" * 5, 5)


@pytest.mark.parametrize(
    ("raw", "param", "words"),
    [
        (b"{}", "model", "non-empty string"),
        (with_field('"max_tokens":' + "9" * 26), "max_tokens", "too large"),
        (with_field('"max_tokens":0'), "max_tokens", "at least 1"),
    ],
)
def test_a_refusal_says_what_is_wrong(raw: bytes, param: str, words: str) -> None:
    found = refused(raw)
    assert found.param == param
    assert words in found.message

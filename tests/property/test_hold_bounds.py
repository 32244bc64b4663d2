"""Whatever a request looks like, its hold bounds what an engine could report for it.

The engine here is the worst that the estimate's terms allow: a token for every byte of dense text,
one for every four letters of plain text, every picture at the finest cut, every output run to its
bound. A prompt never exceeds the context: engines refuse that.
"""

import base64
import json
import struct
from math import ceil
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from routing.contracts.pricing import spend_nanousd
from routing.decision.estimate import Estimate, estimate
from routing.decision.pictures import picture_tokens
from routing.decision.types import Refusal
from routing.gateway.calibration import Calibration
from routing.gateway.dialects.body import Decided, forwarded_body, read_call
from routing.gateway.dialects.openai import CHAT, COMPLETIONS
from tests.stack import ALPHA

CONTEXT = 32_768
CAP = 4_096
LETTERS = 4  # bytes of plain text that the worst real tokenizer still joins
FRAME_TOKENS = 4  # around a message, as chat templates have them


def png(width: int, height: int) -> str:
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + b"\x08" * 5
    return "data:image/png;base64," + base64.b64encode(head).decode()


plain = st.text(alphabet="abcdefghij klmnop", min_size=0, max_size=2_000)
dense = st.text(alphabet="0123456789+/={}[];:,.!?-_#", min_size=0, max_size=2_000)
other = st.text(alphabet="漢字かな한글😀éñ", min_size=0, max_size=500)
texts = st.one_of(plain, dense, other, st.tuples(plain, dense, other).map("".join))
sizes = st.tuples(st.integers(1, 6_000), st.integers(1, 6_000))
parts = st.one_of(
    texts.map(lambda text: {"type": "text", "text": text}),
    sizes.map(lambda size: {"type": "image_url", "image_url": {"url": png(*size)}}),
    sizes.map(lambda size: {"type": "image_url", "image_url": png(*size)}),
)
messages = st.lists(
    st.one_of(texts, st.lists(parts, min_size=1, max_size=4)).map(
        lambda content: {"role": "user", "content": content}
    ),
    min_size=1,
    max_size=5,
)
schemas = st.recursive(
    st.just({"type": "string"}),
    lambda inner: st.dictionaries(st.text("abcdef", min_size=1, max_size=8), inner, max_size=3).map(
        lambda properties: {"type": "object", "properties": properties}
    ),
    max_leaves=10,
)
extras = st.fixed_dictionaries(
    {},
    optional={
        "n": st.integers(1, 8),
        "max_tokens": st.integers(1, 20_000),
        "max_completion_tokens": st.integers(1, 20_000),
        "logprobs": st.booleans(),
        "top_logprobs": st.integers(0, 20),
        "tools": st.lists(
            schemas.map(lambda s: {"type": "function", "function": {"name": "f", "parameters": s}}),
            max_size=3,
        ),
        "response_format": schemas.map(
            lambda s: {"type": "json_schema", "json_schema": {"name": "r", "schema": s}}
        ),
    },
)
prompts = st.one_of(
    texts,
    st.lists(texts, min_size=1, max_size=5),
    st.lists(st.integers(0, 200_000), min_size=1, max_size=500),
    st.lists(st.lists(st.integers(0, 200_000), min_size=1, max_size=100), min_size=1, max_size=4),
)


def text_tokens(text: str) -> float:
    """The worst tokenizer: letters and spaces four to a token, a token for every other byte."""
    raw = text.encode()
    letters = sum(byte == 32 or (chr(byte).isalpha() and byte < 128) for byte in raw)
    return letters / LETTERS + len(raw) - letters


def content_tokens(content: Any) -> float:
    if isinstance(content, str):
        return text_tokens(content)
    total = 0.0
    for part in content:
        if part["type"] == "text":
            total += text_tokens(part["text"])
        else:
            url = part["image_url"]
            head = base64.b64decode((url if isinstance(url, str) else url["url"]).split(",")[1])
            total += picture_tokens(*struct.unpack(">II", head[16:24]))
    return total


def held(body: dict[str, Any], *, is_chat: bool, escaped: bool) -> tuple[Estimate, int] | None:
    raw = json.dumps(body, ensure_ascii=escaped, separators=(",", ":")).encode()
    call = read_call(raw, CHAT if is_chat else COMPLETIONS)
    assert not isinstance(call, Refusal), call
    found = estimate(
        call.ask,
        ALPHA,
        rates=Calibration("g").rates("m", 2.5),
        context_tokens=CONTEXT,
        output_cap_tokens=CAP,
    )
    if isinstance(found, Refusal):
        assert found.param in ("messages", "prompt")
        return None
    sent = json.loads(forwarded_body(call, Decided("m", found.choice_output_tokens, "salt")))
    told = min(
        sent[name] for name in ("max_tokens", "max_completion_tokens") if sent.get(name) is not None
    )
    return found, told


def assert_bounds(found: Estimate, prompt_tokens: float, outputs: int, told: int) -> None:
    amounts = found.amounts
    inputs = ceil(prompt_tokens)
    assert amounts.input_tokens >= inputs
    assert amounts.output_tokens >= outputs * told
    assert amounts.spend_nanousd >= spend_nanousd(ALPHA, inputs, 0, outputs * told)
    assert amounts.kv_tokens >= inputs + outputs * told


@settings(max_examples=300, deadline=None)
@given(messages, extras, st.booleans())
def test_chat_hold_bounds_every_shape(
    listed: list[dict[str, Any]], more: dict[str, Any], escaped: bool
) -> None:
    body = {"model": "m", "messages": listed, **more}
    answer = held(body, is_chat=True, escaped=escaped)
    if answer is None:
        return
    found, told = answer
    frame = FRAME_TOKENS * len(listed)
    prompt = frame + sum(content_tokens(message["content"]) for message in listed)
    assert_bounds(found, min(prompt, CONTEXT), more.get("n", 1), told)


@settings(max_examples=300, deadline=None)
@given(prompts, st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_completion_hold_bounds_every_shape(
    prompt: Any, choices: int, best_of: int, escaped: bool
) -> None:
    body = {"model": "m", "prompt": prompt, "n": choices, "best_of": best_of}
    answer = held(body, is_chat=False, escaped=escaped)
    if answer is None:
        return
    found, told = answer
    many = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    inputs = sum(
        min(text_tokens(one) if isinstance(one, str) else len(one), CONTEXT) for one in many
    )
    assert_bounds(found, inputs, max(choices, best_of) * len(many), told)


def test_picture_hidden_behind_escapes_is_still_a_picture() -> None:
    raw = (
        rb'{"model":"m","messages":[{"role":"user","content":[{"type":"image_\u0075rl",'
        rb'"image_\u0075rl":{"\u0075rl":"https://example.com/a.png"}}]}]}'
    )
    call = read_call(raw, CHAT)
    assert not isinstance(call, Refusal)
    assert (call.ask.images, call.ask.picture_tokens) == (1, 4_160)

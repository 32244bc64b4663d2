"""Messages by the official Anthropic client: answers, billed usage, streams, types of errors."""

from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import TextBlock, ToolUseBlock

from tests.contract.asked import HI, MESSAGE, TOOL, City
from tests.contract.conftest import Served
from tests.stack import ALPHA, wait_until
from tests.upstream import (
    LAST,
    Reset,
    Send,
    event,
    framed,
    json_script,
    sse_head,
)


def test_a_message_and_its_usage(served: Served) -> None:
    raw = served.anthropic().messages.with_raw_response.create(
        model="alpha-8b", max_tokens=12, system="be short", messages=HI
    )
    found = raw.parse()
    assert isinstance(found.content[0], TextBlock)
    assert found.stop_reason in ("end_turn", "max_tokens")
    assert raw.headers["request-id"] == raw.headers["x-request-id"] == found._request_id
    assert float(raw.headers["x-headrace-cost-usd"]) > 0
    row = served.row(raw.headers["request-id"])
    told = found.usage
    whole = told.input_tokens + (told.cache_read_input_tokens or 0)
    whole += told.cache_creation_input_tokens or 0
    assert row.operation == "messages"
    assert (row.input_tokens, row.output_tokens) == (whole, told.output_tokens)
    assert row.cached_tokens == told.cache_read_input_tokens
    assert not row.is_above_hold


def test_cached_input_of_messages_costs_the_cached_price(served: Served) -> None:
    client = served.anthropic()
    long: Any = [{"role": "user", "content": "word " * 200}]
    for _ in range(2):
        raw = client.messages.with_raw_response.create(
            model="alpha-8b", max_tokens=1, messages=long
        )
    told = raw.parse().usage
    row = served.row(raw.headers["request-id"])
    assert row.cached_tokens == told.cache_read_input_tokens
    assert (told.cache_read_input_tokens or 0) > 100
    fresh = row.input_tokens - row.cached_tokens
    cost = fresh * ALPHA.input_nanousd + row.cached_tokens * ALPHA.cached_nanousd
    assert row.spend_nanousd == (cost + row.output_tokens * ALPHA.output_nanousd) // 10**6


def test_the_streaming_helper_of_messages(served: Served) -> None:
    with served.anthropic().messages.stream(
        model="alpha-8b", max_tokens=400, messages=HI
    ) as stream:
        text = "".join(stream.text_stream)
        whole = stream.get_final_message()
    assert whole.content[0].type == "text"
    assert whole.content[0].text == text
    row = served.last_row("messages")
    assert row.is_stream
    assert row.output_tokens == whole.usage.output_tokens


def test_counted_tokens_are_metered_at_the_cached_price(served: Served) -> None:
    raw = served.anthropic().messages.with_raw_response.count_tokens(
        model="alpha-8b", messages=HI, system="be short"
    )
    counted = raw.parse().input_tokens
    row = served.row(raw.headers["request-id"])
    assert row.operation == "count_tokens"
    assert row.input_tokens == row.cached_tokens == counted > 0
    assert row.spend_nanousd == counted * ALPHA.cached_nanousd // 10**6
    message = served.anthropic().messages.create(
        model="alpha-8b", max_tokens=1, messages=HI, system="be short"
    )
    used = message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)
    assert counted == used + (message.usage.cache_creation_input_tokens or 0)


def test_a_structured_message_is_parsed(served: Served) -> None:
    text = {"type": "text", "text": '{"name": "Bern", "people": 134000}'}
    served.upstream.plan(json_script(MESSAGE | {"content": [text]}))
    found = served.anthropic().messages.parse(
        model="scripted", max_tokens=50, messages=HI, output_format=City
    )
    assert found.parsed_output == City(name="Bern", people=134_000)
    sent = served.upstream.completions[-1].json["output_config"]["format"]
    assert sent["schema"]["required"] == ["name", "people"]


def message_events(*middle: dict[str, Any], end: bool = True) -> list[bytes]:
    """Events of a streamed message around these."""
    base = {"id": "m1", "type": "message", "role": "assistant", "model": "m", "content": []}
    start = base | {"stop_reason": None, "usage": {"input_tokens": 25, "output_tokens": 1}}
    listed: list[dict[str, Any]] = [{"type": "message_start", "message": start}, *middle]
    if end:
        delta = {"stop_reason": "tool_use", "stop_sequence": None}
        listed.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 9}})
        listed.append({"type": "message_stop"})
    return [f"event: {one['type']}\n".encode() + event(one) for one in listed]


def test_tools_of_messages_come_as_the_engine_sent_them(served: Served) -> None:
    block = {"type": "tool_use", "id": "t1", "name": "weather", "input": {}}
    pieces = [
        {"type": "input_json_delta", "partial_json": part} for part in ('{"ci', 'ty":"Bern"}')
    ]
    events = message_events(
        {"type": "content_block_start", "index": 0, "content_block": block},
        *({"type": "content_block_delta", "index": 0, "delta": piece} for piece in pieces),
        {"type": "content_block_stop", "index": 0},
    )
    served.upstream.plan([sse_head(), *[Send(framed(one)) for one in events], Send(LAST)])
    with served.anthropic().messages.stream(
        model="scripted",
        max_tokens=50,
        messages=HI,
        tools=[TOOL],  # type: ignore[list-item]
    ) as stream:
        whole = stream.get_final_message()
    (made,) = whole.content
    assert isinstance(made, ToolUseBlock)
    assert made.input == {"city": "Bern"}
    # The row is written behind the answer; until then the last one is of an earlier call.
    wait_until(lambda: served.last_row("messages").input_tokens == 25, 20, "its row")
    row = served.last_row("messages")
    assert (row.input_tokens, row.output_tokens) == (25, 9)
    assert row.usage_source == "reported"
    sent = served.upstream.completions[-1]
    assert sent.path == "/v1/messages"
    assert sent.json["cache_salt"] == "salt-acme"
    assert "stream_options" not in sent.json


def test_a_broken_stream_of_messages_is_their_error_event(served: Served) -> None:
    block = {"type": "text", "text": ""}
    events = message_events(
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
        end=False,
    )
    served.upstream.plan([sse_head(), *[Send(framed(one)) for one in events], Reset()])
    with (
        pytest.raises(anthropic.APIStatusError, match="after 1 output token") as caught,
        served.anthropic().messages.stream(model="scripted", max_tokens=50, messages=HI) as stream,
    ):
        stream.get_final_message()
    assert caught.value.body["error"]["type"] == "api_error"  # type: ignore[index]
    row = served.last_row("messages")
    assert (row.status, row.usage_source, row.output_tokens) == ("incomplete", "counted", 1)


def test_error_types_of_anthropic(served: Served) -> None:
    with pytest.raises(anthropic.AuthenticationError) as denied:
        served.anthropic("sk-wrong").messages.create(model="alpha-8b", max_tokens=1, messages=HI)
    assert denied.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
    assert denied.value.body["type"] == "error"  # type: ignore[index]
    assert denied.value.request_id
    with pytest.raises(anthropic.NotFoundError) as unknown:
        served.anthropic().messages.create(model="nope", max_tokens=1, messages=HI)
    assert unknown.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        served.anthropic().messages.create(model="alpha-8b", max_tokens=0, messages=HI)
    wrong = httpx.get(f"{served.gateway.url}/v1/messages", trust_env=False)
    assert wrong.status_code == 405
    assert wrong.json()["error"]["type"] == "invalid_request_error"
    assert wrong.json()["type"] == "error"

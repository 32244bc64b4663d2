"""Every operation by the official clients: answers, billed usage, rows, types of errors."""

from typing import Any

import anthropic
import openai
import pytest

from tests.contract.asked import HI, MESSAGE, TOOL, City
from tests.contract.conftest import Served
from tests.gatewaying import payloads
from tests.stack import ACME_KEY, ALPHA, GLOBEX_KEY
from tests.upstream import (
    LAST,
    Send,
    answer,
    event,
    framed,
    json_script,
    sse_head,
    usage,
)

FUNCTION: Any = {"type": "function", "function": TOOL | {"parameters": TOOL["input_schema"]}}


def test_embeddings_are_vectors_with_their_usage(served: Served) -> None:
    client = served.openai()
    raw = client.embeddings.with_raw_response.create(model="alpha-8b", input=["one", "two two"])
    found = raw.parse()
    assert [one.index for one in found.data] == [0, 1]
    assert len(found.data[0].embedding) == len(found.data[1].embedding) > 0
    row = served.row(raw.headers["x-request-id"])
    assert row.operation == "embeddings"
    assert (row.input_tokens, row.output_tokens) == (found.usage.prompt_tokens, 0)
    assert row.spend_nanousd == found.usage.prompt_tokens * ALPHA.input_nanousd // 10**6
    assert row.held_output_tokens == 0
    assert not row.is_above_hold


def test_many_small_texts_are_held_above_what_they_use(served: Served) -> None:
    client = served.openai()
    raw = client.embeddings.with_raw_response.create(model="alpha-8b", input=["a"] * 60)
    row = served.row(raw.headers["x-request-id"])
    assert row.input_tokens == raw.parse().usage.prompt_tokens
    assert not row.is_above_hold


def test_token_ids_embed_as_their_text(served: Served) -> None:
    client = served.openai()
    ids = served.http.post(
        f"{served.gateway.url}/tokenize",
        json={"model": "alpha-8b", "prompt": "the same text"},
        headers={"authorization": f"Bearer {ACME_KEY}"},
    ).json()["tokens"]
    by_ids = client.embeddings.create(model="alpha-8b", input=ids)
    by_text = client.embeddings.create(model="alpha-8b", input="the same text")
    assert by_ids.data[0].embedding == by_text.data[0].embedding
    assert by_ids.usage.prompt_tokens == len(ids)


def test_a_response_and_its_usage(served: Served) -> None:
    client = served.openai()
    raw = client.responses.with_raw_response.create(
        model="alpha-8b", input="hi", instructions="be short", max_output_tokens=12
    )
    found = raw.parse()
    assert found.output_text
    assert found.usage is not None
    row = served.row(raw.headers["x-request-id"])
    assert row.operation == "responses"
    assert (row.input_tokens, row.output_tokens) == (
        found.usage.input_tokens,
        found.usage.output_tokens,
    )
    assert row.output_tokens <= 12


def test_the_streaming_helper_of_responses(served: Served) -> None:
    with served.openai().responses.stream(
        model="alpha-8b", input=HI, max_output_tokens=400
    ) as stream:
        text = "".join(one.delta for one in stream if one.type == "response.output_text.delta")
        whole = stream.get_final_response()
    assert whole.output_text == text
    assert whole.usage is not None
    row = served.last_row("responses")
    assert row.is_stream
    assert row.first_token_at_ms is not None
    assert (row.input_tokens, row.output_tokens) == (
        whole.usage.input_tokens,
        whole.usage.output_tokens,
    )


@pytest.mark.parametrize(
    ("path", "body", "prompts"),
    [
        ("/v1/rerank", {"query": "a b c", "documents": ["one", "two", "three"]}, 3),
        ("/v1/score", {"text_1": "a b c", "text_2": ["one", "two"]}, 2),
        ("/tokenize", {"prompt": "some text to cut"}, 1),
        ("/tokenize", {"messages": HI}, 1),
    ],
)
def test_engines_own_operations_are_metered(
    served: Served, path: str, body: dict[str, Any], prompts: int
) -> None:
    found = served.http.post(
        f"{served.gateway.url}{path}",
        json={"model": "alpha-8b"} | body,
        headers={"authorization": f"Bearer {ACME_KEY}"},
    )
    assert found.status_code == 200, found.text
    row = served.row(found.headers["x-request-id"])
    told = found.json()
    assert row.operation == path.rpartition("/")[2]
    assert row.input_tokens == (
        told["count"] if "count" in told else told["usage"]["prompt_tokens"]
    )
    assert row.input_tokens > 0
    assert row.spend_nanousd > 0
    assert not row.is_above_hold
    assert len(told.get("results", told.get("data", [0]))) == prompts


def test_a_query_is_held_once_for_each_document(served: Served) -> None:
    query, documents = "word " * 100, ["x"] * 20
    found = served.http.post(
        f"{served.gateway.url}/v1/rerank",
        json={"model": "alpha-8b", "query": query, "documents": documents},
        headers={"authorization": f"Bearer {ACME_KEY}"},
    )
    row = served.row(found.headers["x-request-id"])
    assert row.input_tokens > 20 * 100
    assert not row.is_above_hold


def test_tools_of_chat_come_as_the_engine_sent_them(served: Served) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    told = answer()
    told["choices"][0] |= {
        "message": {"role": "assistant", "content": None, "tool_calls": [call]},
        "finish_reason": "tool_calls",
    }
    served.upstream.plan(json_script(told))
    found = served.openai().chat.completions.create(model="scripted", messages=HI, tools=[FUNCTION])
    (made,) = found.choices[0].message.tool_calls or []
    assert made.id == "c1"
    assert served.upstream.completions[-1].json["tools"] == [FUNCTION]


def test_a_structured_answer_is_parsed(served: Served) -> None:
    served.upstream.plan(json_script(answer('{"name": "Bern", "people": 134000}')))
    found = served.openai().chat.completions.parse(
        model="scripted", messages=HI, response_format=City
    )
    assert found.choices[0].message.parsed == City(name="Bern", people=134_000)
    sent = served.upstream.completions[-1].json["response_format"]
    assert sent["json_schema"]["schema"]["required"] == ["name", "people"]


def test_both_clients_list_the_models_of_the_key(served: Served) -> None:
    for client in (served.openai(), served.anthropic()):
        listed = [one.id for one in client.models.list()]
        assert listed == ["alpha-8b", "free-3b", "scripted"]
        assert client.models.retrieve("scripted").id == "scripted"
    with pytest.raises(anthropic.NotFoundError):
        served.anthropic().models.retrieve("nope")


def test_a_spent_budget_is_asked_for_once_by_either_client(served: Served) -> None:
    sent: list[str] = []
    for http in (served.http, served.http2):
        http.event_hooks = {"request": [lambda request: sent.append(str(request.url))]}
    try:
        with pytest.raises(anthropic.RateLimitError) as poor:
            served.anthropic(GLOBEX_KEY, max_retries=3).messages.create(
                model="alpha-8b", max_tokens=5, messages=HI
            )
        with pytest.raises(openai.RateLimitError) as broke:
            served.openai(GLOBEX_KEY, max_retries=3).chat.completions.create(
                model="alpha-8b", messages=HI
            )
    finally:
        for http in (served.http, served.http2):
            http.event_hooks = {}
    assert poor.value.body["error"]["type"] == "billing_error"  # type: ignore[index]
    assert broke.value.code == "budget_exceeded"
    assert len(sent) == 2


def test_the_streaming_helper_of_chat(served: Served) -> None:
    with served.openai().chat.completions.stream(
        model="alpha-8b", messages=HI, max_completion_tokens=60
    ) as stream:
        text = "".join(one.delta for one in stream if one.type == "content.delta")
        whole = stream.get_final_completion()
    assert whole.choices[0].message.content == text


def test_a_response_that_fails_in_its_stream_is_an_error(served: Served) -> None:
    begun = {"type": "response.created", "sequence_number": 0, "response": {"id": "r"}}
    delta = {"type": "response.output_text.delta", "sequence_number": 1, "delta": "a"}
    failed = {"type": "error", "sequence_number": 2, "code": "server_error", "message": "died"}
    script = [Send(framed(event(one))) for one in (begun, delta, failed)]
    served.upstream.plan([sse_head(), *script, Send(LAST)])
    with pytest.raises(openai.APIError, match="after 1 output token"):
        list(served.openai().responses.create(model="scripted", input="hi", stream=True))


def test_both_clients_retry_when_they_are_told(served: Served) -> None:
    busy = json_script({"error": {"message": "busy"}}, 429, [("retry-after-ms", "60")])
    before = len(served.upstream.completions)
    served.upstream.plan(busy, json_script(MESSAGE))
    found = served.anthropic(max_retries=2).messages.create(
        model="scripted", max_tokens=5, messages=HI
    )
    assert found.usage.output_tokens == 1
    served.upstream.plan(busy, json_script(answer("yo", usage(3, 1))))
    again = served.openai(max_retries=2).chat.completions.create(model="scripted", messages=HI)
    assert again.usage is not None
    first, second, third, fourth = served.upstream.completions[before:]
    assert second.arrived_at - first.arrived_at > 0.05
    assert fourth.arrived_at - third.arrived_at > 0.05


def test_neither_client_retries_what_cannot_be_answered(served: Served) -> None:
    before = len(served.upstream.requests)
    with pytest.raises(anthropic.NotFoundError):
        served.anthropic(max_retries=3).messages.create(model="nope", max_tokens=1, messages=HI)
    refused = served.openai(max_retries=3).chat.completions.with_raw_response
    with pytest.raises(openai.BadRequestError) as caught:
        refused.create(model="scripted", messages=[])
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert len(served.upstream.requests) == before


COST: Any = {"x-headrace-stream-cost": "true"}


def test_a_stream_of_chat_tells_its_cost_before_its_end(served: Served) -> None:
    raw = served.http.post(
        f"{served.gateway.url}/v1/chat/completions",
        json={"model": "alpha-8b", "messages": HI, "max_tokens": 9, "stream": True},
        headers={"authorization": f"Bearer {ACME_KEY}"} | COST,
    )
    *_, told, end = payloads(raw.content)
    assert end == "[DONE]"
    assert told["choices"] == []
    row = served.row(told["headrace"]["request_id"])
    assert told["headrace"]["cost_usd"] == f"{row.spend_nanousd / 1e9:.9f}"
    assert told["headrace"]["policy_version"] == row.policy == "main@1"
    assert "usage" not in told
    chunks = list(
        served.openai().chat.completions.create(
            model="alpha-8b", messages=HI, max_tokens=9, stream=True, extra_headers=COST
        )
    )
    assert chunks[-1].model_extra is not None
    assert chunks[-1].model_extra["headrace"]["cost_usd"]


def test_other_streams_tell_it_in_an_event_that_clients_read_over(served: Served) -> None:
    with served.anthropic().messages.stream(
        model="alpha-8b", max_tokens=9, messages=HI, extra_headers=COST
    ) as stream:
        assert stream.get_final_message().content
    with served.openai().responses.stream(
        model="alpha-8b", input=HI, max_output_tokens=400, extra_headers=COST
    ) as stream:
        assert stream.get_final_response().output_text
    raw = served.http.post(
        f"{served.gateway.url}/v1/messages",
        json={"model": "alpha-8b", "messages": HI, "max_tokens": 9, "stream": True},
        headers={"x-api-key": ACME_KEY} | COST,
    )
    *_, told, end = payloads(raw.content)
    assert (told["type"], end["type"]) == ("headrace.cost", "message_stop")
    assert served.row(told["request_id"]).operation == "messages"

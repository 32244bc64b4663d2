"""The official `openai` client against the gateway: answers, streams, errors, headers, models."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest
import redis

from routing.contracts.enums import Dimension
from tests.gatewaying import serving
from tests.stack import ACME_KEY, GatewayProcess, limit
from tests.upstream import (
    Reset,
    Script,
    Send,
    UpstreamThread,
    answer,
    delta,
    event,
    framed,
    json_script,
    sse_head,
    stream_script,
    usage,
)

HI = [{"role": "user", "content": "hi"}]


@contextmanager
def client_of(
    tmp_path: Path, *scripts: Script, key: str = ACME_KEY, **changes: object
) -> Iterator[tuple[openai.OpenAI, UpstreamThread, GatewayProcess]]:
    with UpstreamThread(*scripts) as upstream, serving(tmp_path, upstream, **changes) as gateway:
        http = httpx.Client(trust_env=False)
        with openai.OpenAI(
            api_key=key, base_url=f"{gateway.url}/v1", http_client=http, max_retries=0
        ) as client:
            yield client, upstream, gateway


def test_a_whole_answer_with_usage_and_request_id(tmp_path: Path, store: object) -> None:
    with client_of(tmp_path, json_script(answer("hey", usage(7, 3, cached=2)))) as (client, up, _):
        found = client.chat.completions.create(model="alpha-8b", messages=HI, user="u1")  # type: ignore[arg-type]
        assert found.choices[0].message.content == "hey"
        assert found.usage is not None
        assert found.usage.prompt_tokens == 7
        assert found.usage.prompt_tokens_details.cached_tokens == 2  # type: ignore[union-attr]
        assert found._request_id == up.completions[0].header("x-request-id")
        assert up.completions[0].json["user"] == "u1"


def test_a_stream_with_and_without_usage(tmp_path: Path, store: object) -> None:
    with client_of(tmp_path, stream_script(["he", "llo"], usage(7, 2))) as (client, _, _):
        chunks = list(client.chat.completions.create(model="alpha-8b", messages=HI, stream=True))  # type: ignore[arg-type]
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == "hello"
        assert all(c.usage is None for c in chunks)
        asked = client.chat.completions.create(
            model="alpha-8b", messages=HI, stream=True, stream_options={"include_usage": True}  # type: ignore[arg-type]
        )  # fmt: skip
        last = list(asked)[-1]
        assert last.choices == []
        assert last.usage is not None
        assert last.usage.completion_tokens == 2


def test_legacy_completions(tmp_path: Path, store: object) -> None:
    body = {
        "id": "cmpl-1", "object": "text_completion", "created": 1, "model": "alpha-8b",
        "choices": [{"index": 0, "text": "yo", "finish_reason": "stop", "logprobs": None}],
        "usage": usage(3, 1),
    }  # fmt: skip
    with client_of(tmp_path, json_script(body)) as (client, up, _):
        found = client.completions.create(model="alpha-8b", prompt=["a", "b"], max_tokens=4)
        assert found.choices[0].text == "yo"
        assert up.completions[0].path == "/v1/completions"


def test_models_are_listed_and_found_one_by_one(tmp_path: Path, store: object) -> None:
    with client_of(tmp_path, aliases={"fast": "alpha-8b"}) as (client, _, _):
        assert [m.id for m in client.models.list()] == ["alpha-8b", "fast", "free-3b"]
        assert client.models.retrieve("fast").id == "fast"
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("nope")


def test_a_wrong_key_is_an_authentication_error(tmp_path: Path, store: object) -> None:
    with (
        client_of(tmp_path, key="sk-wrong") as (client, up, _),
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        client.chat.completions.create(model="alpha-8b", messages=HI)  # type: ignore[arg-type]
    assert caught.value.code == "unauthorized"
    assert up.requests == []


def test_errors_have_message_type_param_and_code(tmp_path: Path, store: object) -> None:
    with client_of(tmp_path) as (client, _, _):
        with pytest.raises(openai.NotFoundError) as unknown:
            client.chat.completions.create(model="nope", messages=HI)  # type: ignore[arg-type]
        assert (unknown.value.code, unknown.value.param) == ("not_found", "model")
        with pytest.raises(openai.BadRequestError) as bad:
            client.chat.completions.create(model="alpha-8b", messages=HI, n=99)  # type: ignore[arg-type]
        assert (bad.value.code, bad.value.param) == ("invalid_request", "n")
        assert bad.value.type == "invalid_request_error"
        assert bad.value.request_id


def test_rate_headers_count_down_and_the_refusal_says_when_to_return(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    limits = (limit(Dimension.REQUESTS, 2), limit(Dimension.INPUT_TOKENS, 1000))
    with client_of(tmp_path, limits=limits) as (client, _, _):
        seen = []
        for _ in range(2):
            raw = client.chat.completions.with_raw_response.create(model="alpha-8b", messages=HI)  # type: ignore[arg-type]
            seen.append(raw.headers)
        assert [h["x-ratelimit-limit-requests"] for h in seen] == ["2", "2"]
        assert [h["x-ratelimit-remaining-requests"] for h in seen] == ["1", "0"]
        assert seen[0]["x-ratelimit-limit-tokens"] == "1000"
        assert int(seen[0]["x-ratelimit-remaining-tokens"]) < 1000
        assert seen[0]["x-ratelimit-reset-requests"].endswith("s")
        assert float(seen[0]["x-headrace-cost-usd"]) > 0
        assert seen[0]["x-headrace-policy-version"] == "main@1"
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model="alpha-8b", messages=HI)  # type: ignore[arg-type]
        headers = caught.value.response.headers
        assert 1 <= int(headers["retry-after"]) <= 60
        assert caught.value.code == "rate_limited"


def test_an_error_in_the_middle_of_a_stream_raises(tmp_path: Path, store: object) -> None:
    script = [sse_head(), Send(framed(event(delta("par")))), Reset()]
    with client_of(tmp_path, script) as (client, _, _):
        seen = []
        with pytest.raises(openai.APIError, match="after 1 output token"):
            seen += [
                chunk.choices[0].delta.content
                for chunk in client.chat.completions.create(
                    model="alpha-8b",
                    messages=HI,
                    stream=True,  # type: ignore[arg-type]
                )
            ]


def test_the_sdks_own_retry_returns_after_the_hint(tmp_path: Path, store: object) -> None:
    busy = json_script({"error": {"message": "busy"}}, 429, [("retry-after-ms", "50")])
    with client_of(tmp_path, busy, json_script()) as (client, up, _):
        found = client.with_options(max_retries=2).chat.completions.create(
            model="alpha-8b", messages=HI  # type: ignore[arg-type]
        )  # fmt: skip
        assert found.choices
        assert len(up.completions) == 2
        assert up.completions[1].arrived_at - up.completions[0].arrived_at > 0.04

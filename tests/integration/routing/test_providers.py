"""Hosted providers behind the gateway: their TLS, their key, their shape; what nobody can do."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import redis

from routing.contracts.capabilities import ApiStyle
from routing.store import keys
from tests.gatewaying import body_of, rows, serving
from tests.providing import KEY, LOOPBACK, certificate, hosted
from tests.stack import ACME_KEY, GatewayProcess, model, pool
from tests.upstream import UpstreamThread, answer, json_script, usage

MESSAGE = {
    "id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
    "content": [{"type": "text", "text": "yo"}], "stop_sequence": None,
    "usage": {"input_tokens": 3, "output_tokens": 1},
}  # fmt: skip
HI = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
PICTURE = [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}


class Far:
    """A gateway before two providers and an engine of ours."""

    def __init__(self, gateway: GatewayProcess, far: UpstreamThread, near: UpstreamThread) -> None:
        self.gateway = gateway
        self.far = far
        self.near = near

    def post(self, path: str, **body: Any) -> httpx.Response:
        self.far.requests.clear()
        self.near.requests.clear()
        headers = {"authorization": f"Bearer {ACME_KEY}"}
        url = f"{self.gateway.url}{path}"
        return httpx.post(url, json=body, headers=headers, trust_env=False, timeout=20)


@pytest.fixture
def far(tmp_path: Path, store: object) -> Iterator[Far]:
    context, authority = certificate(tmp_path)
    env = {"HEADRACE_PROVIDER_CA_FILE": str(authority), "HEADRACE_PRIVATE_PROVIDERS": LOOPBACK}
    with UpstreamThread(tls=context) as upstream, UpstreamThread() as near:
        there = [upstream.address]
        pools = {
            "gpt": hosted("gpt", there, ApiStyle.OPENAI, path_prefix="/openai"),
            "claude": hosted("claude", there, ApiStyle.ANTHROPIC),
            "near": pool("near", [near.address]),
        }
        models = {
            "alpha-8b": model("alpha-8b", ("gpt",)),
            "beta": model("beta", ("claude",)),
            "both": model("both", ("claude", "near")),
            "free-3b": model("free-3b", ("near",)),
        }
        with serving(tmp_path, near, env=env, pools=pools, models=models) as gateway:
            yield Far(gateway, upstream, near)


def test_an_openai_provider_gets_its_key_and_no_member_of_ours(
    far: Far, store: "redis.Redis[bytes]"
) -> None:
    far.far.plan(json_script(answer("hey", usage(7, 3))))
    found = far.post("/v1/chat/completions", model="alpha-8b", messages=HI)
    assert found.status_code == 200, found.text
    (seen,) = far.far.completions
    assert seen.path == "/openai/v1/chat/completions"
    assert seen.header("authorization") == f"Bearer {KEY}"
    assert ACME_KEY not in str(seen.headers)
    assert set(seen.json) == {"model", "messages", "max_completion_tokens"}
    assert seen.json["model"] == "far-model"
    (row,) = rows(store, 1)
    assert (row.pool, row.input_tokens, row.output_tokens) == ("gpt", 7, 3)
    snapshot = store.get(keys.SNAPSHOT)
    assert snapshot is not None
    assert KEY.encode() not in snapshot
    assert KEY not in far.gateway.log.read_text()


def test_an_anthropic_provider_gets_its_key_and_version(far: Far) -> None:
    far.far.plan(json_script(MESSAGE))
    found = far.post("/v1/messages", model="beta", messages=HI, max_tokens=5)
    assert found.json()["content"] == MESSAGE["content"]
    (seen,) = far.far.completions
    assert (seen.path, seen.header("x-api-key")) == ("/v1/messages", KEY)
    assert seen.header("anthropic-version") == "2023-06-01"
    assert seen.header("authorization") is None
    assert set(seen.json) == {"model", "messages", "max_tokens"}


def test_a_request_goes_to_the_target_that_can_do_it(far: Far) -> None:
    found = far.post("/v1/chat/completions", model="both", messages=HI)
    assert found.status_code == 200
    assert (len(far.far.completions), len(far.near.completions)) == (0, 1)
    far.far.plan(json_script(MESSAGE))
    found = far.post("/v1/messages", model="both", messages=HI, max_tokens=5)
    assert found.status_code == 200
    assert (len(far.far.completions), len(far.near.completions)) == (1, 0)


def test_what_no_target_can_do_is_refused_by_name(far: Far) -> None:
    chat: dict[str, Any] = {"messages": HI}
    cases: list[tuple[str, str, dict[str, Any], str]] = [
        ("/v1/chat/completions", "beta", chat, "model"),
        ("/v1/messages", "alpha-8b", {"messages": HI, "max_tokens": 5}, "model"),
        ("/tokenize", "alpha-8b", {"prompt": "a"}, "model"),
        ("/v1/chat/completions", "alpha-8b", chat | {"min_tokens": 3}, "min_tokens"),
        ("/v1/chat/completions", "alpha-8b", chat | {"cache_salt": "x"}, "cache_salt"),
        ("/v1/chat/completions", "free-3b", chat | {"store": True}, "store"),
        ("/v1/chat/completions", "free-3b", chat | {"modalities": ["audio"]}, "modalities"),
        ("/v1/responses", "free-3b", {"input": "a", "background": True}, "background"),
        (
            "/v1/responses", "free-3b", {"input": "a", "previous_response_id": "resp_other"},
            "previous_response_id",
        ),
        (
            "/v1/responses", "free-3b", {"input": "a", "tools": [{"type": "web_search"}]},
            "tools",
        ),
    ]  # fmt: skip
    for path, name, body, param in cases:
        found = far.post(path, model=name, **body)
        error = found.json()["error"]
        seen = (found.status_code, error["code"], error["param"])
        assert seen == (400, "unsupported_capability", param), (path, body)
        assert found.headers["x-should-retry"] == "false"
        assert far.far.requests == far.near.requests == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": HI, "tools": TOOLS}, "tools"),
        ({"messages": HI, "response_format": SCHEMA}, "response_format"),
        ({"messages": [{"role": "user", "content": PICTURE}]}, "messages"),
    ],
)
def test_a_pool_that_says_so_takes_plain_text_only(
    tmp_path: Path, store: object, body: dict[str, Any], param: str
) -> None:
    with UpstreamThread() as near:
        plain = hosted("near", [near.address], ApiStyle.ENGINE, has_tls=False, sealed_key=b"")
        pools = {"p1": msgspec.structs.replace(plain, id="p1", capabilities=("chat",))}
        with serving(tmp_path, near, pools=pools) as gateway:
            refused = gateway.chat(**body_of(**body))
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == param
            assert near.requests == []
            assert gateway.chat(**body_of(messages=HI, tools=[])).status_code == 200


def test_a_provider_at_an_inner_address_is_not_called(tmp_path: Path, store: object) -> None:
    context, authority = certificate(tmp_path)
    env = {"HEADRACE_PROVIDER_CA_FILE": str(authority)}
    with UpstreamThread(tls=context) as upstream:
        pools = {"p1": hosted("p1", [upstream.address], ApiStyle.OPENAI)}
        with serving(tmp_path, upstream, env=env, pools=pools) as gateway:
            assert gateway.chat().status_code == 502
        assert upstream.requests == []


def test_a_provider_that_nobody_vouches_for_is_not_called(tmp_path: Path, store: object) -> None:
    context, _ = certificate(tmp_path)
    env = {"HEADRACE_PRIVATE_PROVIDERS": LOOPBACK}
    with UpstreamThread(tls=context) as upstream:
        pools = {"p1": hosted("p1", [upstream.address], ApiStyle.OPENAI)}
        with serving(tmp_path, upstream, env=env, pools=pools) as gateway:
            assert gateway.chat().status_code == 502
        assert upstream.requests == []

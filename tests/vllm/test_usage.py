"""The official client through the gateway to a real engine: what it is told is what is billed."""

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import redis

from capacity.drivers.vllm_env import VllmEnvironment
from capacity.drivers.vllm_serve import local_model
from routing.contracts.pricing import spend_nanousd
from tenants.models import Tenant, Usage
from tests.gatewaying import payloads
from tests.ledgering import Party, is_open, make_party, running_writer
from tests.stack import (
    ACME_KEY,
    ALPHA,
    GLOBEX_KEY,
    GatewayProcess,
    api_key,
    publish,
    tenant,
    wait_until,
)
from tests.vllm.conftest import RunningVllm
from tests.vllm.serving import TEXT, gateway_over, pool_of, snapshot_of

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass
class Desk:
    """A gateway with a ledger behind it, and each tenant's client."""

    gateway: GatewayProcess

    def client(self, secret: str = ACME_KEY) -> openai.OpenAI:
        http = httpx.Client(trust_env=False, timeout=120)
        return openai.OpenAI(
            api_key=secret, base_url=f"{self.gateway.url}/v1", http_client=http, max_retries=0
        )

    def row(self, request_id: str) -> Usage:
        """The ledger's row, once it is written."""
        rows = Usage.objects.filter(request_id=uuid.UUID(request_id))
        return wait_until(rows.first, 20, "the ledger row")


@pytest.fixture
def desk(store: redis.Redis, tmp_path: Path, tiny_vllm: RunningVllm) -> Iterator[Desk]:
    """Two tenants in the tables, the real ledger writer, one engine."""
    parties = {ACME_KEY: make_party("acme"), GLOBEX_KEY: make_party("globex")}
    snapshot = snapshot_of(
        pool_of("p1", tiny_vllm),
        tenants={str(p.tenant_id): _tenant(p) for p in parties.values()},
        keys=dict(_key(secret, party) for secret, party in parties.items()),
    )
    publish(store, snapshot)
    with running_writer():
        for party in parties.values():
            wait_until(lambda party=party: is_open(store, party), 20, "counters open")
        with gateway_over(tmp_path, snapshot, is_published=True) as gateway:
            yield Desk(gateway)


def _tenant(party: Party) -> Any:
    return tenant(str(party.tenant_id))


def _key(secret: str, party: Party) -> Any:
    ids = {"id": str(party.key_id), "project_id": str(party.project_id)}
    return api_key(str(party.tenant_id), secret, **ids)


def messages(text: str) -> Any:
    return [{"role": "user", "content": text}]


def call(client: openai.OpenAI, path: str, text: str, *, is_stream: bool, **more: Any) -> Any:
    """(request id, usage as the client sees it, text) of one call."""
    named: dict[str, Any] = {"model": "alpha-8b", "max_tokens": 24, "temperature": 0} | more
    if path == "chat":
        create, named["messages"] = client.chat.completions.with_raw_response.create, messages(text)
    else:
        create, named["prompt"] = client.completions.with_raw_response.create, text
    if is_stream:
        named |= {"stream": True, "stream_options": {"include_usage": True}}
    raw = create(**named)
    request_id, answer = raw.headers["x-request-id"], raw.parse()
    if not is_stream:
        return request_id, answer.usage, _text(answer.choices[0])
    chunks = list(answer)
    words = "".join(_text(chunk.choices[0]) for chunk in chunks if chunk.choices)
    return request_id, chunks[-1].usage, words


def _text(choice: Any) -> str:
    for part in (getattr(choice, "message", None), getattr(choice, "delta", None)):
        if part is not None:
            return part.content or ""
    return choice.text or ""


def cached(usage: Any) -> int:
    return usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else 0


def billed(row: Usage) -> tuple[int, int, int]:
    return row.input_tokens, row.cached_tokens, row.output_tokens


@pytest.mark.parametrize("path", ["chat", "completions"])
def test_usage_told_is_usage_billed_to_the_token(desk: Desk, path: str) -> None:
    with desk.client() as client:
        seen = {}
        for is_stream in (False, True):
            text = f"{path} hello"
            request_id, usage, words = call(client, path, text, is_stream=is_stream)
            row = desk.row(request_id)
            told = (usage.prompt_tokens, cached(usage), usage.completion_tokens)
            assert billed(row) == told
            assert usage.completion_tokens == 24
            assert (row.usage_source, row.status, row.is_stream) == ("reported", "ok", is_stream)
            assert row.spend_nanousd == spend_nanousd(ALPHA, *told) > 0
            assert row.upstream_request_id == request_id
            assert row.attempts == 1
            seen[is_stream] = words
        assert seen[True] == seen[False] != ""


def test_a_prompt_that_the_engine_knows_is_billed_at_the_cached_price(desk: Desk) -> None:
    with desk.client() as client:
        rows = []
        for is_stream in (False, True):
            text = "cached " + TEXT * 8
            request_id, usage, _ = call(client, "chat", text, is_stream=is_stream)
            rows.append(desk.row(request_id))
            assert billed(rows[-1])[1] == cached(usage)
        first, second = rows
        assert first.cached_tokens == 0
        assert second.cached_tokens >= 64
        assert second.cached_tokens % 32 == 0
        assert second.input_tokens == first.input_tokens
        saved = second.cached_tokens * (ALPHA.input_nanousd - ALPHA.cached_nanousd) // 1_000_000
        assert first.spend_nanousd - second.spend_nanousd == pytest.approx(saved, abs=1)


def test_no_tenant_sees_what_another_has_in_the_prefix_cache(desk: Desk) -> None:
    text = "salted " + TEXT * 8
    with desk.client() as acme, desk.client(GLOBEX_KEY) as globex:
        assert cached(call(acme, "chat", text, is_stream=False)[1]) == 0
        assert cached(call(globex, "chat", text, is_stream=False)[1]) == 0
        assert cached(call(acme, "chat", text, is_stream=False)[1]) > 0
        assert cached(call(globex, "chat", text, is_stream=False)[1]) > 0


def test_a_salt_of_the_caller_s_is_replaced(desk: Desk) -> None:
    acme_salt = f"salt-{Tenant.objects.get(slug='acme').pk}"
    text = "guessed " + TEXT * 8
    with desk.client() as acme, desk.client(GLOBEX_KEY) as globex:
        call(acme, "chat", text, is_stream=False)
        guess = {"extra_body": {"cache_salt": acme_salt}}
        assert cached(call(globex, "chat", text, is_stream=False, **guess)[1]) == 0
        own = {"extra_body": {"cache_salt": "another"}}
        assert cached(call(acme, "chat", text, is_stream=False, **own)[1]) > 0


def _post(desk: Desk, path: str, secret: str = ACME_KEY, **body: Any) -> httpx.Response:
    return httpx.post(
        f"{desk.gateway.url}{path}",
        json={"model": "alpha-8b"} | body,
        headers={"authorization": f"Bearer {secret}"},
        trust_env=False,
        timeout=120,
    )


def _messages_usage(told: dict[str, Any]) -> tuple[int, int]:
    prompt = told["input_tokens"] + (told.get("cache_read_input_tokens") or 0)
    return prompt + (told.get("cache_creation_input_tokens") or 0), told["output_tokens"]


def test_other_operations_of_the_engine_are_billed_as_they_are_told(desk: Desk) -> None:
    said = [{"role": "user", "content": f"{uuid.uuid4()} {TEXT}"}]
    whole = _post(desk, "/v1/messages", messages=said, max_tokens=12)
    assert whole.status_code == 200, whole.text
    row = desk.row(whole.headers["request-id"])
    assert row.operation == "messages"
    assert (row.input_tokens, row.output_tokens) == _messages_usage(whole.json()["usage"])
    stream = _post(desk, "/v1/messages", messages=said, max_tokens=12, stream=True)
    events = payloads(stream.content)
    assert events[-1]["type"] == "message_stop"
    last = next(one for one in events if one["type"] == "message_delta")
    row = desk.row(stream.headers["request-id"])
    assert (row.input_tokens, row.output_tokens) == _messages_usage(last["usage"])
    assert row.usage_source == "reported"

    for is_stream in (False, True):
        body = {"input": said, "max_output_tokens": 12, "stream": is_stream}
        found = _post(desk, "/v1/responses", **body)
        assert found.status_code == 200, found.text
        whole_body = payloads(found.content)[-1]["response"] if is_stream else found.json()
        told = whole_body["usage"]
        row = desk.row(found.headers["x-request-id"])
        assert row.operation == "responses"
        assert (row.input_tokens, row.output_tokens) == (
            told["input_tokens"],
            told["output_tokens"],
        )
        assert (row.status, row.usage_source) == ("ok", "reported")

    counted = _post(desk, "/v1/messages/count_tokens", messages=said)
    row = desk.row(counted.headers["request-id"])
    assert row.input_tokens == counted.json()["input_tokens"] > 0
    cut = _post(desk, "/tokenize", messages=said)
    row = desk.row(cut.headers["x-request-id"])
    assert row.input_tokens == cut.json()["count"] == len(cut.json()["tokens"])


def test_what_this_engine_cannot_do_is_its_own_refusal_and_costs_nothing(desk: Desk) -> None:
    found = _post(desk, "/v1/embeddings", input="a")
    assert found.status_code in (400, 503), found.text
    assert found.json()["error"]["code"] in ("invalid_request", "model_unavailable")


def test_messages_of_one_tenant_are_not_in_the_prefix_cache_of_another(desk: Desk) -> None:
    said = [{"role": "user", "content": f"{uuid.uuid4()} {TEXT * 20}"}]
    cached = [
        desk.row(found.headers["request-id"]).cached_tokens
        for secret in (ACME_KEY, ACME_KEY, GLOBEX_KEY)
        for found in [_post(desk, "/v1/messages", secret, messages=said, max_tokens=1)]
    ]
    assert cached[0] == cached[2] == 0
    assert cached[1] > 0


PROMPTS = 20


def test_vllms_own_benchmark_counts_what_the_ledger_counts(
    desk: Desk, vllm_environment: VllmEnvironment, vllm_state: Path, tmp_path: Path
) -> None:
    """`vllm bench serve` through the gateway, as people load an engine: no call fails."""
    words = [
        *("bench", "serve", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions"),
        *("--base-url", desk.gateway.url, "--model", "alpha-8b"),
        *("--tokenizer", str(local_model("tiny", vllm_state)), "--ready-check-timeout-sec", "0"),
        *("--dataset-name", "random", "--random-input-len", "48", "--random-output-len", "12"),
        *("--num-prompts", str(PROMPTS), "--max-concurrency", "4", "--seed", "7"),
        *("--save-result", "--result-dir", str(tmp_path), "--result-filename", "bench.json"),
        "--disable-tqdm",
    ]
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(
        [str(vllm_environment.executable), *words],
        env={**os.environ, **offline, "OPENAI_API_KEY": ACME_KEY, "NO_PROXY": "127.0.0.1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    told = json.loads((tmp_path / "bench.json").read_text())
    assert (told["completed"], told["failed"]) == (PROMPTS, 0), done.stdout[-2000:]
    wait_until(lambda: Usage.objects.count() >= PROMPTS, 20, "the ledger rows")
    rows = list(Usage.objects.all())
    assert len(rows) == PROMPTS
    assert {(row.usage_source, row.status, row.is_stream) for row in rows} == {
        ("reported", "ok", True)
    }
    assert sum(row.input_tokens for row in rows) == told["total_input_tokens"] > 0
    assert sum(row.output_tokens for row in rows) == told["total_output_tokens"] > 0
    for row in rows:
        assert row.spend_nanousd == spend_nanousd(ALPHA, *billed(row)) > 0

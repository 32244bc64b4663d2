"""R28: there is no unmetered way to the upstream."""

import json
from pathlib import Path

import pytest
import redis

from routing.contracts.enums import Dimension, WindowKind
from tests.gatewaying import body_of, connect, read_response, serving, status_of
from tests.stack import ACME_KEY, GatewayProcess, limit
from tests.upstream import UpstreamThread

KNOWN = [
    ("POST", path)
    for path in (
        "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses",
        "/v1/messages", "/v1/messages/count_tokens", "/v1/rerank", "/rerank", "/v2/rerank",
        "/tokenize", "/detokenize", "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
        "/reset_prefix_cache", "/sleep", "/wake_up", "/v1/score", "/score", "/pooling",
        "/v1/responses/resp_1/cancel", "/v1/messages/batches", "/inference/v1/generate",
    )
]  # fmt: skip
METERED = {
    "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages",
    "/v1/messages/count_tokens", "/v1/rerank", "/v1/score", "/tokenize",
}  # fmt: skip
# A body that every operation takes.
ANY = {
    "prompt": "hi", "input": "hi", "query": "hi", "documents": ["a"], "text_1": "a", "text_2": "b",
}  # fmt: skip
PAGES = (
    "/v1/responses/resp_1",
    "/tokenizer_info",
    "/metrics",
    "/health",
    "/version",
    "/load",
    "/is_sleeping",
    "/",
)
KNOWN += [("GET", path) for path in PAGES]
ODD = [
    ("POST", path)
    for path in (
        "//v1/chat/completions", "/v1//chat/completions", "/v1/./chat/completions",
        "/v1/x/../chat/completions", "/v1/%2e/chat/completions", "/v1%2fchat%2fcompletions",
        "/V1/CHAT/COMPLETIONS", "/v1/chat/completions/", "/v1/chat/completions;x",
        "http://h/v1/chat/completions", "/v1/chat/completions%00", "/v1/models/../chat/completions",
        "*",
    )
]  # fmt: skip
METHODS = [
    (m, "/v1/chat/completions") for m in ("GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH")
]


def ask(gateway: GatewayProcess, method: str, path: str) -> int:
    body = json.dumps(body_of(**ANY)).encode()
    raw = (
        f"{method} {path} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {ACME_KEY}\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    with connect(gateway) as sock:
        sock.sendall(raw.encode() + body)
        return status_of(read_response(sock))


@pytest.mark.parametrize("budget", [0, 10**12], ids=["empty budget", "full budget"])
def test_every_way_is_metered_or_closed(
    tmp_path: Path, store: "redis.Redis[bytes]", budget: int
) -> None:
    limits = (limit(Dimension.SPEND_NANOUSD, budget, WindowKind.DAY),)
    with UpstreamThread() as upstream, serving(tmp_path, upstream, limits=limits) as gateway:
        for method, path in KNOWN + ODD + METHODS:
            is_metered = method == "POST" and path in METERED
            if is_metered and budget:
                continue
            status = ask(gateway, method, path)
            assert status in ((429,) if is_metered else (400, 403, 404, 405)), (
                method,
                path,
                status,
            )
        assert upstream.requests == []


def test_unknown_paths_are_typed_errors(tmp_path: Path, store: object) -> None:
    import httpx

    with UpstreamThread() as upstream, serving(tmp_path, upstream) as gateway:
        response = httpx.post(f"{gateway.url}/v1/images/generations", json={}, trust_env=False)
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "not_found"
        response = httpx.get(f"{gateway.url}/v1/chat/completions", trust_env=False)
        assert response.status_code == 405
        assert response.headers["allow"] == "POST"
        assert response.json()["error"]["code"] == "method_not_allowed"

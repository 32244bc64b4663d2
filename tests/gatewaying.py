"""A gateway process over the test store with scripted upstreams, and ways to talk to it."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import redis

from routing.contracts.process import GatewayStatus, decode_gateway_status
from routing.contracts.snapshot import bucket_of
from routing.contracts.usage import UsageEvent
from routing.store import keys
from tests.stack import (
    ACME_KEY,
    GatewayProcess,
    held,
    make_snapshot,
    start_gateway,
    usage_events,
    wait_until,
)
from tests.upstream import UpstreamThread

ACME = bucket_of("acme")


@contextlib.contextmanager
def serving(
    tmp_path: Path, *upstreams: UpstreamThread, env: dict[str, str] | None = None, **changes: Any
) -> Iterator[GatewayProcess]:
    """A ready gateway over the test store; `changes` as `make_snapshot` takes them."""
    snapshot = make_snapshot([u.address for u in upstreams], **changes)
    url, state = os.environ["REDIS_URL"], tmp_path / "state"
    with start_gateway(snapshot, url, state, **env or {}) as gateway:
        try:
            yield gateway
        finally:
            # Killed, not stopped: nobody reads its journal, and no ledger acknowledges its rows.
            gateway.process.kill()
            gateway.process.wait(10)


def next_status(store: "redis.Redis[bytes]", gateway_id: str = "g0") -> GatewayStatus:
    """What the gateway says of itself from now on, not what it said before."""

    def said() -> GatewayStatus | None:
        raw = store.hget(keys.GATEWAYS, gateway_id)
        return decode_gateway_status(raw) if raw else None

    before = said()
    at_ms = before.at_ms if before else 0
    wait_until(lambda: (now := said()) is not None and now.at_ms > at_ms, 10, "its next status")
    found = said()
    assert found is not None
    return found


def rows(store: "redis.Redis[bytes]", count: int, timeout_s: float = 5.0) -> list[UsageEvent]:
    """acme's usage events, once there are `count` and nothing is held."""

    def ready() -> bool:
        return len(usage_events(store, ACME)) >= count and held(store, ACME) == 0

    wait_until(ready, timeout_s, f"{count} rows and nothing held")
    found = [event for _, event in usage_events(store, ACME)]
    assert len(found) == count, [event.status for event in found]
    return found


def row(store: "redis.Redis[bytes]", timeout_s: float = 5.0) -> UsageEvent:
    """The one usage event of acme."""
    return rows(store, 1, timeout_s)[0]


def body_of(**fields: Any) -> dict[str, Any]:
    """A small chat request."""
    base = {"model": "alpha-8b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 100}
    return base | fields


@contextlib.contextmanager
def streaming(gateway: GatewayProcess, **fields: Any) -> Iterator[httpx.Response]:
    """An open streamed response."""
    with (
        httpx.Client(timeout=30, trust_env=False) as client,
        client.stream(
            "POST",
            f"{gateway.url}/v1/chat/completions",
            json=body_of(stream=True, **fields),
            headers={"authorization": f"Bearer {ACME_KEY}"},
        ) as response,
    ):
        yield response


def payloads(raw: bytes) -> list[Any]:
    """`data:` payloads of a stream, decoded; `[DONE]` as it is. The test's own simple parser."""
    found: list[Any] = []
    text = raw.decode().removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    for block in text.split("\n\n"):
        lines = [
            line[5:].removeprefix(" ") for line in block.split("\n") if line.startswith("data:")
        ]
        if lines:
            joined = "\n".join(lines)
            found.append(joined if joined == "[DONE]" else json.loads(joined))
    return found


def stream(gateway: GatewayProcess, **fields: Any) -> list[Any]:
    """A whole streamed answer's payloads; asserts 200."""
    with streaming(gateway, **fields) as response:
        raw = response.read()
        assert response.status_code == 200, raw
    return payloads(raw)


def text_of(events: list[Any]) -> str:
    """Joined content of chat chunks."""
    return "".join(
        choice["delta"].get("content") or ""
        for event in events
        if isinstance(event, dict)
        for choice in event.get("choices", [])
    )


def error_of(event: Any) -> str:
    """Code of an error object."""
    return str(event["error"]["code"])


def raw_request(body: bytes, path: str = "/v1/chat/completions", headers: str = "") -> bytes:
    """Bytes of a POST with acme's key."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {ACME_KEY}\r\n"
        f"content-type: application/json\r\n{headers}content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def connect(gateway: GatewayProcess, timeout_s: float = 10.0) -> socket.socket:
    """A plain connection to the gateway."""
    return socket.create_connection(("127.0.0.1", gateway.port), timeout_s)


def exchange_raw(gateway: GatewayProcess, raw: bytes, timeout_s: float = 10.0) -> bytes:
    """Send bytes, read one whole response with a length (or until close)."""
    with connect(gateway, timeout_s) as sock:
        sock.sendall(raw)
        return read_response(sock)


def read_response(sock: socket.socket) -> bytes:
    """One response with a content-length, or what comes until close."""
    data = b""
    while True:
        head, _, body = data.partition(b"\r\n\r\n")
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:") and len(body) >= int(line.split(b":")[1]):
                return data
        try:
            piece = sock.recv(65536)
        except ConnectionResetError:
            return data
        if not piece:
            return data
        data += piece


def status_of(raw: bytes) -> int:
    """Status code of a raw response; 0 when the connection was closed without one."""
    return int(raw.split(b" ", 2)[1]) if raw.startswith(b"HTTP/") else 0

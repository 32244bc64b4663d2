"""Our gateway in front of real engines, and what the engines say of themselves."""

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import redis
from prometheus_client.parser import text_string_to_metric_families

from routing.contracts.snapshot import EndpointEntry, PoolEntry, Snapshot
from tests.gatewaying import payloads
from tests.stack import (
    ACME_KEY,
    GatewayProcess,
    make_snapshot,
    model,
    policy,
    start_gateway,
    wait_until,
)
from tests.vllm.conftest import RunningVllm

DEADLINES = (60.0, 30.0, 170.0)  # the machine is small and shared
# About 20 words a line of which the local models know most; no number, so prompts can be told apart
TEXT = "all the words about above across after again air all almost along also always and answer "


def pool_of(name: str, *engines: RunningVllm) -> PoolEntry:
    """A pool whose replicas are these engines, called as they are."""
    endpoints = tuple(
        EndpointEntry(
            one.name, "127.0.0.1", one.port, kv_events=one.kv_events, kv_replay=one.kv_replay
        )
        for one in engines
    )
    served = engines[0].model
    return PoolEntry(name, served, "local", "local-a", "cpu", 0, 32, endpoints, takes_priority=True)


def snapshot_of(*pools: PoolEntry, **changes: Any) -> Snapshot:
    """Model alpha-8b on these pools, the first one preferred."""
    names = tuple(pool.id for pool in pools)
    fields: dict[str, Any] = {
        "policy": policy(deadlines=DEADLINES),
        "models": {"alpha-8b": model("alpha-8b", names)},
        "pools": {pool.id: pool for pool in pools},
    }
    return make_snapshot([], **(fields | changes))


@contextlib.contextmanager
def gateway_over(
    tmp_path: Path, snapshot: Snapshot, *, is_published: bool = False
) -> Iterator[GatewayProcess]:
    """A ready gateway; killed at the end. `is_published`: a ledger writer opens its buckets."""
    url = os.environ["REDIS_URL"]
    with start_gateway(None if is_published else snapshot, url, tmp_path / "state") as gateway:
        try:
            yield gateway
        finally:
            gateway.process.kill()
            gateway.process.wait(10)


def metrics(engine: RunningVllm) -> dict[str, float]:
    """Its samples by name, added up over labels."""
    page = httpx.get(f"{engine.url}/metrics", timeout=10, trust_env=False).text
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def load(engine: RunningVllm) -> tuple[int, int]:
    """(running, waiting) requests."""
    found = metrics(engine)
    return int(found["vllm:num_requests_running"]), int(found["vllm:num_requests_waiting"])


def wait_load(engine: RunningVllm, running: int, waiting: int = 0, timeout_s: float = 20) -> None:
    """Until the engine has exactly this work."""
    wait_until(
        lambda: load(engine) == (running, waiting), timeout_s, f"{running} running, {waiting} wait"
    )


def generated(engine: RunningVllm) -> int:
    """Output tokens of its life."""
    return int(metrics(engine)["vllm:generation_tokens_total"])


def chat_body(text: str = "hi", **fields: Any) -> dict[str, Any]:
    """A chat request for the gateway; it asks for exactly its `max_tokens`."""
    message = [{"role": "user", "content": text}]
    return {"model": "alpha-8b", "messages": message, "max_tokens": 16} | fields


class Call:
    """One request in a thread of its own: open streams and waiting calls that a test watches."""

    def __init__(self, url: str, body: dict[str, Any], **headers: str) -> None:
        self.status = 0
        self.headers = httpx.Headers()
        self.raw = b""
        self.error = ""
        self.has_ended = threading.Event()
        self._gone = threading.Event()
        given = {"authorization": f"Bearer {ACME_KEY}"} | headers
        self._client = httpx.Client(timeout=170, trust_env=False)
        self._thread = threading.Thread(target=self._run, args=(url, body, given), daemon=True)
        self._thread.start()

    @property
    def events(self) -> list[Any]:
        """Payloads that have come so far."""
        return payloads(self.raw[: self.raw.rfind(b"\n\n") + 2])

    @property
    def json(self) -> Any:
        """The whole answer."""
        return json.loads(self.raw)

    @property
    def chunks(self) -> int:
        """Events with output so far."""
        return sum(
            1
            for event in self.events
            if isinstance(event, dict)
            for choice in event.get("choices", [])
            if choice.get("text") or choice.get("delta", {}).get("content")
        )

    def wait_chunks(self, count: int) -> None:
        """Until so many have come."""
        wait_until(lambda: self.chunks >= count or self.has_ended.is_set(), 60, "output")
        assert self.chunks >= count, self.raw[-500:]

    def finish(self, timeout_s: float = 120) -> "Call":
        """Wait for its end."""
        assert self.has_ended.wait(timeout_s), "the call goes on"
        assert not self.error, self.error
        return self

    def hang_up(self) -> None:
        """Drop the connection, as a client that goes away does."""
        self._gone.set()
        for connection in self._client._transport._pool.connections:  # type: ignore[attr-defined]
            stream = connection._connection._network_stream
            stream.get_extra_info("socket").shutdown(2)
        assert self.has_ended.wait(10)

    def _run(self, url: str, body: dict[str, Any], headers: dict[str, str]) -> None:
        try:
            with self._client.stream("POST", url, json=body, headers=headers) as response:
                self.status, self.headers = response.status_code, response.headers
                for piece in response.iter_raw():
                    self.raw += piece
        except httpx.HTTPError as error:
            if not self._gone.is_set():
                self.error = repr(error)
        finally:
            self._client.close()
            self.has_ended.set()


def chat(gateway: GatewayProcess, text: str = "hi", headers: Any = (), **fields: Any) -> Call:
    """A chat request through the gateway, under way."""
    url = f"{gateway.url}/v1/chat/completions"
    return Call(url, chat_body(text, **fields), **dict(headers))


def directly(engine: RunningVllm, text: str = "hi", **fields: Any) -> Call:
    """A chat request that goes round the gateway, under way."""
    url = f"{engine.url}/v1/chat/completions"
    return Call(url, chat_body(text, **fields) | {"model": engine.model})


def store_client() -> "redis.Redis[bytes]":
    """A client of the test's store."""
    return redis.Redis.from_url(os.environ["REDIS_URL"])

"""KV events of a real engine over its ipc socket: hashes and counts arrive, token ids do not."""

import gc
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import zmq

from routing.contracts.endpoint_state import EndpointState
from routing.store import keys
from telemetry.collector.kv_blocks import Message, read_message
from telemetry.collector.kv_events import KvReader
from tests.collecting import endpoint, start_collector
from tests.stack import publish, wait_until
from tests.vllm.conftest import RunningVllm
from tests.vllm.serving import (
    TEXT,
    directly,
    metrics,
    pool_of,
    snapshot_of,
    store_client,
    wait_load,
)

BLOCK_TOKENS = 32


@pytest.fixture
def context() -> Iterator["zmq.Context[Any]"]:
    """Ended with its sockets whatever the test came to: one left open would hang our exit."""
    made: zmq.Context[Any] = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def socket(context: "zmq.Context[Any]", tiny_vllm: RunningVllm) -> "zmq.Socket[bytes]":
    """A plain subscription, to see what the engine sends."""
    made = context.socket(zmq.SUB)
    made.setsockopt(zmq.SUBSCRIBE, b"")
    made.connect(tiny_vllm.kv_events)
    return made


def reader_of(context: "zmq.Context[Any]", engine: RunningVllm) -> KvReader:
    """The collector's own reader."""
    return KvReader(context, engine.kv_events, engine.kv_replay)


def ids_of(engine: RunningVllm, text: str) -> list[int]:
    """Token ids of the prompt, as the engine makes them."""
    body = {"model": engine.model, "messages": [{"role": "user", "content": text}]}
    answer = httpx.post(f"{engine.url}/tokenize", json=body, timeout=20, trust_env=False)
    return answer.json()["tokens"]


def heard(socket: "zmq.Socket[bytes]", what: str) -> list[list[bytes]]:
    """Frames until the engine has been silent for a while, at least one."""
    found: list[list[bytes]] = []
    wait_until(lambda: socket.poll(100), 20, what)
    while socket.poll(500):
        found.append(socket.recv_multipart())
    return found


def stored(messages: list[Message]) -> set[int]:
    return {h for m in messages for kind, hashes in m.changes for h in hashes if "Stored" in kind}


def read_until(reader: KvReader, wanted: Any, what: str) -> None:
    def ready() -> bool:
        reader.turn(time.monotonic(), 1000)
        return bool(wanted(reader.resident))

    wait_until(ready, 20, what)


def test_a_prompts_blocks_arrive_once_and_are_the_same_for_the_same_prompt(
    tiny_vllm: RunningVllm, socket: "zmq.Socket[bytes]"
) -> None:
    wait_load(tiny_vllm, 0)
    # The subscription is there once something arrives.
    count = iter(range(100))

    def subscribed() -> bool:
        directly(tiny_vllm, f"{next(count)} {TEXT * 3}", cache_salt="first").finish()
        return bool(socket.poll(300))

    wait_until(subscribed, 30, "the first event")
    heard(socket, "what was before")
    text = "events " + TEXT * 8
    whole_blocks = len(ids_of(tiny_vllm, text)) // BLOCK_TOKENS
    asked = {"max_tokens": 1, "cache_salt": "kv-test"}
    directly(tiny_vllm, text, **asked).finish()
    first = stored([read_message(frames) for frames in heard(socket, "stored blocks")])
    assert len(first) == whole_blocks > 3
    directly(tiny_vllm, text, **asked).finish()
    assert not socket.poll(500), "nothing new is stored the second time"
    # The same words under another salt are other blocks.
    directly(tiny_vllm, text, **asked | {"cache_salt": "kv-other"}).finish()
    other = stored([read_message(frames) for frames in heard(socket, "another salt")])
    assert len(other) == whole_blocks
    assert first.isdisjoint(other)


def test_no_token_id_of_a_prompt_leaves_the_decoder(
    tiny_vllm: RunningVllm,
    context: "zmq.Context[Any]",
    store: "redis.Redis[bytes]",
    tmp_path: Path,
) -> None:
    text = "secret " + TEXT * 8
    with closing(store_client()) as client:
        publish(store, snapshot_of(pool_of("p1", tiny_vllm)))
        reader = reader_of(context, tiny_vllm)

        def told_alike() -> bool:
            reader.turn(time.monotonic(), 1000)  # blocks may still arrive, at both of us
            return _resident(client) == reader.resident

        with start_collector(os.environ["REDIS_URL"], tmp_path) as collector:
            read_until(reader, lambda count: count is not None, "the replay")
            before = reader.resident or 0
            directly(tiny_vllm, text, cache_salt="salt-of-secret").finish()
            read_until(reader, lambda count: count > before, "its blocks")
            wait_until(told_alike, 20, "told by the collector")
            ids = ids_of(tiny_vllm, text)
            assert len(ids) > 100
            held = [
                one
                for one in gc.get_objects()
                if isinstance(one, list | tuple) and one is not ids and _holds(one, ids)
            ]
            assert held == []
            assert reader.table._blocks.isdisjoint(ids)
            told = b"".join([client.get(keys.pool_state("p1")) or b"", *_live(client)])
            assert b"salt-of-secret" not in told
            assert b"salt-of-secret" not in collector.log.read_bytes()


def _holds(one: Any, ids: list[int]) -> bool:
    """Whether a sequence has ten of the prompt's ids in a row."""
    part = list(ids[20:30])
    return len(one) >= len(part) and any(
        list(one[at : at + len(part)]) == part for at in range(min(len(one), 500))
    )


def _resident(client: "redis.Redis[bytes]") -> int | None:
    state: EndpointState | None = endpoint(client, "p1")
    return state.resident_kv_blocks if state else None


def _live(client: "redis.Redis[bytes]") -> list[bytes]:
    return list(client.hgetall(keys.LIVE).values())


def test_a_late_listener_gets_the_same_count_from_the_replay(
    tiny_vllm: RunningVllm, context: "zmq.Context[Any]"
) -> None:
    directly(tiny_vllm, "late " + TEXT * 4).finish()
    readers = [reader_of(context, tiny_vllm) for _ in range(2)]
    counts = []
    for reader in readers:
        read_until(reader, lambda count: count is not None, "the replay")
        counts.append(reader.resident)
    assert counts[0] == counts[1]
    assert counts[0] > 0


def test_blocks_that_are_pushed_out_are_counted_out(
    small_kv_vllm: RunningVllm, context: "zmq.Context[Any]"
) -> None:
    wait_load(small_kv_vllm, 0)
    reader = reader_of(context, small_kv_vllm)
    queried = "vllm:prefix_cache_queries_total"
    before = metrics(small_kv_vllm)[queried]
    for count in range(12):
        directly(small_kv_vllm, f"{count} {TEXT * 24}", max_tokens=2).finish()
    assert metrics(small_kv_vllm)[queried] - before > 128 * BLOCK_TOKENS, "more than fits"
    read_until(reader, lambda blocks: blocks is not None and blocks > 100, "a full cache")
    assert (reader.resident or 0) <= 128

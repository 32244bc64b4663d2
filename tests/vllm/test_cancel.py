"""A caller that goes away stops the engine's work, and pays for what was produced."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from routing.contracts.enums import RequestStatus
from routing.contracts.pricing import spend_nanousd
from tests.gatewaying import row
from tests.stack import ALPHA, GatewayProcess
from tests.vllm.conftest import RunningVllm
from tests.vllm.serving import (
    chat,
    directly,
    gateway_over,
    generated,
    pool_of,
    snapshot_of,
    wait_load,
)

LONG = 3000  # tokens: far more than are produced before the test hangs up
IDLE_AGAIN_S = 5.0


@pytest.fixture
def gateway(store: Any, tmp_path: Path, tiny_vllm: RunningVllm) -> Iterator[GatewayProcess]:
    wait_load(tiny_vllm, 0)
    with gateway_over(tmp_path, snapshot_of(pool_of("p1", tiny_vllm))) as running:
        yield running


def test_hanging_up_on_a_stream_stops_the_engine_and_bills_what_was_sent(
    gateway: GatewayProcess, store: "redis.Redis[bytes]", tiny_vllm: RunningVllm
) -> None:
    before = generated(tiny_vllm)
    call = chat(gateway, "stream", stream=True, max_tokens=LONG)
    call.wait_chunks(20)
    call.hang_up()
    wait_load(tiny_vllm, 0, timeout_s=IDLE_AGAIN_S)
    event = row(store)
    made = generated(tiny_vllm) - before
    assert event.status is RequestStatus.CANCELLED
    assert call.chunks <= event.output_tokens <= made < LONG
    assert event.input_tokens > 0
    told = (event.input_tokens, event.cached_tokens, event.output_tokens)
    assert event.spend_nanousd == spend_nanousd(ALPHA, *told) > 0


def test_hanging_up_on_a_whole_answer_stops_the_engine_and_bills_the_prompt(
    gateway: GatewayProcess, store: "redis.Redis[bytes]", tiny_vllm: RunningVllm
) -> None:
    before = generated(tiny_vllm)
    call = chat(gateway, "whole", max_tokens=LONG)
    wait_load(tiny_vllm, 1)
    call.hang_up()
    wait_load(tiny_vllm, 0, timeout_s=IDLE_AGAIN_S)
    event = row(store)
    assert event.status is RequestStatus.CANCELLED
    assert event.input_tokens > 0
    assert event.spend_nanousd > 0
    assert generated(tiny_vllm) - before < LONG


@pytest.mark.parametrize("is_stream", [True, False])
def test_hanging_up_while_waiting_takes_the_request_out_of_the_queue(
    store: "redis.Redis[bytes]", tmp_path: Path, tight_vllm: RunningVllm, is_stream: bool
) -> None:
    wait_load(tight_vllm, 0)
    first = directly(tight_vllm, "in the way", stream=True, max_tokens=LONG)
    first.wait_chunks(1)
    with gateway_over(tmp_path, snapshot_of(pool_of("p1", tight_vllm))) as gateway:
        call = chat(gateway, "behind", stream=is_stream, max_tokens=LONG)
        wait_load(tight_vllm, 1, 1)
        call.hang_up()
        wait_load(tight_vllm, 1, 0, timeout_s=IDLE_AGAIN_S)
        event = row(store)
        assert (event.status, event.output_tokens) == (RequestStatus.CANCELLED, 0)
        assert not first.has_ended.is_set()
    first.hang_up()
    wait_load(tight_vllm, 0)

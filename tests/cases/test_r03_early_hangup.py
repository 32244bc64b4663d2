"""R03: a caller who hangs up early is still billed, once, and nothing stays held."""

import json
import time
from pathlib import Path

import pytest
import redis

from routing.contracts.enums import RequestStatus, UsageSource
from routing.contracts.process import decode_gateway_status
from routing.contracts.usage import UsageEvent
from routing.store import keys
from tests.gatewaying import ACME, body_of, connect, raw_request, row, serving, streaming
from tests.stack import GatewayProcess, held, wait_until
from tests.upstream import Send, UpstreamThread, Wait, framed, json_script, stream_script, usage

TEXTS = [f"w{i} " for i in range(50)]


def read_content(gateway: GatewayProcess, count: int) -> None:
    """Read until `count` content events have come, then drop the connection."""
    with streaming(gateway) as response:
        seen = 0
        for line in response.iter_lines():
            seen += '"content":"w' in line
            if seen == count:
                return


def check_closed(upstream: UpstreamThread, dropped_at: float) -> None:
    seen = upstream.completions[0]
    wait_until(lambda: seen.closed_at, 2, "upstream connection closed")
    assert seen.closed_at is not None
    assert seen.closed_at - dropped_at < 2


def check_quiet(gateway: GatewayProcess, store: "redis.Redis[bytes]") -> None:
    """Within 3 s of the drop nothing is held, and the gateway says that nothing runs."""

    def in_flight() -> list[int]:
        found = [decode_gateway_status(raw) for raw in store.hgetall(keys.GATEWAYS).values()]
        return [status.in_flight for status in found]

    wait_until(lambda: (held(store, ACME), in_flight()) == (0, [0]), 3, "nothing held or running")


def check_row(event: UsageEvent, low: int, high: int) -> None:
    assert event.status is RequestStatus.CANCELLED
    assert low <= event.output_tokens <= high
    assert event.spend_nanousd > 0
    assert event.input_tokens > 0
    assert event.usage_source is UsageSource.COUNTED


@pytest.mark.parametrize(("read", "low", "high"), [(20, 20, 40), (50, 45, 55)])
def test_a_dropped_stream_is_billed_for_what_was_relayed(
    tmp_path: Path, store: "redis.Redis[bytes]", read: int, low: int, high: int
) -> None:
    script = stream_script(TEXTS, usage(200, 50), gap_s=0.1)
    usage_at = next(i for i, s in enumerate(script) if isinstance(s, Send) and b'"usage"' in s.data)
    script.insert(usage_at, Wait(20))  # (b): the drop comes before the usage chunk
    with UpstreamThread(script) as upstream, serving(tmp_path, upstream) as gateway:
        read_content(gateway, read)
        check_closed(upstream, time.monotonic())
        check_row(row(store, 3), low, high)
        check_quiet(gateway, store)


def test_a_dropped_whole_answer_is_billed_its_prompt(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    with (
        UpstreamThread(json_script(delay_s=10)) as upstream,
        serving(tmp_path, upstream) as gateway,
    ):
        with connect(gateway) as sock:
            sock.sendall(raw_request(json.dumps(body_of()).encode()))
            wait_until(lambda: upstream.completions, 3, "request at the upstream")
        check_closed(upstream, time.monotonic())
        check_row(row(store, 3), 0, 0)
        check_quiet(gateway, store)


def test_usage_that_had_arrived_is_used(tmp_path: Path, store: "redis.Redis[bytes]") -> None:
    script = stream_script(TEXTS[:5], usage(200, 5))
    done_at = next(i for i, s in enumerate(script) if s == Send(framed(b"data: [DONE]\n\n")))
    script.insert(done_at, Wait(20))
    with UpstreamThread(script) as upstream, serving(tmp_path, upstream) as gateway:
        with streaming(gateway, stream_options={"include_usage": True}) as response:
            for line in response.iter_lines():
                if '"usage"' in line:
                    break
        event = row(store, 3)
        assert event.status is RequestStatus.CANCELLED
        assert (event.usage_source, event.input_tokens) == (UsageSource.REPORTED, 200)


def test_a_caller_that_has_read_the_end_has_cancelled_nothing(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    """The official client closes on `[DONE]`; a busy engine ends its framing later."""
    script = stream_script(TEXTS[:5], usage(200, 5))
    end_at = 1 + next(i for i, s in enumerate(script) if s == Send(framed(b"data: [DONE]\n\n")))
    script.insert(end_at, Wait(20))
    with UpstreamThread(script) as upstream, serving(tmp_path, upstream) as gateway:
        with streaming(gateway) as response:
            for line in response.iter_lines():
                if line == "data: [DONE]":
                    break
        check_closed(upstream, time.monotonic())
        event = row(store, 3)
        assert event.status is RequestStatus.OK
        assert (event.usage_source, event.input_tokens) == (UsageSource.REPORTED, 200)
        assert held(store, 0) == 0

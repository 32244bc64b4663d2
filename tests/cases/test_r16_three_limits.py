"""R16: first-token, between-token and total time limits are three different things."""

import contextlib
import time
from pathlib import Path

import httpx
import redis

from routing.contracts.enums import RequestStatus
from tests.gatewaying import (
    ACME,
    body_of,
    error_of,
    next_status,
    row,
    serving,
    stream,
    streaming,
    text_of,
)
from tests.stack import ACME_KEY, GatewayProcess, held, policy, wait_until
from tests.upstream import (
    Hang,
    Send,
    UpstreamThread,
    Wait,
    delta,
    event,
    framed,
    json_script,
    sse_head,
    stream_script,
)

LIMITS = policy(deadlines=(2.0, 2.0, 60.0))
FIVE = [Send(framed(event(delta(f"t{i}")))) for i in range(5)]
COMMENT = Send(framed(b": still here\n\n"))


def limited(
    tmp_path: Path, upstream: UpstreamThread
) -> contextlib.AbstractContextManager[GatewayProcess]:
    """A gateway with this test's limits."""
    return serving(tmp_path, upstream, policy=LIMITS)


def check_let_go(store: "redis.Redis[bytes]", upstream: UpstreamThread) -> None:
    """Slot and hold are released, the upstream is closed, within a second."""
    wait_until(lambda: held(store, ACME) == 0, 1, "nothing held")
    wait_until(lambda: upstream.completions[0].closed_at, 1, "upstream closed")


def test_silence_before_the_first_token(tmp_path: Path, store: "redis.Redis[bytes]") -> None:
    with (
        UpstreamThread([Hang()]) as upstream,
        serving(tmp_path, upstream, policy=LIMITS) as gateway,
    ):
        since = time.monotonic()
        with streaming(gateway) as response:
            response.read()
            assert 2 <= time.monotonic() - since < 3
            assert response.status_code == 504
            assert error_of(response.json()) == "upstream_timeout"
        check_let_go(store, upstream)
        found = row(store)
        assert found.status is RequestStatus.FAILED
        assert found.spend_nanousd == 0


def test_a_whole_answer_that_never_comes_is_504(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    with (
        UpstreamThread([Hang()]) as upstream,
        serving(tmp_path, upstream, policy=LIMITS) as gateway,
    ):
        since = time.monotonic()
        response = gateway.chat(**body_of(max_tokens=5))
        assert 2 <= time.monotonic() - since < 3
        assert (response.status_code, error_of(response.json())) == (504, "upstream_timeout")
        check_let_go(store, upstream)


def test_silence_between_tokens_is_an_error_event(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    script = [sse_head(), *FIVE, Hang()]
    with UpstreamThread(script) as upstream, limited(tmp_path, upstream) as gateway:
        since = time.monotonic()
        events = stream(gateway)
        assert 2 <= time.monotonic() - since < 3
        assert text_of(events[:-1]) == "t0t1t2t3t4"
        assert error_of(events[-1]) == "upstream_timeout"
        check_let_go(store, upstream)
        found = row(store)
        assert (found.status, found.output_tokens) == (RequestStatus.INCOMPLETE, 5)


def test_a_slow_steady_answer_completes(tmp_path: Path, store: object) -> None:
    limits = policy(deadlines=(1.0, 1.0, 60.0))
    script = stream_script([f"t{i}" for i in range(8)], gap_s=0.5)
    with UpstreamThread(script) as upstream, serving(tmp_path, upstream, policy=limits) as gateway:
        assert stream(gateway)[-1] == "[DONE]"


def test_comments_for_ever_are_silence(tmp_path: Path, store: "redis.Redis[bytes]") -> None:
    script = [sse_head(), *[step for _ in range(40) for step in (COMMENT, Wait(0.5))]]
    with UpstreamThread(script) as upstream, limited(tmp_path, upstream) as gateway:
        since = time.monotonic()
        with streaming(gateway) as response:
            response.read()
            assert 2 <= time.monotonic() - since < 3
            assert response.status_code == 504
        check_let_go(store, upstream)


def test_the_total_limit_ends_a_steady_answer(tmp_path: Path, store: object) -> None:
    limits = policy(deadlines=(2.0, 2.0, 1.5))
    script = stream_script([f"t{i}" for i in range(40)], gap_s=0.1)
    with UpstreamThread(script) as upstream, serving(tmp_path, upstream, policy=limits) as gateway:
        since = time.monotonic()
        last = stream(gateway)[-1]
        assert error_of(last) == "deadline_exceeded"
        assert "1.5 s in all after " in last["error"]["message"]
        assert 1.5 <= time.monotonic() - since < 2.5


def test_a_callers_own_short_time_is_no_replicas_fault(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    with (
        UpstreamThread(json_script(delay_s=0.5)) as upstream,
        limited(tmp_path, upstream) as gateway,
    ):
        headers = {"authorization": f"Bearer {ACME_KEY}", "x-headrace-deadline-ms": "100"}
        url = f"{gateway.url}/v1/chat/completions"
        for _ in range(6):  # five failures in a row would open a breaker
            late = httpx.post(url, json=body_of(), headers=headers, timeout=30, trust_env=False)
            assert (late.status_code, error_of(late.json())) == (504, "deadline_exceeded")
            assert late.headers["x-headrace-limit"] == "total_s"
        assert gateway.chat().status_code == 200
        assert not next_status(store).open_breakers

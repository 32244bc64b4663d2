"""R09: an error inside a 200 stream is treated as an error."""

import json
from pathlib import Path

import pytest
import redis

from routing.contracts.enums import RequestStatus
from tests.gatewaying import (
    ACME,
    body_of,
    connect,
    error_of,
    raw_request,
    row,
    rows,
    serving,
    stream,
    streaming,
    text_of,
)
from tests.stack import usage_events, wait_until
from tests.upstream import (
    LAST,
    Script,
    Send,
    UpstreamThread,
    answer,
    chunk,
    delta,
    event,
    framed,
    json_script,
    sse_head,
    stream_script,
    usage,
)

ERROR = {"error": {"message": "overloaded", "code": 503}}
FIRST = [sse_head(), Send(framed(event(ERROR))), Send(framed(event("[DONE]"))), Send(LAST)]
EMPTY = [sse_head(), Send(framed(event(chunk([], **ERROR)))), Send(LAST)]
TEN = [Send(framed(event(delta(f"t{i}")))) for i in range(10)]
AFTER = [sse_head(), *TEN, Send(framed(event(ERROR))), Send(framed(event("[DONE]"))), Send(LAST)]


@pytest.mark.parametrize("script", [FIRST, EMPTY], ids=["first event", "empty choices"])
def test_alone_it_is_a_503_in_json(
    tmp_path: Path, store: "redis.Redis[bytes]", script: Script
) -> None:
    with UpstreamThread(script) as u1, serving(tmp_path, u1) as gateway:
        with streaming(gateway) as response:
            response.read()
            assert response.status_code == 503
            assert response.headers["content-type"] == "application/json"
            assert error_of(response.json()) == "no_capacity"
        ((kind, found),) = wait_until(lambda: usage_events(store, ACME), 3)
        assert kind == "v", "no upstream took it on: void"
        assert found.status is RequestStatus.FAILED
        assert found.spend_nanousd == 0


@pytest.mark.parametrize("script", [FIRST, EMPTY], ids=["first event", "empty choices"])
def test_with_a_second_upstream_the_caller_gets_one_normal_answer(
    tmp_path: Path, store: "redis.Redis[bytes]", script: Script
) -> None:
    with (
        UpstreamThread(script) as u1,
        UpstreamThread(stream_script(["fine"])) as u2,
        serving(tmp_path, u1, u2) as gateway,
    ):
        for _ in range(6):
            assert text_of(stream(gateway)) == "fine"
        assert u1.completions, "ties bring some to the first"
        found = rows(store, 6)
        assert {f.status for f in found} == {RequestStatus.OK}
        assert {f.attempts for f in found} <= {1, 2}


def test_after_content_it_is_one_error_event_and_no_done(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    with (
        UpstreamThread(AFTER) as u1,
        UpstreamThread(AFTER) as u2,
        serving(tmp_path, u1, u2) as gateway,
    ):
        events = stream(gateway)
        assert text_of(events) == "".join(f"t{i}" for i in range(10))
        assert error_of(events[-1]) == "no_capacity"
        assert "[DONE]" not in events
        assert len(u1.completions) + len(u2.completions) == 1
        found = row(store)
        assert found.status is RequestStatus.INCOMPLETE
        assert found.output_tokens == 10


def test_the_connection_of_a_cut_stream_serves_the_next_call(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    """Clients pool connections: one closed behind a whole body would lose a call that is sent."""
    with (
        UpstreamThread(AFTER, json_script()) as u1,
        serving(tmp_path, u1) as gateway,
        connect(gateway) as sock,
    ):
        for is_stream in (True, False):
            sock.sendall(raw_request(json.dumps(body_of(stream=is_stream)).encode()))
        data = b""
        while b'"hello"' not in data:
            piece = sock.recv(65536)
            assert piece, data
            data += piece
        assert data.count(b"HTTP/1.1 200 OK") == 2
        assert b'"code":"no_capacity"' in data


def test_the_upstreams_failure_count_rises_until_it_is_left_alone(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    with (
        UpstreamThread(FIRST) as u1,
        UpstreamThread(stream_script(["fine"])) as u2,
        serving(tmp_path, u1, u2) as gateway,
    ):
        for _ in range(40):
            stream(gateway)
        assert len(u1.completions) == 5, "the breaker opens at the fifth"


# vLLM that shuts down ends what it has with the finish reason "abort": a 200, then `[DONE]`.
ABORT = [Send(framed(event(delta("", "abort")))), Send(framed(event("[DONE]"))), Send(LAST)]
CUT = [sse_head(), *TEN, *ABORT]
REFUSED = [sse_head(), Send(framed(event(delta("", role="assistant")))), *ABORT]


def aborted(text: str, tokens: int) -> Script:
    """A whole answer that its engine gave up."""
    body = answer(text, usage(7, tokens))
    body["choices"][0]["finish_reason"] = "abort"
    return json_script(body)


def test_a_stream_that_the_engine_gives_up_is_no_success(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    with UpstreamThread(CUT) as u1, serving(tmp_path, u1) as gateway:
        events = stream(gateway)
        assert text_of(events) == "".join(f"t{i}" for i in range(10))
        assert error_of(events[-1]) == "upstream_error"
        assert "after 10 output tokens" in events[-1]["error"]["message"]
        assert "[DONE]" not in events
        found = row(store)
        assert (found.status, found.output_tokens) == (RequestStatus.INCOMPLETE, 10)


@pytest.mark.parametrize("is_stream", [True, False])
def test_what_an_engine_gives_up_before_any_output_is_answered_by_another(
    tmp_path: Path, store: "redis.Redis[bytes]", is_stream: bool
) -> None:
    bad = REFUSED if is_stream else aborted("", 0)
    good = stream_script(["fine"]) if is_stream else json_script(answer("fine"))
    with (
        UpstreamThread(bad) as u1,
        UpstreamThread(good) as u2,
        serving(tmp_path, u1, u2) as gateway,
    ):
        for _ in range(6):
            if is_stream:
                assert text_of(stream(gateway)) == "fine"
            else:
                body = gateway.chat().json()
                assert body["choices"][0]["message"]["content"] == "fine"
        assert len(u1.completions) == 1, "it is left alone from then on"
        assert {f.status for f in rows(store, 6)} == {RequestStatus.OK}


def test_a_whole_answer_that_the_engine_gives_up_half_way_is_an_error(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    with UpstreamThread(aborted("half an ans", 4)) as u1, serving(tmp_path, u1) as gateway:
        refused = gateway.chat()
        assert refused.status_code == 502
        assert error_of(refused.json()) == "upstream_error"
        ((_, found),) = wait_until(lambda: usage_events(store, ACME), 3)
        assert found.status is RequestStatus.FAILED

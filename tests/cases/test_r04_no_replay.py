"""R04: nothing is replayed once the caller has seen output."""

from pathlib import Path

import pytest
import redis

from routing.contracts.enums import RequestStatus
from routing.contracts.snapshot import FailurePolicy
from tests.gatewaying import error_of, row, serving, stream, streaming, text_of
from tests.stack import policy
from tests.upstream import (
    Reset,
    Send,
    UpstreamThread,
    delta,
    event,
    framed,
    sse_head,
    stream_script,
)

ROLE = Send(framed(event(delta("", role="assistant"))))
COMMENT = Send(framed(b": working\n\n"))
TOOL = delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "f", "arguments": '{"a'}}])
GOOD = stream_script(["all ", "good"])


class Pair:
    """Two upstreams of which the first to be asked plays `first`, the other a good answer."""

    def __init__(self, first: list[object]) -> None:
        self.asked: list[UpstreamThread] = []
        self.servers = (UpstreamThread(), UpstreamThread())
        for server in self.servers:
            server.choose = lambda seen, server=server: self._choose(server, first)  # type: ignore[assignment,misc]

    def _choose(self, server: UpstreamThread, first: list[object]) -> object:
        self.asked.append(server)
        return first if len(self.asked) == 1 else GOOD


@pytest.mark.parametrize(
    "part",
    [
        [Send(framed(event(delta("Hello ")))), Send(framed(event(delta("wor"))))],
        [Send(framed(event(TOOL)))],
    ],
    ids=["text", "tool call"],
)
def test_after_output_another_upstream_gets_nothing(
    tmp_path: Path, store: "redis.Redis[bytes]", part: list[object]
) -> None:
    pair = Pair([sse_head(), ROLE, *part, Reset()])
    with pair.servers[0] as u1, pair.servers[1] as u2, serving(
        tmp_path, u1, u2,
        policy=policy(failures=FailurePolicy(resend_before_output=True)),
    ) as gateway:  # fmt: skip
        events = stream(gateway)
        assert error_of(events[-1]) == "upstream_error"
        assert sum("error" in e for e in events) == 1
        assert "[DONE]" not in events
        assert len(events) == 2 + len(part), "role, the part, one error"
        assert len(pair.asked) == 1
        found = row(store)
        assert found.status is RequestStatus.INCOMPLETE
        assert found.attempts == 1
        assert found.output_tokens == len(part)


@pytest.mark.parametrize("is_on", [True, False])
def test_before_output_the_switch_decides(
    tmp_path: Path, store: "redis.Redis[bytes]", is_on: bool
) -> None:
    pair = Pair([sse_head(), ROLE, COMMENT, Reset()])
    failures = FailurePolicy(resend_before_output=is_on)
    with pair.servers[0] as u1, pair.servers[1] as u2, serving(
        tmp_path, u1, u2, policy=policy(failures=failures)
    ) as gateway:  # fmt: skip
        if is_on:
            events = stream(gateway)
            assert text_of(events) == "all good"
            assert sum(bool(e["choices"][0]["delta"].get("role")) for e in events[:-1]) == 1
            assert events[-1] == "[DONE]"
        else:
            with streaming(gateway) as response:
                response.read()
                assert response.status_code == 502
                assert error_of(response.json()) == "upstream_error"
        assert len(pair.asked) == (2 if is_on else 1)
        found = row(store)
        assert found.attempts == len(pair.asked)
        assert found.status is (RequestStatus.OK if is_on else RequestStatus.FAILED)
        assert (found.spend_nanousd > 0) is is_on

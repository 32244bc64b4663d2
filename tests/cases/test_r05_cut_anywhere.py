"""R05: a stream survives being cut into network pieces anywhere."""

from pathlib import Path

import pytest
import redis

from tests.gatewaying import row, serving, stream, text_of
from tests.upstream import (
    LAST,
    Send,
    UpstreamThread,
    Wait,
    delta,
    event,
    framed,
    sse_head,
    stream_events,
    usage,
)

WHOLE = "héllo 世界 🚀 ok"
TEXTS = [WHOLE[i % len(WHOLE)] for i in range(30)]
EVENTS = stream_events(TEXTS, usage(10, 30))
RAW = b"".join(EVENTS)


def cut_at(*needles: bytes) -> list[Send | Wait]:
    """The body cut in the middle of each needle wherever it occurs, in separate writes."""
    edges = {0, len(RAW)}
    for needle in needles:
        at = RAW.find(needle)
        while at >= 0:
            edges.add(at + len(needle) // 2)
            at = RAW.find(needle, at + 1)
    points = sorted(edges)
    steps: list[Send | Wait] = []
    for a, b in zip(points, points[1:], strict=False):  # noqa: RUF007
        steps += [Send(framed(RAW[a:b])), Wait(0.001)]
    return steps


@pytest.mark.parametrize(
    "middle",
    [
        [Send(b"".join(framed(e) for e in EVENTS), piece_bytes=1)],
        cut_at(b"data", b"chatcmpl-1", "世".encode(), "🚀".encode(), b"\n\n", b"30"),
        [Send(framed(RAW))],
    ],
    ids=["byte by byte", "inside everything", "one write"],
)
def test_text_order_count_and_usage_are_what_was_sent(
    tmp_path: Path, store: "redis.Redis[bytes]", middle: list[Send | Wait]
) -> None:
    script = [sse_head(), *middle, Send(LAST)]
    with UpstreamThread(script) as upstream, serving(tmp_path, upstream) as gateway:
        events = stream(gateway)
        contents = [e for e in events[:-1] if e["choices"][0]["delta"].get("content")]
        assert [text_of([e]) for e in contents] == TEXTS
        assert events[-1] == "[DONE]"
        found = row(store)
        assert (found.input_tokens, found.output_tokens) == (10, 30)
        assert found.usage_source == "reported"
        assert "rror" not in gateway.log.read_text()


def test_events_reach_the_caller_as_the_bytes_that_were_sent(tmp_path: Path, store: object) -> None:
    odd = b'data: { "choices" : [ {"index":0, "delta":{"content":"a\\u0041"}} ] , "x":1.50}\n\n'
    events = [event(delta("hi")), odd, event(delta(finish="stop")), event("[DONE]")]
    script = [sse_head(), *[Send(framed(e)) for e in events], Send(LAST)]
    from tests.gatewaying import streaming

    with (
        UpstreamThread(script) as upstream,
        serving(tmp_path, upstream) as gateway,
        streaming(gateway) as response,
    ):
        assert response.read() == b"".join(events)

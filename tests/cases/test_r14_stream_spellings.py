"""R14: every legal event-stream spelling is understood."""

import json
from pathlib import Path

import pytest
import redis

from tests.gatewaying import row, serving, stream, text_of
from tests.upstream import LAST, Send, UpstreamThread, Wait, chunk, delta, framed, sse_head, usage

OBJECTS = [delta("", role="assistant"), delta("Hel"), delta("lo ☃"), delta(finish="stop")]
OBJECTS.append(chunk([], usage=usage(10, 2)))
LINES = [json.dumps(o, ensure_ascii=False) for o in OBJECTS] + ["[DONE]"]


def two_lines(text: str) -> str:
    at = text.find(', "choices"')
    return f"data: {text}\n\n" if at < 0 else f"data: {text[:at]},\ndata: {text[at + 1 :]}\n\n"


SPELLINGS = {
    "no space": "".join(f"data:{line}\n\n" for line in LINES),
    "CRLF": "".join(f"data: {line}\r\n\r\n" for line in LINES),
    "comments": ": hello\n\n" + "".join(f": between\n\ndata: {line}\n\n" for line in LINES),
    "two data lines": "".join(two_lines(line) for line in LINES),
    "event and id": "".join(f"event: message\nid: 7\ndata: {line}\n\n" for line in LINES),
    "byte order mark": "\ufeff" + "".join(f"data: {line}\n\n" for line in LINES),
    "CR": "".join(f"data: {line}\r\r" for line in LINES),
}


@pytest.mark.parametrize("name", list(SPELLINGS))
def test_text_usage_and_requests_are_the_same(
    tmp_path: Path, store: "redis.Redis[bytes]", name: str
) -> None:
    script = [sse_head(), Send(framed(SPELLINGS[name].encode())), Send(LAST)]
    with UpstreamThread(script) as upstream, serving(tmp_path, upstream) as gateway:
        events = stream(gateway)
        assert text_of(events) == "Hello ☃"
        assert events[-1] == "[DONE]"
        assert len(upstream.completions) == 1
        assert upstream.completions[0].header("accept-encoding") == "identity", "never gzip"
        found = row(store)
        assert (found.input_tokens, found.output_tokens) == (10, 2)


def test_comments_are_not_the_first_token(tmp_path: Path, store: "redis.Redis[bytes]") -> None:
    comment = Send(framed(b": waiting\n\n"))
    rest = Send(framed("".join(f"data: {line}\n\n" for line in LINES).encode()))
    script = [sse_head(), comment, Wait(0.5), comment, Wait(0.5), rest, Send(LAST)]
    with UpstreamThread(script) as upstream, serving(tmp_path, upstream) as gateway:
        stream(gateway)
        found = row(store)
        assert found.first_token_at_ms is not None
        assert found.first_token_at_ms - found.started_at_ms >= 950

"""R10: tool calls, several choices and log-probabilities pass through untouched."""

from pathlib import Path
from typing import Any

import pytest

from tests.gatewaying import serving, stream
from tests.upstream import LAST, Send, UpstreamThread, chunk, event, framed, sse_head, usage


def call(index: int | None = 0, **fields: Any) -> list[dict[str, Any]]:
    inner = ({} if index is None else {"index": index}) | fields
    return [{"index": 0, "delta": {"tool_calls": [inner]}, "finish_reason": None}]


def args(text: str, index: int | None = 0, **fields: Any) -> list[dict[str, Any]]:
    return call(index, function={"arguments": text}, **fields)


def choice(index: int, text: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"index": index, "delta": {"content": text}, "finish_reason": None} | fields]


FINISH = [[{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]]
LOGPROBS = {"content": [{"token": "a", "logprob": -0.25, "bytes": [97], "top_logprobs": []}]}
RUNS: dict[str, list[list[dict[str, Any]]]] = {
    "two calls labelled 0": [
        call(0, id="a", function={"name": "f"}), call(0, id="b", function={"name": "g"}),
        args("{}"), args("{}"),
    ],
    "no index": [call(None, id="a"), args("{", None), args("}", None)],
    "arguments before the id": [args('{"x"'), args(":1}", id="late")],
    "l then l -l": [call(0, id="a"), args("l"), args("l -l")],
    "interleaved": [
        call(0, id="a"), call(1, id="b"), args("{a", 0), args("{b", 1), args("}", 0), args("}", 1),
    ],
    "two choices": [choice(0, "a"), choice(1, "b"), choice(1, "c"), choice(0, "d")],
    "logprobs": [choice(0, "a", logprobs=LOGPROBS), choice(0, "b", logprobs=None)],
    "words of the protocol": [
        choice(0, "error"), choice(0, ""), choice(0, '"usage"'), choice(0, "[DONE]"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", list(RUNS))
def test_choices_arrive_as_they_were_sent(tmp_path: Path, store: object, name: str) -> None:
    sent = RUNS[name] + FINISH
    body = [event(chunk(choices)) for choices in sent]
    body += [event(chunk([], usage=usage())), event("[DONE]")]
    script = [sse_head(), *[Send(framed(e)) for e in body], Send(LAST)]
    with UpstreamThread(script) as upstream, serving(tmp_path, upstream) as gateway:
        events = stream(gateway, n=2)
        assert [e["choices"] for e in events[:-1]] == sent
        assert events[-1] == "[DONE]"

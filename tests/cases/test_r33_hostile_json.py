"""R33: broken or hostile JSON is a quick 400."""

import json
import time
from pathlib import Path

import httpx
import pytest
import redis

from routing.store import keys
from tests.gatewaying import ACME, body_of, exchange_raw, raw_request, serving, status_of, streaming
from tests.upstream import LAST, Send, UpstreamThread, delta, event, framed, sse_head


def with_field(text: str) -> bytes:
    return json.dumps(body_of()).encode()[:-1] + b"," + text.encode() + b"}"


BODIES = {
    "5000 nested arrays": with_field('"x":' + "[" * 5000 + "]" * 5000),
    "schema nested 2000 deep": with_field('"tools":[' + '{"a":' * 2000 + "1" + "}" * 2000 + "]"),
    "model twice": with_field('"model":"alpha-8b"'),
    "NaN": with_field('"temperature":NaN'),
    "1e400": with_field('"temperature":1e400'),
    "lone surrogate": b'{"model":"alpha-8b","messages":[{"role":"user","content":"\\ud800"}]}',
    "lone surrogate, streamed": b'{"model":"alpha-8b","stream":true,"messages":[{"role":"user","content":"\\ud800"}]}',  # noqa: E501
    "invalid UTF-8": b'{"model":"alpha-8b","messages":[{"role":"user","content":"\xff\xfe"}]}',
    "array": b"[1,2]",
    "empty": b"",
    "100000 messages": b'{"model":"alpha-8b","messages":['
    + b",".join([b'{"role":"user","content":"x"}'] * 100_000) + b"]}",
}  # fmt: skip


def test_each_is_a_quick_400_and_nothing_is_held(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    with UpstreamThread() as upstream, serving(tmp_path, upstream) as gateway:
        for name, body in BODIES.items():
            since = time.monotonic()
            raw = exchange_raw(gateway, raw_request(body))
            assert time.monotonic() - since < 1, name
            assert status_of(raw) == 400, name
            head, _, text = raw.partition(b"\r\n\r\n")
            assert b"application/json" in head
            assert json.loads(text)["error"]["code"] == "invalid_request", name
        assert upstream.requests == []
        assert store.zcard(keys.bucket_leases(ACME)) == 0
        assert "Traceback" not in gateway.log.read_text()
        assert gateway.chat().status_code == 200


@pytest.mark.parametrize("at", [0, 1], ids=["first chunk", "later chunk"])
def test_an_upstreams_lone_surrogate_reaches_the_caller(
    tmp_path: Path, store: object, at: int
) -> None:
    odd = b'data: {"choices":[{"index":0,"delta":{"content":"\\ud83d"},"finish_reason":null}]}\n\n'
    events = [event(delta("a")), event(delta("b"))]
    events.insert(at, odd)
    events += [event(delta(finish="stop")), event("[DONE]")]
    script = [sse_head(), *[Send(framed(e)) for e in events], Send(LAST)]
    with (
        UpstreamThread(script) as upstream,
        serving(tmp_path, upstream) as gateway,
        streaming(gateway) as response,
    ):
        assert response.read() == b"".join(events)
        assert isinstance(response, httpx.Response)

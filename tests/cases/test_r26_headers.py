"""R26: only intended headers cross the gateway, in both directions."""

import json
from pathlib import Path

import redis

from tests.gatewaying import body_of, connect, exchange_raw, raw_request, serving
from tests.stack import ACME_KEY
from tests.upstream import (
    LAST,
    Close,
    Send,
    UpstreamThread,
    answer,
    framed,
    head,
    json_script,
    sse_head,
    stream_events,
)

NASTY = (
    "Cookie: session=1\r\nProxy-Authorization: Basic eA==\r\nX-Forwarded-For: 10.0.0.1\r\n"
    "Connection: X-Inner\r\nX-Inner: 1\r\nX-Request-Id: " + "a%0d%0aSet-Cookie:%20x" * 450 + "\r\n"
)
REPLY = [("Server", "uvicorn"), ("Set-Cookie", "a=b"), ("Location", "http://10.0.0.7/inside")]


def check(raw: bytes, upstream: UpstreamThread) -> None:
    (seen,) = upstream.completions
    names = {name.lower() for name, _ in seen.headers}
    assert names == {"host", "content-type", "accept-encoding", "x-request-id", "content-length"}
    ours = seen.header("x-request-id")
    assert ours is not None
    assert len(ours) == 36
    assert ACME_KEY not in str(seen.headers)
    lines = raw.partition(b"\r\n\r\n")[0].lower()
    for gone in (b"server:", b"set-cookie", b"location", b"10.0.0.7"):
        assert gone not in lines
    assert b"x-request-id: " + ours.encode() in lines


def test_json_answers(tmp_path: Path, store: "redis.Redis[bytes]") -> None:
    script = json_script(headers=REPLY)
    with UpstreamThread(script) as upstream, serving(tmp_path, upstream) as gateway:
        raw = exchange_raw(gateway, raw_request(json.dumps(body_of()).encode(), headers=NASTY))
        check(raw, upstream)
        lines, _, body = raw.partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}".encode() in lines
        assert b"transfer-encoding" not in lines


def test_streams(tmp_path: Path, store: "redis.Redis[bytes]") -> None:
    body = b"".join(stream_events(["hi"]))
    script = [sse_head(REPLY), Send(framed(body)), Send(LAST)]
    with UpstreamThread(script) as upstream, serving(tmp_path, upstream) as gateway:
        fields = json.dumps(body_of(stream=True)).encode()
        raw = b""
        with connect(gateway) as sock:
            sock.sendall(raw_request(fields, headers=NASTY))
            while not raw.endswith(LAST):
                raw += sock.recv(65536)
        check(raw, upstream)
        lines, _, rest = raw.partition(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in lines
        assert b"content-length" not in lines
        assert rest.count(b"data: ") == 4


def test_a_body_without_length_gets_one(tmp_path: Path, store: "redis.Redis[bytes]") -> None:
    body = json.dumps(answer()).encode()
    script = [Send(head(200, [("content-type", "application/json")]) + body), Close()]
    with UpstreamThread(script) as upstream, serving(tmp_path, upstream) as gateway:
        response = gateway.chat()
        assert response.content == body
        assert response.headers["content-length"] == str(len(body))

"""R34: a stalled reader or an endless line cannot fill the memory."""

import json
import time
from pathlib import Path

import redis

from routing.contracts.enums import RequestStatus
from tests.gatewaying import (
    body_of,
    connect,
    error_of,
    raw_request,
    rows,
    serving,
    stream,
    streaming,
    text_of,
)
from tests.stack import policy, wait_until
from tests.upstream import (
    Script,
    Seen,
    Send,
    UpstreamThread,
    delta,
    event,
    framed,
    sse_head,
    stream_script,
)

MB = 1 << 20
BLOCK = framed(event(delta("x" * 60_000)) * 16)  # about 1 MB
FLOOD = [sse_head(), *[Send(BLOCK)] * 200]
ENDLESS = [sse_head(), *[Send(framed(b"data: " + b"y" * MB))] * 64]
FINE = stream_script([f"t{i} " for i in range(20)], gap_s=0.02)
PATIENT = policy(deadlines=(20.0, 20.0, 120.0))


def by_wish(seen: Seen) -> Script:
    """What the prompt asks for."""
    wish = seen.json["messages"][0]["content"]
    return {"flood": FLOOD, "endless": ENDLESS}.get(wish, FINE)


def ask(wish: str) -> bytes:
    fields = body_of(stream=True, messages=[{"role": "user", "content": wish}])
    return raw_request(json.dumps(fields).encode())


def flood_sent(upstream: UpstreamThread) -> int:
    return sum(s.sent_bytes for s in upstream.completions if b"flood" in s.body)


def test_stalled_readers_hold_their_upstreams_back_and_are_ended(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    with UpstreamThread() as upstream, serving(tmp_path, upstream, policy=PATIENT) as gateway:
        upstream.choose = by_wish
        stream(gateway)
        before = gateway.rss_bytes()
        since = time.monotonic()
        sock = connect(gateway)
        sock.sendall(ask("flood"))
        wait_until(lambda: flood_sent(upstream) > MB, 10, "flood begun")
        assert text_of(stream(gateway)) == "".join(f"t{i} " for i in range(20))
        assert gateway.rss_bytes() - before < 32 * MB
        many = [connect(gateway) for _ in range(49)]
        for one in many:
            one.sendall(ask("flood"))
        wait_until(lambda: flood_sent(upstream) > 50 * MB, 20, "all floods begun")
        for _ in range(3):
            assert text_of(stream(gateway)) == "".join(f"t{i} " for i in range(20))
        assert gateway.rss_bytes() - before < 200 * MB
        wait_until(lambda: upstream.completions[1].closed_at, 60, "the stalled stream ended")
        assert time.monotonic() - since < 60
        assert upstream.completions[1].sent_bytes < 20 * MB, "the upstream was held back"
        every = rows(store, 55, 60)
        found = [row for row in every if row.status is RequestStatus.CANCELLED]
        assert len(found) == 50
        assert all(row.output_tokens > 0 for row in found), "what was delivered is billed"
        for one in (sock, *many):
            one.close()


def test_a_line_without_an_end_is_an_upstream_error(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    with UpstreamThread() as upstream, serving(tmp_path, upstream) as gateway:
        upstream.choose = by_wish
        stream(gateway)
        before = gateway.rss_bytes()
        with streaming(gateway, messages=[{"role": "user", "content": "endless"}]) as response:
            response.read()
            assert response.status_code == 502
            assert error_of(response.json()) == "upstream_error"
        assert gateway.rss_bytes() - before < 32 * MB
        assert text_of(stream(gateway)) == "".join(f"t{i} " for i in range(20))

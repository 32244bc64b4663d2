"""R31: oversized, compressed and trickled bodies are bounded."""

import contextlib
import gzip
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from routing.decision.types import Reason, Refusal
from routing.gateway.encoding import plain_body
from tests.gatewaying import (
    ACME,
    body_of,
    connect,
    exchange_raw,
    raw_request,
    read_response,
    serving,
    status_of,
)
from tests.stack import ACME_KEY, GatewayProcess, held, wait_until
from tests.upstream import UpstreamThread

ALLOWED_GROWTH = 30 << 20
HEAD = f"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {ACME_KEY}\r\n"


@pytest.fixture
def gateway(tmp_path: Path, store: "redis.Redis[bytes]") -> object:
    with UpstreamThread() as upstream, serving(tmp_path, upstream) as running:
        assert running.chat().status_code == 200
        before = running.rss_bytes()
        yield running
        assert running.rss_bytes() - before < ALLOWED_GROWTH
        assert running.chat().status_code == 200
        assert len(upstream.completions) == 2, "nothing of it went on"
        wait_until(lambda: held(store, ACME) == 0, 3, "nothing held")


def test_a_compressed_body_is_bounded_by_what_it_unpacks_to(gateway: GatewayProcess) -> None:
    # Beyond the limit; within it, but packed like no prompt.
    for size in (100_000_000, 5_000_000):
        body = gzip.compress(b" " * size, 9)
        raw = exchange_raw(gateway, raw_request(body, headers="content-encoding: gzip\r\n"))
        assert status_of(raw) == 413
        assert b'"request_too_large"' in raw


@pytest.mark.parametrize(
    "spoil", [lambda raw: raw[:-1], lambda raw: raw + raw, lambda raw: b"{}", lambda raw: b""],
    ids=["cut", "twice", "not gzip", "empty"],
)  # fmt: skip
def test_a_body_that_is_not_its_gzip_is_a_400(spoil: Callable[[bytes], bytes]) -> None:
    raw = spoil(gzip.compress(b'{"model":"alpha-8b"}'))
    found = plain_body(raw, b"gzip", 10_000_000)
    assert isinstance(found, Refusal)
    assert found.reason is Reason.INVALID_REQUEST


def test_an_unknown_encoding_is_a_415(gateway: GatewayProcess) -> None:
    for name in ("zip9", "br", "gzip, gzip"):
        raw = exchange_raw(gateway, raw_request(b"x", headers=f"content-encoding: {name}\r\n"))
        assert status_of(raw) == 415


def test_a_compressed_body_reaches_the_engine_as_it_was_meant(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    body = json.dumps(body_of(messages=[{"role": "user", "content": "word " * 500}])).encode()
    with UpstreamThread() as upstream, serving(tmp_path, upstream) as running:
        packed = raw_request(gzip.compress(body), headers="content-encoding: GZIP\r\n")
        assert status_of(exchange_raw(running, packed)) == 200
        assert status_of(exchange_raw(running, raw_request(body))) == 200
        first, second = upstream.completions
        assert first.body == second.body
        assert "content-encoding" not in {name.lower() for name, _ in first.headers}


def test_a_chunked_body_is_refused_at_the_bound(gateway: GatewayProcess) -> None:
    piece = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    with connect(gateway) as sock:
        sock.sendall((HEAD + "transfer-encoding: chunked\r\n\r\n").encode())
        with contextlib.suppress(ConnectionError):
            for _ in range(50):
                sock.sendall(piece)
        assert status_of(read_response(sock)) in (413, 0)


def test_413_can_be_read_when_the_sender_stops_in_time(gateway: GatewayProcess) -> None:
    piece = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    with connect(gateway) as sock:
        sock.sendall((HEAD + "transfer-encoding: chunked\r\n\r\n").encode())
        for _ in range(9):
            sock.sendall(piece)
        sock.sendall(piece)
        raw = read_response(sock)
        assert status_of(raw) == 413
        assert b'"request_too_large"' in raw


def test_a_declared_length_is_refused_before_the_body(gateway: GatewayProcess) -> None:
    raw = exchange_raw(gateway, (HEAD + "content-length: 50000000\r\n\r\n").encode())
    assert status_of(raw) == 413


def test_bytes_beyond_the_declared_length_are_no_body(gateway: GatewayProcess) -> None:
    with connect(gateway) as sock:
        with contextlib.suppress(ConnectionError):
            sock.sendall((HEAD + "content-length: 100\r\n\r\n").encode() + b"x" * (1 << 20))
        assert status_of(read_response(sock)) in (400, 0)


def test_trickled_bodies_are_closed_and_harm_nobody(gateway: GatewayProcess) -> None:
    since = time.monotonic()
    socks = [connect(gateway, 40) for _ in range(200)]
    for sock in socks:
        sock.sendall((HEAD + "content-length: 1000\r\n\r\n").encode())
    stop = threading.Event()

    def trickle() -> None:
        while not stop.wait(1.0):
            for sock in socks:
                with contextlib.suppress(OSError):
                    sock.send(b"x")

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        for _ in range(3):
            begun = time.monotonic()
            refused = exchange_raw(gateway, raw_request(json.dumps(body_of(n=0)).encode()))
            assert status_of(refused) == 400
            assert time.monotonic() - begun < 0.5
        for sock in socks:
            sock.settimeout(max(0.1, 30 - (time.monotonic() - since)))
            with contextlib.suppress(ConnectionResetError):
                while sock.recv(4096):
                    pass
        assert time.monotonic() - since < 30
    finally:
        stop.set()
        thread.join()
        for sock in socks:
            sock.close()

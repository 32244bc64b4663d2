import gc
from typing import Any

import pytest

from routing.gateway.http1 import (
    MAX_HEAD_BYTES,
    MAX_PIPELINED,
    Broken,
    BrokenRequestError,
    RequestReader,
    ResponseReader,
    chunk,
    whole,
)

POST = (
    b"POST /v1/x HTTP/1.1\r\nhost: h\r\nX-API-Key: k\r\ncookie: c\r\ncontent-length: 5\r\n\r\nhello"
)


def broken(*pieces: bytes, max_body: int = 100) -> Broken:
    reader = RequestReader(max_body)
    for piece in pieces:
        try:
            reader.feed(piece)
        except BrokenRequestError as error:
            return error.why
    pytest.fail("accepted")


@pytest.mark.parametrize("size", [1, 2, 7, len(POST)])
def test_a_request_is_read_however_it_is_cut(size: int) -> None:
    reader = RequestReader(100)
    for at in range(0, len(POST), size):
        reader.feed(POST[at : at + size])
    (request,) = reader.ready
    assert (request.method, request.target, request.body) == (b"POST", b"/v1/x", b"hello")
    assert request.headers == {b"x-api-key": b"k"}, "only what is read is kept"
    assert request.keep_alive
    assert not reader.is_reading


def test_chunked_bodies_are_joined_and_bounded() -> None:
    head = b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n"
    reader = RequestReader(100)
    reader.feed(head + chunk(b"ab") + chunk(b"cd") + b"0\r\n\r\n")
    assert reader.ready[0].body == b"abcd"
    assert broken(head, *[chunk(b"x" * 30)] * 4) is Broken.BODY_TOO_LARGE


def test_a_declared_length_over_the_bound_is_refused_before_the_body() -> None:
    assert broken(b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 101\r\n\r\n") is (
        Broken.BODY_TOO_LARGE
    )


def test_an_endless_head_is_refused() -> None:
    line = b"x-a: " + b"a" * 8000 + b"\r\n"
    pieces = [b"GET / HTTP/1.1\r\n"] + [line] * (MAX_HEAD_BYTES // 8000 + 2)
    assert broken(*pieces) is Broken.HEAD_TOO_LARGE
    assert broken(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n") is Broken.HEAD_TOO_LARGE


def test_too_many_requests_ahead_are_refused() -> None:
    assert broken(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n" * (MAX_PIPELINED + 1)) is Broken.TOO_MANY


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
    ],
)
def test_what_is_no_http_or_could_be_read_two_ways_is_refused(raw: bytes) -> None:
    assert broken(raw) is Broken.MALFORMED


def test_bytes_after_a_body_are_not_part_of_it() -> None:
    reader = RequestReader(100)
    with pytest.raises(BrokenRequestError):
        reader.feed(POST + b"x" * 1000)
    assert reader.ready[0].body == b"hello"


def test_response_skips_informational_heads_and_knows_its_framing() -> None:
    reader = ResponseReader()
    reader.feed(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert not reader.head_done
    reader.feed(whole(200, b"content-type: a/b\r\n", b"body", keep_alive=True))
    assert (reader.status, reader.take(), reader.is_done) == (200, b"body", True)
    assert reader.headers == {b"content-type": b"a/b"}
    assert reader.is_framed
    assert reader.keep_alive
    reader.reset()
    reader.feed(b"HTTP/1.1 200 OK\r\n\r\nuntil the end")
    assert not reader.is_framed
    assert not reader.is_done


@pytest.mark.parametrize("size", [1, 9, 1000])
def test_an_offer_of_another_protocol_is_not_taken_up(size: int) -> None:
    """Java's client and `curl --http2` offer h2c with each first request."""
    offer = POST.replace(
        b"host: h\r\n",
        b"host: h\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: A\r\n",
    )
    reader = RequestReader(100)
    both = offer + POST
    for at in range(0, len(both), size):
        reader.feed(both[at : at + size])
    assert [request.body for request in reader.ready] == [b"hello", b"hello"]


@pytest.mark.parametrize("make", [lambda: RequestReader(100), ResponseReader])
def test_a_closed_reader_leaves_nothing_that_only_the_collector_finds(make: Any) -> None:
    reader = make()
    reader.feed(POST if isinstance(reader, RequestReader) else b"HTTP/1.1 200 OK\r\n")
    gc.collect()
    gc.disable()
    try:
        reader.close()
        del reader
        assert gc.collect() == 0
    finally:
        gc.enable()

"""Whatever bytes come, parsers answer within their bounds, and however they are cut alike.

Hypothesis mutates kept seeds, spellings at which parsers are known to break; a finding becomes one.
"""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from routing.gateway.dialects.catalog import OPERATIONS
from routing.gateway.dialects.events import MESSAGES_LOOK, OPENAI_LOOK, RESPONSES_LOOK, Look
from routing.gateway.dialects.operation import Operation
from routing.gateway.sse import MAX_EVENT_BYTES, SseScanner
from tests.fuzz.targets import (
    check_body,
    check_request,
    check_response,
    check_stream,
    requests_in,
)

POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\n"
REQUESTS = (
    POST + b"content-length: 2\r\n\r\n{}",
    POST + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    POST + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{}",
    POST + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}}",
    POST + b"content-length: -1\r\n\r\n",
    POST + b"content-length: 99999999999999999999\r\n\r\n",
    POST + b"transfer-encoding: chunked, identity\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    POST + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    POST + b"upgrade: h2c\r\nconnection: upgrade\r\ncontent-length: 2\r\n\r\n{}",
    POST + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n{}",
    POST + b"x: a\r\n b\r\n\r\n",
    POST + b" content-length: 2\r\n\r\n{}",
    b"GET / HTTP/1.0\r\n\r\nGET / HTTP/1.1\r\nhost: h\r\n\r\n",
    b"GET http://h/ HTTP/1.1\r\nhost: h\r\n\r\n" * 20,
    b"CONNECT h:1 HTTP/1.1\r\nhost: h\r\n\r\nrest",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET / HTTP/9.9\r\n\r\n",
    b"\r\n\r\nGET / HTTP/1.1\r\nhost: h\r\n\r\n",
)
RESPONSES = (
    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n"
    b"2\r\n{}\r\n0\r\n\r\n",
    b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nraw",
    b"HTTP/1.1 200 OK\r\n\r\nuntil close",
    b"HTTP/1.1 999 \r\n\r\n",
    b"HTTP/1.1 204 No\r\ncontent-length: 5\r\n\r\nhello",
    b"SSH-2.0-OpenSSH\r\n",
)
CHUNK = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
STREAMS = (
    CHUNK + b'data: {"choices":[],"usage":{"prompt_tokens":1}}\n\ndata: [DONE]\n\n',
    CHUNK + b'data: {"error":{"message":"x","code":500}}\n\n',
    b"\xef\xbb\xbf: hi\r\n\r\n" + CHUNK.replace(b"\n", b"\r\n"),
    b"data: {\ndata: }\n\ndata\n\ndata:\n\n:\n\n\n\n",
    b'event: error\ndata: {"type":"error","error":{"message":"x"}}\n\n',
    b"event: message_start\n"
    b'data: {"type":"message_start","message":{"usage":{"input_tokens":1}}}\n\n'
    b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"a"}}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    b'data: {"type":"message_delta","delta":null}\n\ndata: {"type":7}\n\ndata: []\n\n',
    b'data: {"type":"response.output_text.delta","delta":"a"}\n\n'
    b'data: {"type":"response.completed","response":{"usage":{"input_tokens":1}}}\n\n',
    b'data: {"choices":{"a":1}}\n\ndata: {"choices":[{"delta":[]}]}\n\ndata: \xff\xfe\n\n',
    b'data: {"choices":[{"delta":{"content":"\\ud800"}}]}\n\n',
)
BODIES = (
    b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":3}',
    b'{"model":"m","input":[[1,2],[3]],"prompt":null,"stream":true,"stream_options":{}}',
    b'{"model":"m","query":"q","documents":["a"],"text_1":["a"],"text_2":"b","max_tokens":null}',
    b'{"model":"m","prompt":["a","b"],"n":2,"best_of":3,"cache_salt":"x","priority":9}',
    b'{"model":"m","messages":[{"content":[{"type":"image","source":{"data":"aa"}}]}],"max_tokens":1}',
    b'{"model":"m","input":[{"content":[{"type":"input_image","image_url":7}]}],"tools":[{}]}',
    b'{"model":"m","tools":{"type":1},"response_format":[],"text":{"format":3},"input":"a"}',
    b' {"model" : "m" , "prompt" : "\\u0061" , "request_id" : {} } ',
    b'{"model":"m","model":"n","prompt":"a"}',
)


@st.composite
def mutated(draw: st.DrawFn, seeds: tuple[bytes, ...]) -> bytes:
    """A seed with pieces cut out, doubled, replaced or put in."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.integers(0, 8)))
        piece = draw(
            st.one_of(
                st.binary(max_size=6),
                st.sampled_from((b"\r\n", b"\n\n", b'"', b"{", b"[", b"\\u0000", b"null", b"0")),
                st.just(bytes(data[at:end]) * 2),
            )
        )
        data[at:end] = piece
    return bytes(data)


CUTS = st.lists(st.integers(0, 400), max_size=8)


@settings(max_examples=250, deadline=None)
@given(mutated(REQUESTS), CUTS)
def test_requests_are_the_same_however_they_are_cut(data: bytes, at: list[int]) -> None:
    check_request(data, at)


@pytest.mark.parametrize("seed", REQUESTS)
def test_a_seed_of_a_request_byte_by_byte(seed: bytes) -> None:
    single = requests_in([seed[i : i + 1] for i in range(len(seed))])
    assert single == requests_in([seed])


@settings(max_examples=150, deadline=None)
@given(mutated(RESPONSES), CUTS)
def test_responses_are_the_same_however_they_are_cut(data: bytes, at: list[int]) -> None:
    check_response(data, at)


@settings(max_examples=300, deadline=None)
@given(mutated(STREAMS), CUTS, st.sampled_from((OPENAI_LOOK, MESSAGES_LOOK, RESPONSES_LOOK)))
@example(STREAMS[5], [], MESSAGES_LOOK)
@example(STREAMS[7], [3, 50], RESPONSES_LOOK)
def test_streams_are_the_same_however_they_are_cut(data: bytes, at: list[int], look: Look) -> None:
    check_stream(data, at, look)


def test_an_event_without_an_end_is_bounded() -> None:
    scanner = SseScanner(keep_usage=True, look=MESSAGES_LOOK)
    fed = 0
    while scanner.fault is None and fed < 3 * MAX_EVENT_BYTES:
        scanner.feed(b"data: " + b"x" * 65_536)
        fed += 65_542
    assert scanner.fault is not None
    assert fed <= MAX_EVENT_BYTES + 2 * 65_542


@settings(max_examples=400, deadline=None)
@given(mutated(BODIES), st.sampled_from(OPERATIONS))
def test_a_body_is_refused_or_forwarded_with_its_own_members(
    data: bytes, operation: Operation
) -> None:
    check_body(data, operation)

import json

import pytest

from routing.gateway.sse import MAX_EVENT_BYTES, Fault, SseScanner
from tests.upstream import chunk, delta, event, stream_events, usage

ERROR = {"error": {"message": "overloaded", "code": 503}}


def run(*pieces: bytes, keep_usage: bool = False) -> tuple[bytes, SseScanner]:
    scanner = SseScanner(keep_usage=keep_usage)
    return b"".join([scanner.feed(piece) for piece in pieces]), scanner


def test_nothing_is_passed_on_before_the_first_token_and_all_of_it_then() -> None:
    role, text = event(delta("", role="assistant")), event(delta("hi"))
    scanner = SseScanner(keep_usage=False)
    assert scanner.feed(role) == b""
    assert scanner.feed(b": waiting\n\n") == b""
    assert scanner.tokens == 0
    assert scanner.feed(text) == role + text
    assert scanner.tokens == 1


def test_usage_event_is_stripped_unless_the_caller_asked() -> None:
    events = stream_events(["a", "b"], usage(10, 2))
    out, scanner = run(*events)
    assert b'"usage"' not in out
    assert json.loads(scanner.usage)["usage"]["completion_tokens"] == 2
    kept, _ = run(*events, keep_usage=True)
    assert kept == b"".join(events)


def test_usage_beside_choices_is_read_and_left_in_place() -> None:
    last = event(chunk([{"index": 0, "delta": {"content": "b"}}], usage=usage(3, 2)))
    out, scanner = run(event(delta("a")), last)
    assert out.endswith(last)
    assert scanner.usage
    assert scanner.tokens == 2


def test_null_usage_on_every_chunk_stays_on_the_quick_way() -> None:
    piece = event(chunk([{"index": 0, "delta": {"content": "x"}}], usage=None))
    out, scanner = run(piece, piece, piece)
    assert out == piece * 3
    assert scanner.usage == b""
    assert scanner.tokens == 3


@pytest.mark.parametrize(
    "first",
    [
        event(ERROR),
        event(chunk([], **ERROR)),
        b"event: error\n" + event({"message": "overloaded"}),
        event({"object": "error", "message": "overloaded", "code": 503}),
    ],
)
def test_error_event_ends_the_stream_and_is_not_passed_on(first: bytes) -> None:
    out, scanner = run(event(delta("", role="assistant")), first, event("[DONE]"))
    assert out == b""
    assert scanner.fault is Fault.ERROR_EVENT
    out, scanner = run(event(delta("a")) + first + event(delta("b")))
    assert out == event(delta("a"))
    assert scanner.fault is Fault.ERROR_EVENT


def test_the_word_error_as_content_is_no_error() -> None:
    piece = event(delta("error"))
    out, scanner = run(event(delta("a")), piece)
    assert out.endswith(piece)
    assert scanner.fault is None
    assert scanner.tokens == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
        {"reasoning_content": "hm"},
        {"refusal": "no"},
    ],
)
def test_output_is_more_than_text(fields: dict[str, object]) -> None:
    assert run(event(delta(**fields)))[1].tokens == 1


def test_finish_and_empty_deltas_are_no_tokens() -> None:
    _, scanner = run(event(delta("a")), event(delta("")), event(delta(finish="stop")))
    assert scanner.has_finish
    assert scanner.tokens == 2  # an empty delta after the first costs no look inside


def test_completions_text_is_output() -> None:
    assert (
        run(event({"choices": [{"index": 0, "text": "hey", "finish_reason": None}]}))[1].tokens == 1
    )


def test_half_a_surrogate_pair_is_output_like_any_other() -> None:
    odd = b'data: {"choices":[{"index":0,"delta":{"content":"\\ud800"}}]}\n\n'
    out, scanner = run(odd, event(delta("b")))
    assert out == odd + event(delta("b"))
    assert scanner.tokens == 2


def test_byte_order_mark_goes_and_two_data_lines_stay() -> None:
    text = json.dumps(delta("hi"))
    at = text.index('"choices"')
    split = f"data: {text[:at]}\ndata: {text[at:]}\n\n".encode()
    out, scanner = run(b"\xef\xbb\xbf" + split)
    assert out == split
    assert scanner.tokens == 1


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_of_one_event_belong_together_whatever_ends_them(end: str) -> None:
    text = json.dumps(delta("hi"))
    at = text.index('"choices"')
    split = f"data: {text[:at]}{end}data: {text[at:]}{end}{end}".encode()
    out, scanner = run(event(delta("a")), split)
    assert out.endswith(split)
    assert (scanner.tokens, scanner.fault) == (2, None)
    named = f'event: error{end}data: {{"message":"no"}}{end}{end}'.encode()
    assert run(event(delta("a")), named)[1].fault is Fault.ERROR_EVENT


def test_an_answer_without_a_token_is_passed_on_at_its_end() -> None:
    events = stream_events([], usage(3, 0))
    out, scanner = run(*events)
    assert scanner.is_complete
    assert out + scanner.close() == events[0] + events[1] + events[-1]


def test_end_without_done_or_finish_is_not_complete() -> None:
    assert not run(event(delta("a")))[1].is_complete


@pytest.mark.parametrize("lead", [b"", event(delta("a"))])
def test_a_line_without_an_end_is_bounded(lead: bytes) -> None:
    scanner = SseScanner(keep_usage=False)
    scanner.feed(lead)
    for _ in range(MAX_EVENT_BYTES // 65536 + 2):
        scanner.feed(b"x" * 65536)
    assert scanner.fault is Fault.TOO_LONG
    assert scanner.feed(b"x" * 65536) == b""


def test_comments_before_output_are_not_kept() -> None:
    scanner = SseScanner(keep_usage=False)
    for _ in range(100_000):
        scanner.feed(b": waiting, waiting, waiting, waiting\n\n")
    assert scanner.fault is None


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_answer_that_the_engine_gives_up_is_a_fault_and_not_an_end(reason: str) -> None:
    events = [event(delta("a")), event(delta("", reason)), event(chunk([], usage=usage(3, 1)))]
    out, scanner = run(*events, event("[DONE]"))
    assert out == events[0]
    assert (scanner.fault, scanner.tokens, scanner.is_complete) == (Fault.CUT_OFF, 1, False)
    assert run(event(delta("", reason)))[1].fault is Fault.CUT_OFF
    for other in ("stop", "length", "tool_calls", "repetition"):
        assert run(event(delta("a", other)))[1].fault is None

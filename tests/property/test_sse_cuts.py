"""However the network cuts a stream, caller and ledger get the same."""

import itertools
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from routing.gateway.sse import SseScanner
from tests.upstream import chunk, delta, event, usage

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
ENDS = st.sampled_from(["\n\n", "\r\n\r\n", "\r\r"])


@st.composite
def events(draw: st.DrawFn) -> bytes:
    """One event of a real answer, in any legal spelling."""
    end = draw(ENDS)
    line_end = end[: len(end) // 2]
    kind = draw(st.sampled_from(["delta", "delta", "delta", "role", "comment", "spaced", "named"]))
    text = draw(TEXTS)
    if kind == "comment":
        return f": keep-alive{end}".encode()
    if kind == "role":
        return event(delta("", role="assistant"), end)
    if kind == "spaced":
        return f"data:{json.dumps(delta(text), indent=None)}{end}".encode()
    if kind == "named":
        payload = json.dumps(delta(text), ensure_ascii=False)
        return f"event: message{line_end}id: 7{line_end}data: {payload}{end}".encode()
    return event(delta(text), end)


STREAMS = st.builds(
    lambda body, has_usage: b"".join(
        [*body, event(delta(finish="stop"))]
        + ([event(chunk([], usage=usage(7, 9)))] if has_usage else [])
        + [event("[DONE]")]
    ),
    st.lists(events(), max_size=12),
    st.booleans(),
)


def scanned(pieces: list[bytes], *, keep_usage: bool) -> tuple[object, ...]:
    scanner = SseScanner(keep_usage=keep_usage)
    out = b"".join(scanner.feed(piece) for piece in pieces) + scanner.close()
    return out, scanner.tokens, scanner.usage, scanner.has_done, scanner.has_finish, scanner.fault


@settings(max_examples=300, deadline=None)
@given(STREAMS, st.lists(st.integers(0, 4000), max_size=30), st.booleans())
def test_any_cut_gives_what_no_cut_gives(stream: bytes, cuts: list[int], keep: bool) -> None:
    edges = sorted({0, len(stream), *(c for c in cuts if c < len(stream))})
    pieces = [stream[a:b] for a, b in itertools.pairwise(edges)]
    cut, whole = scanned(pieces, keep_usage=keep), scanned([stream], keep_usage=keep)
    assert cut[1:] == whole[1:]
    # "\r\n" may be cut after "\r": the bytes stay in order, only comments before output go.
    assert cut[0].replace(b"\r\n", b"\n") == whole[0].replace(b"\r\n", b"\n")  # type: ignore[attr-defined]


@settings(max_examples=150, deadline=None)
@given(STREAMS)
def test_byte_by_byte_gives_what_no_cut_gives(stream: bytes) -> None:
    single = scanned([stream[i : i + 1] for i in range(len(stream))], keep_usage=False)
    assert single[1:] == scanned([stream], keep_usage=False)[1:]


@settings(max_examples=150, deadline=None)
@given(st.lists(TEXTS, min_size=1, max_size=20))
def test_event_by_event_counts_what_one_read_counts(texts: list[str]) -> None:
    pieces = [event(delta(text or "x")) for text in texts] + [event(delta(finish="stop"))]
    apart = scanned(pieces, keep_usage=True)
    assert apart == scanned([b"".join(pieces)], keep_usage=True)
    assert apart[1] == len(texts)

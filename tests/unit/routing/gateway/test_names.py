"""What a caller's headers say of its task, and what they are not believed to say."""

import pytest

from routing.decision.types import Reason
from routing.gateway.http1 import READ_HEADERS, RequestReader
from routing.gateway.names import NAME_HEADERS, Names, bad_name, names_of


def test_every_name_is_read() -> None:
    headers = {
        b"x-headrace-task-id": b"t-1",
        b"x-headrace-task-kind": b"triage",
        b"x-headrace-step": b"2/5",
        b"x-headrace-session-id": b"s-1",
        b"x-headrace-parent-id": b"t-0",
        b"x-headrace-task-outcome": b"success",
        b"x-headrace-task-score": b"0.75",
    }
    assert names_of(headers) == Names("t-1", "triage", "2/5", "s-1", "t-0", "success", 0.75)


def test_the_reader_of_requests_keeps_every_header_that_names_something() -> None:
    assert NAME_HEADERS <= READ_HEADERS


@pytest.mark.parametrize("raw", [b"maybe", b"SUCCESS", b"", b"success\n", b"\xff"])
def test_an_unknown_outcome_says_nothing(raw: bytes) -> None:
    assert names_of({b"x-headrace-task-outcome": raw}).outcome == ""


@pytest.mark.parametrize("raw", [b"1.01", b"-0.1", b"nan", b"inf", b"", b"good", b"0" * 25])
def test_a_score_outside_its_range_is_unknown(raw: bytes) -> None:
    assert names_of({b"x-headrace-task-score": raw}).score_ratio is None


@pytest.mark.parametrize(("raw", "score"), [(b"0", 0.0), (b"1", 1.0), (b"1e-3", 0.001)])
def test_a_score_is_a_ratio(raw: bytes, score: float) -> None:
    assert names_of({b"x-headrace-task-score": raw}).score_ratio == score


@pytest.mark.parametrize(
    "name",
    [b"x-session-id", b"x-claude-code-session-id", b"x-opencode-session", b"x-session-affinity",
     b"x-litellm-session-id", b"session-id", b"session_id"],
)  # fmt: skip
def test_the_session_headers_of_common_agents_are_taken_and_ours_wins(name: bytes) -> None:
    assert names_of({name: b"s-9"}).session == "s-9"
    assert names_of({name: b"s-9", b"x-headrace-session-id": b"s-1"}).session == "s-1"


TRACE = b"4bf92f3577b34da6a3ce929d0e0e4736"


def test_a_traced_workflow_is_a_task_unless_it_is_named() -> None:
    traced = {b"traceparent": b"00-%b-00f067aa0ba902b7-01" % TRACE}
    assert names_of(traced).task_id == TRACE.decode()
    assert names_of(traced | {b"x-headrace-task-id": b"t-1"}).task_id == "t-1"


@pytest.mark.parametrize(
    "raw",
    [b"", b"00-%b-00f067aa0ba902b7" % TRACE, b"ff-%b-00f067aa0ba902b7-01" % TRACE,
     b"00-%b-00f067aa0ba902b7-01" % (b"0" * 32), b"00-%b-00f067aa0ba902b7-01" % TRACE.upper()],
)  # fmt: skip
def test_a_traceparent_that_is_none_names_nothing(raw: bytes) -> None:
    assert names_of({b"traceparent": raw}).task_id == ""


@pytest.mark.parametrize(
    ("header", "raw"),
    [
        *(("x-headrace-step", raw) for raw in (b"s" * 65, b"3", b"9/4", b"0/4", b"a/b", b"1/2/3")),
        ("x-headrace-stream-cost", b"maybe"),
        ("x-headrace-task-id", b"t\xe9"),
        ("x-headrace-task-kind", b"a\tb"),
        ("x-headrace-session-id", b"\x7f"),
        ("x-headrace-parent-id", b"p" * 200),
        ("x-headrace-task-outcome", b"maybe"),
        ("x-headrace-task-score", b"1.01"),
        ("x-headrace-task-score", b"nan"),
    ],
)
def test_a_header_that_cannot_be_kept_is_refused_by_name(header: str, raw: bytes) -> None:
    refused = bad_name({b"x-headrace-task-id": b"t-1", header.encode(): raw})
    assert refused is not None
    assert (refused.reason, refused.param) == (Reason.INVALID_REQUEST, header)
    assert header in refused.message


def test_what_can_be_kept_and_other_peoples_headers_pass() -> None:
    good = {
        b"x-headrace-step": b"4/4",
        b"x-headrace-stream-cost": b"True",
        b"x-headrace-task-id": b"t" * 64,
        b"x-headrace-task-kind": b"",
        b"x-headrace-task-outcome": b"failure",
        b"x-headrace-task-score": b"0.5",
        b"x-session-id": b"\xff" * 300,
    }
    assert bad_name(good) is None
    assert bad_name({b"content-type": b"application/json"}) is None


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-headrace-task-outcome", b"success"),
        ("x-headrace-task-score", b"1"),
        ("x-headrace-parent-id", b"t-0"),
    ],
)
def test_what_is_said_of_a_task_that_is_not_named_is_refused(header: str, value: bytes) -> None:
    said = {header.encode(): value}
    refused = bad_name(said | {b"x-headrace-task-id": b""})
    assert refused is not None and refused.param == header
    assert "x-headrace-task-id" in refused.message
    traced = b"00-%b-00f067aa0ba902b7-01" % TRACE
    for named in ({b"x-headrace-task-id": b"t-1"}, {b"traceparent": traced}):
        assert bad_name(said | named) is None


def test_a_task_is_not_its_own_parent() -> None:
    refused = bad_name({b"x-headrace-task-id": b"t-1", b"x-headrace-parent-id": b"t-1"})
    assert refused is not None and refused.param == "x-headrace-parent-id"


@pytest.mark.parametrize(
    ("sent", "instead"),
    [
        ("X-Headrace-TaskId", "do you mean x-headrace-task-id?"),
        ("x-headrace-exact-models", "do you mean x-headrace-exact-model?"),
        ("x-headrace-zzz", "there are x-headrace-class, deadline-ms, exact-model,"),
    ],
)
def test_a_header_of_ours_that_there_is_not_is_told(sent: str, instead: str) -> None:
    reader = RequestReader(1 << 20)
    reader.feed(b"GET /v1/models HTTP/1.1\r\nHost: h\r\n%b: true\r\n\r\n" % sent.encode())
    refused = bad_name(reader.ready[0].headers)
    assert refused is not None
    assert (refused.reason, refused.param) == (Reason.INVALID_REQUEST, sent.lower())
    assert instead in refused.message

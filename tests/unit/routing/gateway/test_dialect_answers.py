import json
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest

from routing.gateway.dialects.failure import error_code, error_message, retry_after_s
from routing.gateway.dialects.usage import Usage, is_answer, read_usage
from tests.upstream import answer, usage


def body(**fields: object) -> bytes:
    return json.dumps({"usage": fields}).encode()


def test_usage_is_read_with_its_details() -> None:
    raw = json.dumps(answer(used=usage(20, 9, cached=16))).encode()
    assert read_usage(raw) == Usage(20, 16, 9, 0, False)


def test_reasoning_is_part_of_the_output_not_beside_it() -> None:
    found = read_usage(
        body(
            prompt_tokens=0,
            completion_tokens=1000,
            completion_tokens_details={"reasoning_tokens": 800},
        )
    )
    assert found == Usage(0, 0, 1000, 800, False)


def test_cached_above_the_prompt_is_cut_and_marked() -> None:
    found = read_usage(
        body(prompt_tokens=100, completion_tokens=0, prompt_tokens_details={"cached_tokens": 150})
    )
    assert found == Usage(100, 100, 0, 0, True)


@pytest.mark.parametrize(
    "raw",
    [
        b"{}", b'{"usage":null}', b"junk", b"",
        body(prompt_tokens=-1, completion_tokens=5),
        body(prompt_tokens=1, completion_tokens=10**12),
        body(prompt_tokens="many"),
        body(total_tokens=5),
    ],
)  # fmt: skip
def test_usage_that_is_missing_or_absurd_is_none(raw: bytes) -> None:
    assert read_usage(raw) is None


def test_an_answer_is_an_object_without_an_error() -> None:
    assert is_answer(json.dumps(answer()).encode())
    assert is_answer(b'{"choices":[{"message":{"content":"\\ud800"}}]}')
    assert not is_answer(b'{"error":{"message":"no"}}')
    assert not is_answer(b"<html>")
    assert not is_answer(b"")


def test_errors_words_are_cut_and_printable() -> None:
    raw = json.dumps({"error": {"message": "a\nb\x00" + "x" * 1000, "code": "503"}}).encode()
    assert error_message(raw).startswith("a b")
    assert len(error_message(raw)) <= 500
    assert error_code(raw) == 503
    assert error_code(b'{"error":{"code":12}}') is None
    assert error_code(b'{"object":"error","message":"m","code":400}') == 400
    assert error_message(b"<html>") == ""


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({b"retry-after": b"7"}, 7.0),
        ({b"retry-after": b"0.5"}, 0.5),
        ({b"retry-after-ms": b"1500", b"retry-after": b"9"}, 1.5),
        ({b"retry-after": format_datetime(datetime.fromtimestamp(1007, UTC)).encode()}, 7.0),
        ({b"retry-after": b"soon"}, None),
        ({b"retry-after": b"1e999"}, 86_400.0),
        ({}, None),
    ],
)
def test_retry_after_is_read_in_every_form(
    headers: dict[bytes, bytes], seconds: float | None
) -> None:
    assert retry_after_s(headers, 1000.0) == seconds


def test_cache_writes_are_what_is_left_of_the_prompt() -> None:
    details = {"cached_tokens": 60, "cache_write_tokens": 30}
    counts = {"prompt_tokens": 100, "completion_tokens": 1, "prompt_tokens_details": details}
    found = read_usage(json.dumps({"usage": counts}).encode())
    assert found == Usage(100, 60, 1, 0, False, 30)
    details["cache_write_tokens"] = 50
    found = read_usage(json.dumps({"usage": counts}).encode())
    assert found == Usage(100, 60, 1, 0, True, 40)

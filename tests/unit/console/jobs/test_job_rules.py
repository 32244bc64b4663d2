"""When jobs are tried again."""

from console.jobs.rules import (
    HEARTBEAT_EVERY_S,
    LONGEST_RETRY_S,
    MAX_ERROR_CHARS,
    STALE_AFTER_S,
    error_text,
    may_retry,
    retry_delay_s,
)


def test_waits_double_and_stay_bounded():
    waits = [retry_delay_s(attempts) for attempts in range(1, 40)]
    assert waits[:4] == [2.0, 4.0, 8.0, 16.0]
    assert max(waits) == LONGEST_RETRY_S
    assert waits == sorted(waits)


def test_the_last_attempt_is_the_last():
    assert may_retry(4, 5)
    assert not may_retry(5, 5)


def test_one_missed_heartbeat_costs_no_job():
    assert STALE_AFTER_S >= 5 * HEARTBEAT_EVERY_S


def test_error_text_is_bounded_and_storable():
    text = error_text(ValueError("a\x00b" * MAX_ERROR_CHARS))
    assert text.startswith("ValueError: ab")
    assert len(text) == MAX_ERROR_CHARS

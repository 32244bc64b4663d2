import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.decision.retry import (
    FULL_PAUSE_S,
    LEAVING_PAUSE_S,
    RETRY_BUDGET,
    SPENT_PAUSE_S,
    UNREACHED_PAUSE_S,
    Kind,
    RetryBudgets,
    backoff_s,
    budget_spent,
    judge,
    judge_event,
    judge_unreached,
    may_resend,
)
from routing.decision.types import Reason


@pytest.mark.parametrize(
    ("status", "message", "kind", "reason"),
    [
        (429, "", Kind.REFUSED, Reason.UPSTREAM_RATE_LIMITED),
        (503, "", Kind.REFUSED, Reason.NO_CAPACITY),
        (404, "", Kind.REFUSED, Reason.MODEL_UNAVAILABLE),
        (400, "bad", Kind.CALLER, Reason.INVALID_REQUEST),
        (413, "", Kind.CALLER, Reason.REQUEST_TOO_LARGE),
        (401, "", Kind.REFUSED, Reason.UPSTREAM_ERROR),
        (302, "", Kind.REFUSED, Reason.UPSTREAM_ERROR),
        (500, "boom", Kind.LOST, Reason.UPSTREAM_ERROR),
        (500, "cannot schedule new futures after shutdown", Kind.REFUSED, Reason.NO_CAPACITY),
    ],
)
def test_status_says_whether_the_request_was_taken_on(
    status: int, message: str, kind: Kind, reason: Reason
) -> None:
    verdict = judge(status, message, None, is_draining=False)
    assert (verdict.kind, verdict.refusal.reason) == (kind, reason)


def test_a_draining_engines_500_is_a_refusal() -> None:
    assert judge(500, "", None, is_draining=True).kind is Kind.REFUSED


def test_an_engine_that_drains_is_left_alone_and_one_that_is_full_only_for_a_moment() -> None:
    leaving = judge(500, "cannot schedule new futures after shutdown", None, is_draining=False)
    assert (leaving.pause_s, leaving.counts) == (LEAVING_PAUSE_S, False)
    for words in ("The engine is currently busy and ...", "has reached its prefill backlog limit"):
        full = judge(503, words, None, is_draining=False)
        assert (full.pause_s, full.counts) == (FULL_PAUSE_S, False)
        assert full.refusal.retry_after_s == 1.0
    assert judge(503, "other", None, is_draining=False).counts
    assert judge(503, "currently busy", 7.0, is_draining=False).pause_s == 7.0


def test_where_nothing_listens_nothing_was_taken_on_and_it_is_left_alone_for_a_moment() -> None:
    verdict = judge_unreached()
    assert (verdict.kind, verdict.refusal.reason) == (Kind.REFUSED, Reason.UPSTREAM_ERROR)
    assert (verdict.pause_s, verdict.counts) == (UNREACHED_PAUSE_S, True)


@pytest.mark.parametrize(("status", "hint_s"), [(500, None), (503, None), (429, 7.0)])
def test_a_spent_budget_keeps_the_failures_code_and_says_when_to_come_back(
    status: int, hint_s: float | None
) -> None:
    refusal = judge(status, "", hint_s, is_draining=False).refusal
    told = budget_spent(refusal)
    assert (told.reason, told.limit) == (refusal.reason, RETRY_BUDGET)
    assert told.retry_after_s == (hint_s or SPENT_PAUSE_S)
    assert told.message.startswith(refusal.message)


def test_an_error_as_first_event_is_a_refusal_unless_the_caller_is_at_fault() -> None:
    assert judge_event(503, "", is_draining=False).kind is Kind.REFUSED
    assert judge_event(None, "", is_draining=False).kind is Kind.REFUSED
    assert judge_event(400, "", is_draining=False).kind is Kind.CALLER


def test_429_pauses_for_as_long_as_it_says_and_is_no_failure() -> None:
    verdict = judge(429, "", 7.0, is_draining=False)
    assert verdict.pause_s == 7.0
    assert verdict.refusal.retry_after_s == 7.0
    assert not verdict.counts


def test_lost_requests_go_elsewhere_only_under_the_switch() -> None:
    lost, refused = (judge(status, "", None, is_draining=False) for status in (500, 503))
    assert not may_resend(lost, attempts=1, max_attempts=2, resend_lost=False)
    assert may_resend(lost, attempts=1, max_attempts=2, resend_lost=True)
    assert may_resend(refused, attempts=1, max_attempts=2, resend_lost=False)
    assert not may_resend(refused, attempts=2, max_attempts=2, resend_lost=True)


def test_retries_never_exceed_the_burst_plus_a_tenth_of_successes() -> None:
    budgets = RetryBudgets()
    assert sum(budgets.take("p", "t") for _ in range(50)) == 10
    for _ in range(30):
        budgets.succeeded("p", "t")
    assert sum(budgets.take("p", "t") for _ in range(50)) in (2, 3)
    assert budgets.take("p", "other"), "tenants have budgets of their own"


waits = st.floats(0, 30)


@given(st.uuids().map(str), st.integers(1, 3), waits, waits, waits, waits)
def test_a_wait_is_bounded_by_jitter_hint_and_the_requests_own_time(
    request_id: str, attempts: int, base_s: float, max_s: float, hint_s: float, left_s: float
) -> None:
    wait_s = backoff_s(
        request_id, attempts, base_s=base_s, max_s=max_s, hint_s=hint_s, left_s=left_s
    )
    if wait_s is None:
        assert left_s <= (min(hint_s, max_s) or min(max_s, base_s * 2 ** (attempts - 1)))
        return
    assert 0 <= wait_s <= max_s
    assert wait_s < left_s
    if hint_s:
        assert wait_s == min(hint_s, max_s)
    else:
        assert wait_s <= base_s * 2 ** (attempts - 1)


def test_jitter_fills_the_whole_range_and_doubles() -> None:
    def spread(attempts: int) -> list[float]:
        found = [
            backoff_s(str(n), attempts, base_s=0.1, max_s=1.0, left_s=60.0) for n in range(1000)
        ]
        return sorted(one for one in found if one is not None)

    first, second = spread(1), spread(2)
    assert (len(first), len(second)) == (1000, 1000)
    assert first[0] < 0.01
    assert 0.09 < first[-1] <= 0.1
    assert 0.18 < second[-1] <= 0.2
    assert sum(first) / 1000 == pytest.approx(0.05, rel=0.1)

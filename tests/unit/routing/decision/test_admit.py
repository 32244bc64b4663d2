"""All limits or none; the refusal says which, when and what to do."""

import pytest

from routing.contracts.enums import Dimension, LimitScope, WindowKind
from routing.decision.admit import Admission, Denial, Position, admit, refusal
from routing.decision.limits import Group
from routing.decision.types import Amounts, Reason

D = Dimension
ASK = Amounts(10, 1000, 2_010_000, 1010)


def group(window: WindowKind, *dims: tuple[Dimension, int], scope=LimitScope.TENANT, subject=""):
    return Group(scope, window, subject, dims)


def test_room_is_limit_less_used_less_held():
    one = group(WindowKind.DAY, (D.SPEND_NANOUSD, 5_000_000))
    full = {D.SPEND_NANOUSD: Position(1_000_000, 1_990_001)}
    fits = {D.SPEND_NANOUSD: Position(1_000_000, 1_990_000)}
    assert admit([one], [fits], ASK, [1]) == Admission((0,))
    assert admit([one], [full], ASK, [1]) == Denial(0, D.SPEND_NANOUSD, 1_000_000, 1_990_001, 1)


def test_longest_wait_wins_and_the_first_of_equals():
    groups = [
        group(WindowKind.NOW, (D.CONCURRENCY, 0)),
        group(WindowKind.MINUTE, (D.REQUESTS, 0), (D.INPUT_TOKENS, 0)),
        group(WindowKind.DAY, (D.SPEND_NANOUSD, 0)),
    ]
    denial = admit(groups, [{}, {}, {}], ASK, [0, 500, 500])
    assert isinstance(denial, Denial)
    assert (denial.group_index, denial.dimension) == (1, D.REQUESTS)


def test_asking_nothing_passes_a_lowered_limit():
    one = group(WindowKind.DAY, (D.OUTPUT_TOKENS, 10))
    over = {D.OUTPUT_TOKENS: Position(50, 0)}
    assert admit([one], [over], Amounts(0, 0, 0, 0), [1]) == Admission((-40,))


@pytest.mark.parametrize(
    ("dimension", "window", "reason", "name"),
    [
        (D.REQUESTS, WindowKind.MINUTE, Reason.RATE_LIMITED, "requests_per_minute"),
        (D.INPUT_TOKENS, WindowKind.DAY, Reason.RATE_LIMITED, "input_tokens_per_day"),
        (D.OUTPUT_TOKENS, WindowKind.WEEK, Reason.RATE_LIMITED, "output_tokens_per_week"),
        (D.SPEND_NANOUSD, WindowKind.MONTH, Reason.BUDGET_EXCEEDED, "spend_per_month"),
        (D.CONCURRENCY, WindowKind.NOW, Reason.CONCURRENCY_LIMITED, "concurrency"),
        (D.KV_TOKENS, WindowKind.NOW, Reason.CONCURRENCY_LIMITED, "kv_tokens"),
    ],
)
def test_each_limit_has_its_code_and_name(dimension, window, reason, name):
    one = group(window, (dimension, 9_000_000))
    found = refusal(one, Denial(0, dimension, 9_000_000, 0, 12_345), ASK)
    assert (found.reason, found.limit, found.scope) == (reason, name, LimitScope.TENANT)
    assert found.retry_after_s == (1.0 if window is WindowKind.NOW else 12.345)


def test_concurrency_waits_as_long_as_the_caller_expects():
    one = group(WindowKind.NOW, (D.CONCURRENCY, 2))
    found = refusal(one, Denial(0, D.CONCURRENCY, 0, 2, 0), ASK, told_s=3.5)
    assert found.retry_after_s == 3.5


def test_request_larger_than_the_whole_limit_is_not_told_to_wait():
    one = group(WindowKind.MINUTE, (D.OUTPUT_TOKENS, 999))
    found = refusal(one, Denial(0, D.OUTPUT_TOKENS, 0, 0, 30_000), ASK)
    assert found.retry_after_s is None
    assert "max_tokens" in found.message


def test_message_shows_money_as_dollars_and_says_when():
    one = group(WindowKind.DAY, (D.SPEND_NANOUSD, 10_000_000), scope=LimitScope.KEY, subject="k1")
    found = refusal(one, Denial(0, D.SPEND_NANOUSD, 8_040_000, 1_500_000_000, 60_001), ASK)
    assert found.message == (
        "This API key has a spend_per_day limit of $0.01; $0.00804 used, $1.50 held by running "
        "requests, $0.00201 needed. The window ends in 61 s: retry then, or ask for more."
    )

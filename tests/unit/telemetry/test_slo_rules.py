"""Which objective judges a request, and what counts as kept."""

from telemetry.slos.rules import ObjectiveView, judge, judge_all, objective_of
from telemetry.stats.burn import Judged
from telemetry.stats.sketch import index_of
from telemetry.stats.windows import SliceSum


def view(number: int, model: str = "", work_class: str = "", metric: str = "ttft") -> ObjectiveView:
    return ObjectiveView(number, work_class, model, metric, 500, 0.99)


def bins(*seconds: float) -> dict[int, int]:
    found: dict[int, int] = {}
    for one in seconds:
        found[index_of(one)] = found.get(index_of(one), 0) + 1
    return found


EVERY, CLASS, MODEL = view(1), view(2, work_class="batch"), view(3, model="m")
BOTH = view(4, model="m", work_class="batch")


def test_the_most_specific_objective_judges() -> None:
    known = (EVERY, CLASS, MODEL, BOTH)
    assert objective_of("m", "batch", known) == BOTH
    assert objective_of("m", "standard", known) == MODEL
    assert objective_of("x", "batch", known) == CLASS
    assert objective_of("x", "standard", known) == EVERY
    assert objective_of("x", "standard", (MODEL, CLASS)) is None


def test_slow_failed_and_shed_requests_are_not_kept() -> None:
    counted = SliceSum(
        requests=10,
        failed=1,
        cancelled=2,
        refused={"no_capacity": 3, "budget_exceeded": 50},
        ttft_s=bins(0.1, 0.2, 0.3, 0.4, 0.6, 2.0),
        e2e_s=bins(*[0.4] * 7),
    )
    # 10 - 2 cancelled + 3 shed were judged; 2 slow, 1 failed, 3 shed were not kept
    assert judge(counted, EVERY) == Judged(total=11, good=5)
    assert judge(counted, view(1, metric="e2e")) == Judged(total=11, good=7)


def test_a_refusal_by_the_callers_own_limit_breaks_no_promise() -> None:
    assert judge(SliceSum(refused={"rate_limited": 9, "invalid_request": 3}), EVERY) == Judged(0, 0)


def test_good_is_never_below_zero() -> None:
    assert judge(SliceSum(requests=1, failed=1, ttft_s=bins(9.0)), EVERY) == Judged(1, 0)


def test_each_request_is_judged_once() -> None:
    sums = {
        ("m", "batch"): SliceSum(requests=3, ttft_s=bins(0.1, 0.1, 3.0)),
        ("x", "standard"): SliceSum(requests=2, ttft_s=bins(0.1, 0.1)),
        ("y", "standard"): SliceSum(requests=1, ttft_s=bins(0.1)),
    }
    assert judge_all(sums, (EVERY, MODEL)) == {3: Judged(3, 2), 1: Judged(3, 3)}

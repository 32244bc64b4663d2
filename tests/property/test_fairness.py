"""Queues keep their bounds: nobody starves, no tenant gets more than its part, nothing is left."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routing.decision.fairness import Dlpm, Lines, Queued, Vtc, output_rate, work_of

FAR_S = 1e9
works = st.integers(1, 20_000).map(float)
plans = st.lists(st.tuples(st.sampled_from("abc"), works, works), min_size=1, max_size=150)


def queued(number: int, tenant: str, work: float, *, arrived_s: float = 0.0) -> Queued:
    return Queued(f"r{number}", tenant, work, arrived_s, FAR_S)


def backlog(plan: list[tuple[str, float, float]]) -> tuple[Lines, dict[str, float]]:
    lines, used = Lines(), {}
    for number, (tenant, work, true_work) in enumerate(plan):
        lines.put(queued(number, tenant, work, arrived_s=number * 1e-6))
        used[f"r{number}"] = true_work
    return lines, used


@given(plans, st.sampled_from([{}, {"a": 3.0, "b": 0.5}]), st.integers(1, 8))
@settings(deadline=None)
def test_vtc_keeps_backlogged_tenants_within_its_bound(
    plan: list[tuple[str, float, float]], weights: dict[str, float], in_flight: int
) -> None:
    lines, used = backlog(plan)
    vtc = Vtc(weights)
    served = dict.fromkeys("abc", 0.0)
    everybody = set(lines.tenants)
    running: list[Queued] = []
    largest = max(max(work, true) for _tenant, work, true in plan)
    lightest = min(weights.get(tenant, 1.0) for tenant in everybody)
    wrong = in_flight * max(abs(true - work) for _tenant, work, true in plan)
    while set(lines.tenants) == everybody:
        pick = vtc.choose(lines, 0.0)
        assert pick is not None
        lines.take(pick.request)
        vtc.sent(pick.tenant, pick.request.work)
        running.append(pick.request)
        if len(running) >= in_flight:
            one = running.pop(0)
            true = used[one.request_id]
            vtc.settled(one.tenant, one.work, true)
            served[one.tenant] += true / weights.get(one.tenant, 1.0)
        shares = [served[tenant] for tenant in everybody]
        assert max(shares) - min(shares) <= 2 * (largest * in_flight + wrong) / lightest


@given(plans)
@settings(deadline=None)
def test_dlpm_keeps_every_deficit_within_a_round(plan: list[tuple[str, float, float]]) -> None:
    lines, _used = backlog(plan)
    dlpm = Dlpm(quantum=5_000.0)
    largest = max(work for _tenant, work, _true in plan)
    count = 0
    while chosen := dlpm.choose(lines, 0.0, lambda one: one.work):
        pick, refills = chosen
        dlpm.sent(pick.tenant, pick.request.work, refills, lines)
        lines.take(pick.request)
        count += 1
        for tenant, deficit in dlpm.deficits.items():
            assert -largest <= deficit <= 5_000.0, tenant
    assert count == len(plan)  # nobody is left


@given(plans)
@settings(deadline=None)
def test_choosing_changes_nothing(plan: list[tuple[str, float, float]]) -> None:
    lines, _used = backlog(plan)
    vtc, dlpm = Vtc(), Dlpm()
    assert vtc.choose(lines, 0.0) == vtc.choose(lines, 0.0)
    assert dlpm.choose(lines, 0.0, lambda one: one.work) == dlpm.choose(
        lines, 0.0, lambda one: one.work
    )
    assert vtc.counters == dlpm.deficits == {}


def test_a_tenant_that_was_idle_gets_no_credit_for_it() -> None:
    lines, vtc = Lines(), Vtc()
    for number in range(50):
        vtc.joined("busy", lines, 0.0)
        lines.put(queued(number, "busy", 100.0))
        pick = vtc.choose(lines, 0.0)
        assert pick is not None
        if number % 2:
            lines.take(pick.request)
            vtc.sent("busy", 100.0)
    for number in range(50, 100):
        vtc.joined("back", lines, 1.0)
        lines.put(queued(number, "back", 100.0))
    sent = []
    for _ in range(20):
        pick = vtc.choose(lines, 1.0)
        assert pick is not None
        lines.take(pick.request)
        vtc.sent(pick.tenant, 100.0)
        sent.append(pick.tenant)
    assert 9 <= sent.count("back") <= 11


def test_weights_serve_in_their_ratio() -> None:
    lines, vtc = Lines(), Vtc({"a": 3.0})
    for number in range(200):
        lines.put(queued(number, "ab"[number % 2], 10.0))
    sent = []
    for _ in range(80):
        pick = vtc.choose(lines, 0.0)
        assert pick is not None
        lines.take(pick.request)
        vtc.sent(pick.tenant, 10.0)
        sent.append(pick.tenant)
    assert sent.count("a") == 60


def test_inside_a_tenant_deadline_decides_until_half_the_time_is_over() -> None:
    lines = Lines()
    lines.put(Queued("patient", "t", 1.0, 0.0, 100.0))
    lines.put(Queued("urgent", "t", 1.0, 0.0, 70.0))
    lines.put(Queued("old", "t", 1.0, -80.0, 101.0))
    assert lines.head("t", 5.0).request_id == "urgent"
    assert lines.head("t", 20.0).request_id == "old"  # half of its 181 s is over at 10.5
    assert [one.request_id for one in lines.expired(80.0)] == ["urgent"]
    assert len(lines) == 2


def test_counters_of_idle_tenants_are_forgotten_but_not_of_busy_ones() -> None:
    lines, vtc = Lines(), Vtc()
    for name in ("gone", "kept"):
        vtc.joined(name, lines, 0.0)
        vtc.sent(name, 5.0)
    vtc.forget_idle(3601.0, busy=("kept",))
    assert vtc.counters.keys() == {"kept"}


def test_work_units_and_their_calibration() -> None:
    assert work_of(100, 50, 10) == 125
    # c 14.4 us, d 24.5 ns, t0 7.47 ms: at 64 decodes over 1,000 tokens 10.8, held at 10.
    assert output_rate(7.47e-3, 14.4e-6, 24.5e-9, 1000, 64) == 10.0
    assert output_rate(7.47e-3, 14.4e-6, 24.5e-9, 1000, 1000) == pytest.approx(
        (14.4 + 24.5 + 7.47) / 14.4
    )
    assert output_rate(0.0, 14.4e-6, 0.0, 1000, 1) == 2.0

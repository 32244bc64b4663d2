from collections import Counter

from routing.contracts.enums import ReplicaHealth
from routing.decision.breaker import Breaker, Outcome
from routing.decision.filters import Candidate, Need, Report, Why
from routing.decision.select import Choice, Group, select

NOW_S = 100.0


def endpoint(name: str, **fields: object) -> Candidate:
    return Candidate(name, "p1", Breaker(name), 100_000, **fields)  # type: ignore[arg-type]


def report(age_s: float = 0.0, **fields: object) -> Report:
    values = {
        "health": ReplicaHealth.OK, "running": 0, "waiting": 0, "kv_usage_ratio": 0.0,
        "own_in_flight": 0,
    } | fields  # fmt: skip
    return Report(at_s=NOW_S - age_s, **values)  # type: ignore[arg-type]


def need(request_id: str = "r", **fields: object) -> Need:
    return Need(request_id, 100, 200, **fields)  # type: ignore[arg-type]


def chosen(*candidates: Candidate, **fields: object) -> str:
    found = select([Group(1, 1.0, candidates)], need(**fields), NOW_S)
    assert found is not None
    return found.candidate.id


def broken(name: str, opened_at_s: float = 0.0) -> Candidate:
    candidate = endpoint(name)
    for _ in range(5):
        candidate.breaker.observe(Outcome.FAILURE, opened_at_s)
    return candidate


def test_least_work_in_progress_wins() -> None:
    assert chosen(endpoint("a", in_flight=3), endpoint("b", in_flight=1)) == "b"


def test_ties_are_broken_by_the_request_id_alone_and_evenly() -> None:
    pair = endpoint("a"), endpoint("b")
    picks = Counter(chosen(*pair, request_id=f"r{i}") for i in range(400))
    assert min(picks.values()) > 140
    assert chosen(*pair, request_id="r7") == chosen(*pair, request_id="r7")


def test_hard_reasons_rule_out() -> None:
    good = endpoint("good", in_flight=50)
    assert chosen(endpoint("draining", is_draining=True), good) == "good"
    assert chosen(endpoint("paused", paused_until_s=NOW_S + 1), good) == "good"
    assert chosen(endpoint("tried"), good, tried=("tried",)) == "good"
    assert chosen(broken("broken"), good) == "good"


def test_nothing_is_chosen_when_everything_drains_or_was_tried() -> None:
    assert select([Group(1, 1.0, [endpoint("a", is_draining=True)])], need(), NOW_S) is None
    assert select([Group(1, 1.0, [endpoint("a")])], need(tried=("a",)), NOW_S) is None
    assert select([Group(1, 0.0, [endpoint("a")])], need(), NOW_S) is None
    assert select([], need(), NOW_S) is None


def test_the_last_endpoint_is_never_ejected() -> None:
    assert chosen(broken("a")) == "a"
    assert chosen(endpoint("a", paused_until_s=NOW_S + 5)) == "a"


def test_breakers_keep_at_most_a_third_of_a_pool_away() -> None:
    group = [broken(f"b{i}", opened_at_s=float(i)) for i in range(6)] + [endpoint("ok")]
    found = select([Group(1, 1.0, group)], need(), NOW_S)
    assert found is not None
    assert [one.candidate.id for one in found.looked if one.why is Why.BREAKER] == ["b0", "b1"]


def test_a_full_endpoint_is_kept_only_when_all_are_full() -> None:
    full = endpoint("full", report=report(running=9, kv_usage_ratio=0.999))
    assert chosen(full, endpoint("free", in_flight=99, report=report())) == "free"
    assert chosen(full) == "full"


def test_kv_reported_with_nothing_running_counts_as_free() -> None:
    stuck = endpoint("stuck", report=report(kv_usage_ratio=0.999))
    assert chosen(stuck, endpoint("busy", report=report(running=5))) == "stuck"


def test_fresh_reports_come_before_stale_ones_and_all_stale_spread_by_own_work() -> None:
    fresh, stale = endpoint("fresh", in_flight=9, report=report()), endpoint("stale")
    stale.report = report(age_s=60)
    assert chosen(fresh, stale) == "fresh"
    fresh.report = report(age_s=60)
    assert chosen(fresh, stale) == "stale"


def test_work_of_other_gateways_counts() -> None:
    mine = endpoint("mine", in_flight=2, report=report(running=2, own_in_flight=2))
    others = endpoint("others", in_flight=0, report=report(running=6, own_in_flight=0))
    assert chosen(mine, others) == "mine"


def test_a_later_order_opens_only_when_the_earlier_cannot_serve() -> None:
    first, second = endpoint("first", in_flight=90), endpoint("second")
    groups = [Group(1, 1.0, [first]), Group(2, 1.0, [second])]
    found = select(groups, need(), NOW_S)
    assert isinstance(found, Choice)
    assert found.candidate is first
    first.is_draining = True
    found = select(groups, need(), NOW_S)
    assert isinstance(found, Choice)
    assert found.candidate is second


def test_weight_scales_the_work_a_target_may_hold() -> None:
    heavy, light = endpoint("heavy", in_flight=5), endpoint("light", in_flight=3)
    found = select([Group(1, 2.0, [heavy]), Group(1, 1.0, [light])], need(), NOW_S)
    assert isinstance(found, Choice)
    assert found.candidate is heavy


def test_choosing_changes_nothing() -> None:
    pair = endpoint("a", in_flight=1), endpoint("b", in_flight=2)
    before = [(c.in_flight, c.held_tokens, c.breaker.phase) for c in pair]
    select([Group(1, 1.0, pair)], need(), NOW_S)
    assert [(c.in_flight, c.held_tokens, c.breaker.phase) for c in pair] == before

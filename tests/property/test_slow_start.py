"""Slow start: a young endpoint's share of the choices, under any load, and what it never does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.contracts.enums import ReplicaHealth
from routing.decision.breaker import Breaker
from routing.decision.filters import Candidate, Need, Report, Why
from routing.decision.select import Group, select
from routing.decision.slow_start import EVEN_RATIO, shares, turn, weight_of

NOW_S = 1000.0
REQUESTS = 1500
AGES = st.floats(0.0, 70.0)


def endpoint(name: str, age_s: float, in_flight: int = 0, held: int = 0) -> Candidate:
    made = Candidate(name, "p", Breaker(name), 100_000, ready_at_s=NOW_S - age_s)
    made.in_flight, made.held_tokens = in_flight, held
    made.report = Report(NOW_S, ReplicaHealth.OK, in_flight, 0, 0.0, in_flight)
    return made


def chosen(members: list[Candidate], request: int, tokens: int = 300) -> str:
    need = Need(f"r{request}", 200, tokens)
    choice = select([Group(1, 1.0, members)], need, NOW_S)
    assert choice is not None
    return choice.candidate.id


def share_of(name: str, members: list[Candidate], **options: int) -> float:
    return sum(chosen(members, n, **options) == name for n in range(REQUESTS)) / REQUESTS


def noise(share: float) -> float:
    """Five standard deviations of a share of `REQUESTS` draws."""
    return 5 * (share * (1 - share) / REQUESTS) ** 0.5


def test_weight_is_a_tenth_then_its_part_of_a_minute() -> None:
    assert [weight_of(age) for age in (-5.0, 0.0, 3.0, 30.0, 60.0, 1e9)] == [
        0.1,
        0.1,
        0.1,
        0.5,
        1,
        1,
    ]


@pytest.mark.parametrize(
    ("slow_start_s", "expected"), [(0.0, 0.5), (30.0, 0.5), (60.0, 1 / 3), (600.0, 0.1 / 1.1)]
)
def test_the_policy_says_how_long_it_lasts(slow_start_s: float, expected: float) -> None:
    members = [endpoint("old", 900.0), endpoint("young", 30.0)]
    found = 0
    for request in range(REQUESTS):
        need = Need(f"r{request}", 200, 300, slow_start_s=slow_start_s)
        choice = select([Group(1, 1.0, members)], need, NOW_S)
        assert choice is not None
        found += choice.candidate.id == "young"
    assert found / REQUESTS == pytest.approx(expected, abs=noise(expected))


@given(AGES, st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(0, 40))
def test_share_never_passes_its_weight_whatever_the_load(
    age_s: float, loads: list[int], own: int
) -> None:
    old = [endpoint(f"o{at}", 500.0, load) for at, load in enumerate(loads)]
    young = endpoint("young", age_s, own)
    if weight_of(age_s) >= EVEN_RATIO:
        return
    most = shares([*(1.0 for _ in old), weight_of(age_s)])[-1]
    assert share_of("young", [*old, young]) <= most + noise(most)


@pytest.mark.parametrize("age_s", [0.0, 15.0, 30.0, 44.0])
@pytest.mark.parametrize("others", [1, 3])
def test_among_equals_its_share_is_its_weight(age_s: float, others: int) -> None:
    members = [*(endpoint(f"o{at}", 500.0) for at in range(others)), endpoint("young", age_s)]
    expected = weight_of(age_s) / (others + weight_of(age_s))
    assert share_of("young", members) == pytest.approx(expected, abs=noise(expected))


@given(st.lists(AGES, min_size=1, max_size=6), st.integers(0, 200))
def test_no_request_is_refused_for_it(ages: list[float], request: int) -> None:
    members = [endpoint(f"e{at}", age) for at, age in enumerate(ages)]
    assert chosen(members, request) in {one.id for one in members}


@given(AGES, AGES, st.integers(0, 500))
def test_what_is_open_to_it_stays_open_as_it_ages(one: float, other: float, request: int) -> None:
    earlier, later = sorted((one, other))
    need, old = Need(f"r{request}", 200, 300), endpoint("old", 500.0)
    if "young" not in turn([(old, 1.0), (endpoint("young", earlier), 1.0)], need, NOW_S).closed:
        found = turn([(old, 1.0), (endpoint("young", later), 1.0)], need, NOW_S)
        assert "young" not in found.closed


@given(st.lists(AGES, min_size=2, max_size=6), st.integers(0, 200))
def test_a_request_is_at_most_one_young_ones_turn(ages: list[float], request: int) -> None:
    members = [(endpoint(f"e{at}", age), 1.0) for at, age in enumerate(ages)]
    found = turn(members, Need(f"r{request}", 200, 300), NOW_S)
    assert found.young_id not in found.closed
    full = max(weight_of(age) for age in ages) * EVEN_RATIO
    young = {one.id for (one, _), age in zip(members, ages, strict=True) if weight_of(age) < full}
    assert found.closed == young - {found.young_id}


def test_a_pool_that_has_just_started_balances_by_load() -> None:
    members = [endpoint("busy", 2.0, in_flight=5), endpoint("idle", 3.0)]
    assert share_of("idle", members) == 1.0


def test_it_holds_no_more_tokens_than_its_weight_of_its_room() -> None:
    old = endpoint("old", 500.0, in_flight=30)
    assert share_of("young", [old, endpoint("young", 12.0, held=19_000)], tokens=900) > 0.1
    assert share_of("young", [old, endpoint("young", 12.0, held=19_900)], tokens=900) == 0.0


def test_alone_or_beside_broken_ones_it_serves_all() -> None:
    draining = endpoint("old", 500.0)
    draining.is_draining = True
    assert share_of("young", [draining, endpoint("young", 0.0)]) == 1.0


def test_a_busier_young_one_gives_its_turn_to_others() -> None:
    members = [endpoint("old", 500.0), endpoint("young", 30.0, in_flight=3)]
    assert share_of("young", members) == 0.0


def test_weights_of_targets_count() -> None:
    old, young = endpoint("old", 500.0), endpoint("young", 30.0)
    groups = [Group(1, 3.0, [old]), Group(1, 1.0, [young])]
    picks = []
    for n in range(REQUESTS):
        choice = select(groups, Need(f"r{n}", 200, 300), NOW_S)
        assert choice is not None
        picks.append("young" not in {one.candidate.id for one in choice.looked if one.why})
        closed = [one.why for one in choice.looked if one.candidate.id == "young" and one.why]
        assert set(closed) <= {Why.SLOW_START}
    expected = 0.5 / 3.5
    assert sum(picks) / REQUESTS == pytest.approx(expected, abs=noise(expected))

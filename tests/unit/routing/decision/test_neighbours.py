"""What a replica's neighbours say of it: outliers of pace, failing regions; and the three times."""

import pytest

from routing.contracts.snapshot import ClassPolicy
from routing.decision.affinity import Affinity, held_tokens, home_of, place_of
from routing.decision.breaker import Breaker, Outcome
from routing.decision.deadlines import Deadline, passed
from routing.decision.filters import Candidate, Need
from routing.decision.outlier import EJECT_S, WINDOW_S, Pace, weigh_pool
from routing.decision.regions import failing_regions
from routing.decision.select import Group, select
from routing.decision.types import Reason

NOW_S = 1000.0
FAST_S = 0.02


def pool(*gaps_s: float) -> list[tuple[Candidate, Pace]]:
    """Replicas that made five streams each with such gaps."""
    members = []
    for number, gap_s in enumerate(gaps_s):
        pace = Pace()
        stream(pace, gap_s, NOW_S)
        members.append((Candidate(f"u{number}", "p1", Breaker(f"u{number}")), pace))
    return members


def stream(pace: Pace, gap_s: float, now_s: float) -> None:
    for _ in range(5):
        pace.ended(11, 10 * gap_s, now_s)


def ratios(members: list[tuple[Candidate, Pace]]) -> list[float]:
    return [candidate.pace_ratio for candidate, _ in members]


def test_three_times_slower_than_its_peers_gets_half_the_work() -> None:
    members = pool(FAST_S, FAST_S, 2.9 * FAST_S)
    weigh_pool(members, NOW_S, 1)
    assert ratios(members) == [1, 1, 1]
    members = pool(FAST_S, FAST_S, 3.1 * FAST_S)
    weigh_pool(members, NOW_S, 1)
    assert ratios(members) == [1, 1, 0.5]


def test_one_peer_cannot_say_which_of_two_is_odd() -> None:
    members = pool(FAST_S, 10 * FAST_S)
    weigh_pool(members, NOW_S, 1)
    assert ratios(members) == [1, 1]


def test_a_short_stream_says_nothing_of_the_pace() -> None:
    members = pool(FAST_S, FAST_S)
    pace = Pace()
    for _ in range(20):
        pace.ended(7, 10.0, NOW_S)
    members.append((Candidate("u2", "p1", Breaker("u2")), pace))
    weigh_pool(members, NOW_S, 1)
    assert ratios(members) == [1, 1, 1]


def test_slow_for_a_window_is_ejected_and_comes_back_with_half_to_be_measured_anew() -> None:
    members = pool(FAST_S, FAST_S, FAST_S, 10 * FAST_S)
    weigh_pool(members, NOW_S, 1)
    later_s = NOW_S + WINDOW_S
    for (_, pace), gap_s in zip(members, (FAST_S, FAST_S, FAST_S, 10 * FAST_S), strict=True):
        stream(pace, gap_s, later_s)
    weigh_pool(members, later_s, 1)
    assert ratios(members) == [1, 1, 1, 0]
    back_s = later_s + EJECT_S
    weigh_pool(members, back_s, 1)
    assert ratios(members)[3] == 0.5
    for _, pace in members:
        stream(pace, FAST_S, back_s + 1)
    weigh_pool(members, back_s + 1, 1)
    assert ratios(members) == [1, 1, 1, 1]


def test_no_more_are_ejected_than_the_pool_may_lose() -> None:
    slow = 10 * FAST_S
    members = pool(FAST_S, FAST_S, FAST_S, FAST_S, slow, slow)
    weigh_pool(members, NOW_S, 1)
    for (_, pace), gap_s in zip(members, [FAST_S] * 4 + [slow] * 2, strict=True):
        stream(pace, gap_s, NOW_S + WINDOW_S)
    weigh_pool(members, NOW_S + WINDOW_S, 1)
    assert sorted(ratios(members)) == [0, 0.5, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("endpoints", "failing"),
    [
        ([("eu", True), ("eu", True), ("eu", False), ("us", False)], {"eu"}),
        ([("eu", True), ("us", False)], set()),  # one endpoint is no region
        ([("eu", True), ("eu", True), ("eu", False), ("eu", False), ("eu", False)], set()),
        ([("", True), ("", True)], set()),
    ],
)
def test_a_region_fails_when_half_of_it_two_at_least_is_open(
    endpoints: list[tuple[str, bool]], failing: set[str]
) -> None:
    assert failing_regions(endpoints) == failing


def chosen(groups: list[Group]) -> str:
    choice = select(groups, Need("r", 100, 200), NOW_S)
    assert choice is not None
    return choice.candidate.id


def one(name: str, **fields: object) -> Candidate:
    return Candidate(name, "p1", Breaker(name), 100_000, **fields)  # type: ignore[arg-type]


def test_a_failing_region_is_left_for_a_later_order_and_used_when_nothing_else_is() -> None:
    sick = Group(1, 1.0, [one("sick", in_failing_region=True)])
    assert chosen([sick, Group(2, 1.0, [one("spill", in_flight=9)])]) == "spill"
    assert chosen([sick]) == "sick"


def test_half_the_pace_is_half_the_work_and_none_is_the_last_resort() -> None:
    slow, peer = one("slow", pace_ratio=0.5), one("peer", in_flight=1)
    terms_alone = [Group(1, 1.0, [slow, peer])]
    peer.in_flight = 0
    assert chosen(terms_alone) == "peer"
    out = one("out", pace_ratio=0.0)
    assert chosen([Group(1, 1.0, [out, one("busy", in_flight=50)])]) == "busy"
    assert chosen([Group(1, 1.0, [out])]) == "out"


def test_a_broken_adapter_is_left_alone_and_its_base_is_not() -> None:
    first, second = (one(name, adapters=frozenset({"sql"})) for name in ("u1", "u2"))
    second.in_flight = 9
    breaker = first.adapter_breakers.setdefault("sql", Breaker("u1/sql"))
    for _ in range(5):
        breaker.observe(Outcome.FAILURE, NOW_S)
    assert chosen([Group(1, 1.0, [first, second], "sql")]) == "u2"
    assert chosen([Group(1, 1.0, [first, second])]) == "u1"


def test_affinity_counts_on_no_more_than_its_share_of_the_work() -> None:
    members = [one(name) for name in ("a", "b", "c", "d")]
    home = home_of(place_of("salt", "s"), members)
    assert held_tokens(Affinity(place_of("salt", "s"), {}), members, 100) == {home: 100}
    busy = next(member for member in members if member.id == home)
    busy.in_flight = 4  # four at work on four replicas: at most 1.25 of the mean and one more
    assert home not in held_tokens(Affinity(place_of("salt", "s"), {}), members, 100)
    assert held_tokens(Affinity(1, {home: 3}), members, 100) == {}
    busy.in_flight = 0
    assert held_tokens(Affinity(1, {home: 1}), members, 100) == {home: 64}


LIMITS = ClassPolicy(2.0, 1.0, 10.0)


@pytest.mark.parametrize(
    ("times", "deadline", "reason"),
    [
        ({"try_s": 2.1}, Deadline.FIRST_TOKEN, Reason.UPSTREAM_TIMEOUT),
        ({"try_s": 2.1, "output_bound": 5}, None, None),
        ({"try_s": 9.0, "silent_s": 0.9}, None, None),
        ({"try_s": 9.0, "silent_s": 1.1}, Deadline.BETWEEN_TOKENS, Reason.UPSTREAM_TIMEOUT),
        ({"whole_s": 10.1, "silent_s": 0.0}, Deadline.TOTAL, Reason.DEADLINE_EXCEEDED),
    ],
)
def test_each_time_has_its_own_error(
    times: dict[str, float], deadline: Deadline | None, reason: Reason | None
) -> None:
    asked = {"whole_s": 1.0, "try_s": 1.0, "silent_s": None, "output_bound": 0} | times
    found = passed(LIMITS, **asked)  # type: ignore[arg-type]
    assert (found.deadline if found else None) == deadline
    assert (found.reason if found else None) == reason

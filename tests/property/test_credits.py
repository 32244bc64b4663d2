"""Credits leased to gateways: whatever they do, their sum never passes the limit."""

import msgspec
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routing.decision.credits import Gauge, Rate, chunk_of
from routing.store.scripts import CREDITS, run_script

KEY = "hr:{credits:test:p}"
OWNERS = ("g0", "g1", "g2")
ACTS = st.lists(
    st.tuples(st.sampled_from(OWNERS), st.sampled_from(["ask", "take", "leave", "away"]),
              st.integers(1, 12)),
    max_size=60,
)  # fmt: skip
QUICK = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def ask(store: redis.Redis, owner: str, *items: tuple[object, ...], ttl_ms: int = 60_000) -> list:
    """Answers without classes: granted, left for anybody."""
    whole = [(*item, "", []) for item in items]
    argument = msgspec.msgpack.encode((owner, ttl_ms, whole, 60_000))
    found = run_script(store, CREDITS, KEY, argument)[1:]
    for (granted, _, may), (kind, _, _, want, _) in zip(found, items, strict=True):
        assert may == (granted if kind == 1 else min(granted, want))
    return [one[:2] for one in found]


@given(limit=st.integers(0, 30), acts=ACTS)
@QUICK
def test_gauges_of_all_gateways_stay_within_the_limit(
    store: redis.Redis, limit: int, acts: list[tuple[str, str, int]]
) -> None:
    """`away`: the store ran the script, but the gateway never heard."""
    store.delete(KEY)
    gauges = {owner: Gauge(limit) for owner in OWNERS}
    for owner, act, amount in acts:
        gauge = gauges[owner]
        if act in ("ask", "away"):
            gauge.demand += amount
            want = gauge.wanted()
            ((granted, _),) = ask(store, owner, (2, "conc", limit, want, gauge.used))
            if act == "ask":
                gauge.granted(granted, 0, 0.0)
        elif act == "take" and gauge.used + amount <= gauge.owned:
            gauge.used += amount
        elif act == "leave":
            gauge.used -= min(gauge.used, amount)
        assert sum(one.used for one in gauges.values()) <= limit
        assert all(one.used <= one.owned for one in gauges.values())


@given(limit=st.integers(0, 200), acts=ACTS)
@QUICK
def test_rates_of_all_gateways_stay_within_the_limit_of_the_minute(
    store: redis.Redis, limit: int, acts: list[tuple[str, str, int]]
) -> None:
    store.delete(KEY)
    minute = store.time()[0] // 60 + 1  # the next one: the clock does not leave it under the test
    rates = {owner: Rate(limit, minute) for owner in OWNERS}
    spent = 0
    for owner, act, amount in acts:
        rate = rates[owner]
        if act in ("ask", "away"):
            rate.demand += amount
            want, _ = rate.wanted(0)
            if want < 0:
                rate.left += want
            ((granted, _),) = ask(store, owner, (1, "req", limit, want, minute))
            if act == "ask":
                rate.left += max(0, granted)
        elif act == "take" and amount <= rate.left:
            rate.left -= amount
            spent += amount
        assert spent + sum(one.left for one in rates.values()) <= limit
        assert all(one.left >= 0 for one in rates.values())


def test_a_minute_that_is_over_lends_nothing_and_takes_nothing_back(store: redis.Redis) -> None:
    minute = store.time()[0] // 60
    assert ask(store, "g0", (1, "req", 10, 5, minute - 1)) == [[0, 10]]
    assert ask(store, "g0", (1, "req", 10, -5, minute - 1)) == [[0, 10]]
    assert ask(store, "g0", (1, "req", 10, 5, minute + 2)) == [[0, 10]]


def test_a_dead_owners_gauge_is_lent_again_when_its_lease_ends(store: redis.Redis) -> None:
    assert ask(store, "g0", (2, "conc", 10, 8, 0), ttl_ms=60_000) == [[8, 2]]
    assert ask(store, "g1", (2, "conc", 10, 8, 0)) == [[2, 0]]
    assert ask(store, "g0", (2, "conc", 10, 8, 0), ttl_ms=-1) == [[8, 0]]  # ended already
    assert ask(store, "g1", (2, "conc", 10, 8, 0)) == [[8, 2]]
    assert store.hkeys(KEY) == [b"g:conc::g1"]
    assert ask(store, "g1", (2, "conc", 10, 0, 0)) == [[0, 10]]
    assert store.exists(KEY) == 0


def test_what_is_in_use_stays_owned_when_the_limit_is_lowered(store: redis.Redis) -> None:
    assert ask(store, "g0", (2, "conc", 10, 8, 0)) == [[8, 2]]
    assert ask(store, "g0", (2, "conc", 3, 3, 6)) == [[6, 0]]
    assert ask(store, "g1", (2, "conc", 3, 3, 0)) == [[0, 0]]


def test_the_next_minutes_first_chunk_is_leased_before_it_begins() -> None:
    rate = Rate(1_000, 7, left=50)
    assert rate.wanted(54_999) == (0, 0)
    assert rate.wanted(55_000) == (0, 50)
    rate.ahead = 50
    assert rate.turn(8)
    assert (rate.left, rate.ahead) == (50, 0)
    assert not rate.turn(7), "the clock set back changes nothing"
    assert rate.turn(10)
    assert rate.left == 0, "credits of a minute end with it"


def test_credits_beyond_what_is_wanted_go_back() -> None:
    assert chunk_of(1_000) == 50
    assert chunk_of(3) == 1
    assert Rate(1_000, 7, left=500).wanted(0) == (-450, 0)
    assert Rate(1_000, 7, left=100).wanted(0) == (0, 0)

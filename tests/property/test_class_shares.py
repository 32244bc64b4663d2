"""Reserved shares of a limit: nobody under its share is refused for another, loans come back."""

import msgspec
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routing.contracts.enums import WorkClass
from routing.contracts.snapshot import ClassPolicy
from routing.decision.classes import LEND_AFTER_MS, Share, alone, room, shares_of
from routing.decision.credits import Gauge
from routing.store.scripts import CREDITS, run_script

KEY = "hr:{credits:test:shared}"
CLASSES = tuple(one.value for one in WorkClass)
OWNERS = ("g0", "g1")
QUICK = settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@st.composite
def policies(draw: st.DrawFn) -> dict[str, ClassPolicy]:
    """Three classes whose shares and floors fit into the limit, at least one with a share."""
    left, found = 100, {}
    for place, name in enumerate(CLASSES):
        floor = draw(st.integers(1, 10))
        reserve = draw(st.integers(1 if place == 0 else 0, min(60, left - 10 * (2 - place))))
        left -= max(reserve, floor)
        found[name] = ClassPolicy(1, 1, 1, None, reserve / 100, floor / 100)
    return found


LIMITS = st.integers(0, 300)
ACTS = st.lists(
    st.tuples(st.sampled_from(CLASSES), st.integers(1, 60), st.booleans()), min_size=1, max_size=60
)


@given(limit=LIMITS, classes=policies(), acts=ACTS)
@QUICK
def test_a_class_under_its_share_is_admitted_whatever_the_others_ask(
    limit: int, classes: dict[str, ClassPolicy], acts: list[tuple[str, int, bool]]
) -> None:
    """All classes in use: none lends. `leaves` takes units back, as ended requests do."""
    shares = shares_of(limit, classes)
    used = dict.fromkeys(CLASSES, 0)
    for name, amount, leaves in acts:
        if leaves:
            used[name] -= min(used[name], amount)
            continue
        may = room(limit, used, shares, CLASSES, name)
        assert may >= shares[name].full - used[name], "its own share is there"
        used[name] += min(amount, may)
        assert sum(used.values()) <= limit
        assert sum(max(used[one], shares[one].full) for one in CLASSES) <= limit


@given(limit=LIMITS, classes=policies(), acts=ACTS, idle=st.sampled_from(CLASSES))
@QUICK
def test_an_idle_share_is_lent_but_for_its_floor_and_comes_back_as_borrowers_end(
    limit: int, classes: dict[str, ClassPolicy], acts: list[tuple[str, int, bool]], idle: str
) -> None:
    shares = shares_of(limit, classes)
    used = dict.fromkeys(CLASSES, 0)
    busy = [name for name in CLASSES if name != idle]
    for name, amount, _ in acts:
        if name != idle:
            used[name] += min(amount, room(limit, used, shares, busy, name))
    for name in busy:  # as much as they can get
        used[name] += room(limit, used, shares, busy, name)
    assert sum(used.values()) == limit - shares[idle].floor, "all but the floor is lent"
    assert room(limit, used, shares, CLASSES, idle) >= min(shares[idle].floor, shares[idle].full)

    running = dict(used)  # the idle class is back: what runs now is all that still borrows
    for name, amount, _ in acts:
        if name == idle:
            used[name] += min(amount, room(limit, used, shares, CLASSES, name))
        else:
            ended = min(running[name], amount)
            running[name] -= ended
            used[name] -= ended
            used[name] += min(amount, room(limit, used, shares, CLASSES, name))
        assert sum(used.values()) <= limit
    for name in busy:  # the longest of them has ended
        used[name] -= running[name]
        assert used[name] <= shares[name].full + limit - sum(s.full for s in shares.values())
    assert room(limit, used, shares, CLASSES, idle) >= shares[idle].full - used[idle]


@given(limit=LIMITS, classes=policies())
@QUICK
def test_what_classes_may_use_without_the_store_adds_up_to_the_limit_at_most(
    limit: int, classes: dict[str, ClassPolicy]
) -> None:
    shares = shares_of(limit, classes)
    assert sum(alone(limit, shares, name) for name in CLASSES) <= limit
    assert all(alone(limit, shares, name) >= shares[name].full for name in CLASSES)


def test_nothing_is_shared_until_a_class_reserves() -> None:
    none = {name: ClassPolicy(1, 1, 1, None, 0.0, 0.05) for name in CLASSES}
    assert shares_of(100, none) == {}
    assert alone(100, {}, "batch") == 100
    assert room(100, {"": 30}, {}, (), "batch") == 70
    one = none | {"interactive": ClassPolicy(1, 1, 1, None, 0.5, 0.05)}
    assert shares_of(100, one)["interactive"] == Share(50, 5)
    assert shares_of(100, one)["batch"] == Share(5, 5), "a floor is a share of those without one"


def ask(store: redis.Redis, owner: str, *items: tuple[object, ...]) -> list[list[int]]:
    argument = msgspec.msgpack.encode((owner, 60_000, items, LEND_AFTER_MS))
    return run_script(store, CREDITS, KEY, argument)[1:]


def wire(shares: dict[str, Share]) -> list[object]:
    return [value for name, share in shares.items() for value in (name, *share)]


@given(
    limit=LIMITS,
    classes=policies(),
    acts=st.lists(
        st.tuples(st.sampled_from(OWNERS), st.sampled_from(CLASSES), st.integers(0, 80)),
        max_size=30,
    ),
)
@QUICK
def test_the_stores_script_grants_what_the_rule_says(
    store: redis.Redis,
    limit: int,
    classes: dict[str, ClassPolicy],
    acts: list[tuple[str, str, int]],
) -> None:
    """Gauges and a minute's rate, asked alike, against `room` over what each class has."""
    store.delete(KEY)
    minute = store.time()[0] // 60 + 1
    shares = shares_of(limit, classes)
    owned: dict[tuple[str, str], int] = {}
    taken = dict.fromkeys(CLASSES, 0)
    seen: set[str] = set()
    for owner, name, want in acts:
        seen |= {name} if want else set()
        of_others = dict.fromkeys(CLASSES, 0)
        for (who, one), amount in owned.items():
            of_others[one] += amount if (who, one) != (owner, name) else 0
        may = min(want, room(limit, of_others, shares, seen, name))
        more = min(want, room(limit, taken, shares, seen, name))
        (gauge, rate) = ask(
            store,
            owner,
            (2, "conc", limit, want, 0, name, wire(shares)),
            (1, "req", limit, want, minute, name, wire(shares)),
        )
        left = limit - sum(of_others.values()) - may
        assert gauge == [may, max(0, left), may]
        owned[owner, name] = may
        taken[name] += more
        assert rate == [more, limit - sum(taken.values()), more]


def test_a_borrower_keeps_what_runs_and_starts_nothing_until_the_loan_is_back(
    store: redis.Redis,
) -> None:
    """Two gateways full of borrowed batch work; interactive comes; the loan is paid back."""
    classes = {
        "interactive": ClassPolicy(1, 1, 1, None, 0.5, 0.1),
        "batch": ClassPolicy(1, 1, 1, None, 0.2, 0.1),
    }
    shares = wire(shares_of(20, classes))
    batch = {owner: Gauge(20, classes=2) for owner in OWNERS}

    def turn(owner: str) -> None:
        gauge = batch[owner]
        item = (2, "conc", 20, gauge.wanted(), gauge.used, "batch", shares)
        ((_, spare, may),) = ask(store, owner, item)
        gauge.granted(may, spare, 0.0)

    for owner in OWNERS:
        batch[owner].demand = 9
        turn(owner)
        batch[owner].used = 9
    assert [gauge.owned for gauge in batch.values()] == [10, 8], "all but interactive's floor"
    batch["g1"].used = 8
    ((granted, spare, _),) = ask(store, "g0", (2, "conc", 20, 10, 0, "interactive", shares))
    assert (granted, spare) == (2, 0), "its floor at once"
    for owner in OWNERS:
        turn(owner)
        assert batch[owner].owned < batch[owner].used, "nothing new is borrowed"
    got = []
    for _ in range(9):
        for owner in OWNERS:
            gauge = batch[owner]
            gauge.used -= min(1, gauge.used)  # one of its requests has ended
            turn(owner)
            gauge.used += 1 if gauge.used < gauge.owned else 0  # and another would like to start
        ((granted, _, _),) = ask(store, "g0", (2, "conc", 20, 10, 0, "interactive", shares))
        got.append(granted)
    assert got == sorted(got)
    assert got[-1] == 10, "the whole share is back"
    assert 4 <= sum(gauge.used for gauge in batch.values()) <= 10, "and batch has its own"

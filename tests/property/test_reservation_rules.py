"""The store's scripts equal the rules: any order of reserve, settle, sweep, lease and rebuild.

`Model` states the accounting protocol in plain Python; every reply and every counter of the real
scripts is compared with it after each step.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import Raw

from routing.contracts.enums import Dimension, LimitScope, WindowKind
from routing.decision.admit import Admission, Denial, Position, admit
from routing.decision.limits import Edges, Group, amounts_in_order
from routing.decision.types import Amounts
from routing.store import keys
from routing.store.calls import ReserveItem, SettleItem, reserve_argument, settle_argument
from routing.store.plans import Plan, as_text, decode_legs, encode_legs, suffix_of
from routing.store.pooled import sync_client
from routing.store.reservations import LEASE_MS
from routing.store.scripts import LEASE, RESERVE, SETTLE, run_script
from tests.accounting import counters, encode, fields, hold_of, run_id
from tests.clustering import running_cluster

FAR: Edges = (0, 4_000_000_000_000, 4_000_000_000_001)  # one window for the whole test
NO_EDGES: Edges = (0, 0, 0)
BUCKET = 250
TAG = keys.bucket_tag(BUCKET)
META = keys.bucket_meta(BUCKET)
D, S, W = Dimension, LimitScope, WindowKind

SMALL = st.integers(0, 6)
AMOUNTS = st.builds(Amounts, SMALL, SMALL, SMALL, SMALL)
LIMITS = st.integers(-1, 12)


@st.composite
def group_sets(draw: Any) -> tuple[Group, ...]:
    """A tenant's day and gauge as always, and perhaps a month of its key."""
    day = ((D.REQUESTS, draw(LIMITS)), (D.INPUT_TOKENS, -1), (D.SPEND_NANOUSD, draw(LIMITS)))
    groups = [
        Group(S.TENANT, W.DAY, "", day),
        Group(
            S.TENANT,
            W.NOW,
            "",
            ((D.CONCURRENCY, draw(st.integers(-1, 3))), (D.KV_TOKENS, draw(LIMITS))),
        ),
    ]
    if draw(st.booleans()):
        groups.append(Group(S.KEY, W.MONTH, "k", ((D.OUTPUT_TOKENS, draw(LIMITS)),)))
    return tuple(groups)


def edges_of(groups: tuple[Group, ...]) -> tuple[Edges, ...]:
    return tuple(NO_EDGES if group.is_gauge else FAR for group in groups)


Legs = list[tuple[int, str, dict[str, int]]]


def plain_legs(groups: tuple[Group, ...], amounts: Amounts) -> Legs:
    packed = encode_legs("t", groups, edges_of(groups), amounts_in_order(amounts))
    return [
        (kind, suffix, dict(zip(taken[::2], taken[1::2], strict=True)))
        for kind, suffix, _, taken in decode_legs(packed)
    ]


@dataclass
class Hold:
    epoch: int
    legs: Legs
    is_expired: bool


@dataclass
class Model:
    """One bucket, by the rules."""

    epoch: int = 1
    used: dict[tuple[str, str], int] = field(default_factory=dict)
    held: dict[tuple[str, str], int] = field(default_factory=dict)
    holds: dict[str, Hold] = field(default_factory=dict)
    stream: list[tuple[str, str, int]] = field(default_factory=list)

    def reserve(
        self, request_id: str, groups: tuple[Group, ...], amounts: Amounts, *, expired: bool
    ) -> Admission | Denial | str:
        if request_id in self.holds:
            return "TWICE"
        positions = []
        for group in groups:
            suffix = suffix_of("t", group, 0)
            positions.append(
                {
                    dim: Position(
                        self.used.get((suffix, dim.value), 0), self.held.get((suffix, dim.value), 0)
                    )
                    for dim, _ in group.dims
                }
            )
        # All windows end at one instant, so waits are equal among them and 0 for gauges.
        answer = admit(groups, positions, amounts, [0 if g.is_gauge else 1 for g in groups])
        if isinstance(answer, Admission):
            legs = plain_legs(groups, amounts)
            self.holds[request_id] = Hold(self.epoch, legs, expired)
            self._hold(legs, 1)
        return answer

    def settle(
        self, request_id: str, kind: str, charge: dict[str, int], res_epoch: int, legs: Legs
    ) -> str:
        hold = self.holds.get(request_id)
        if kind == "w" and (hold is None or not hold.is_expired):
            return "ALIVE"
        counted = self.epoch
        if hold is not None:
            del self.holds[request_id]
            if hold.epoch == self.epoch:
                self._hold(hold.legs, -1)
            self._charge(hold.legs, charge)
        elif res_epoch == self.epoch:
            counted = 0
        else:
            self._charge(legs, charge)
        self.stream.append((request_id, kind, counted))
        return "OK"

    def lease(self, request_id: str, res_epoch: int, legs: Legs | None) -> int:
        hold = self.holds.get(request_id)
        if hold is not None and hold.epoch == self.epoch:
            hold.is_expired = False
            return 1
        if hold is None and res_epoch == self.epoch:
            return 0
        if hold is None and legs is None:
            return 2
        if hold is None:
            assert legs is not None
            hold = self.holds[request_id] = Hold(self.epoch, legs, is_expired=False)
        hold.epoch, hold.is_expired = self.epoch, False
        self._hold(hold.legs, 1)
        return 1

    def begin(self, *, is_lost: bool) -> None:
        self.epoch += 1
        self.held.clear()
        if is_lost:
            self.holds.clear()
            self.stream.clear()

    def _hold(self, legs: Legs, sign: int) -> None:
        for _, suffix, taken in legs:
            for dim, amount in taken.items():
                at = (suffix, dim)
                self.held[at] = self.held.get(at, 0) + sign * amount

    def _charge(self, legs: Legs, charge: dict[str, int]) -> None:
        for kind, suffix, taken in legs:
            for dim in taken if kind == 1 else ():
                self.used[(suffix, dim)] = self.used.get((suffix, dim), 0) + charge.get(dim, 0)


class Reservations(RuleBasedStateMachine):
    """The model and the real store, side by side."""

    store: "redis.Redis"

    def __init__(self) -> None:
        super().__init__()
        self.store.flushall()
        self.run_id = run_id(self.store, BUCKET)
        self.model = Model()
        self.known: dict[str, tuple[int, tuple[Group, ...], Amounts]] = {}
        self.made = 0
        counters(self.store, BUCKET, "begin", epoch=1)
        counters(self.store, BUCKET, "open", 0, epoch=1)

    def run(self, script: Any, argument: bytes) -> Any:
        return run_script(self.store, script, META, argument)

    def soon(self) -> int:
        return int(time.time() * 1000) + 5000

    @rule(groups=group_sets(), amounts=AMOUNTS, is_expired=st.booleans())
    def reserve(self, groups: tuple[Group, ...], amounts: Amounts, is_expired: bool) -> None:
        request_id = f"r{self.made}"
        self.made += 1
        self._reserve(request_id, groups, amounts, is_expired=is_expired)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def reserve_the_same_again(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.known)))
        _, groups, amounts = self.known[request_id]
        if request_id in self.model.holds:
            self._reserve(request_id, groups, amounts, is_expired=False)

    def _reserve(self, request_id, groups, amounts, *, is_expired: bool) -> None:
        plan = Plan("t", groups, edges_of(groups), bucket=BUCKET, epoch=self.model.epoch)
        item = ReserveItem(
            plan.raw, request_id, self.soon(), -60_000 if is_expired else LEASE_MS, as_text(b"i"),
            amounts_in_order(amounts), as_text(plan.legs(amounts_in_order(amounts))),
        )  # fmt: skip
        (reply,) = self.run(RESERVE, reserve_argument(self.run_id, (item,)))
        expected = self.model.reserve(request_id, groups, amounts, expired=is_expired)
        if isinstance(expected, Admission):
            assert reply[0] == b"OK"
            assert tuple(reply[3]) == expected.left
            self.known[request_id] = (self.model.epoch, groups, amounts)
        elif isinstance(expected, Denial):
            assert reply[0] == b"NO"
            assert reply[3] - 1 == expected.group_index
            assert reply[4].decode() == expected.dimension
            assert (reply[5], reply[6]) == (expected.used, expected.held)
        else:
            assert reply[0] == expected.encode()

    @precondition(lambda self: self.known)
    @rule(data=st.data(), kind=st.sampled_from("svrw"), amounts=AMOUNTS, is_old=st.booleans())
    def settle(self, data: st.DataObject, kind: str, amounts: Amounts, is_old: bool) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.known)))
        epoch, groups, held = self.known[request_id]
        res_epoch = 0 if is_old else epoch
        charge = (
            {}
            if kind == "v"
            else {"req": 1, "in": amounts.input_tokens, "out": amounts.output_tokens,
                  "usd": amounts.spend_nanousd}
        )  # fmt: skip
        packed = encode_legs("t", groups, edges_of(groups), amounts_in_order(held))
        plan, taken = self._plan(data, groups, held)
        item = SettleItem(
            TAG, plan, request_id, res_epoch, kind, charge, as_text(b"{}"), as_text(packed), taken
        )  # fmt: skip
        (reply,) = self.run(SETTLE, settle_argument(self.run_id, (item,)))
        legs = plain_legs(groups, held)
        assert reply[0].decode() == self.model.settle(request_id, kind, charge, res_epoch, legs)

    def _plan(self, data: st.DataObject, groups: tuple[Group, ...], held: Amounts) -> Any:
        """A gateway knows the plan of its requests, perhaps of an epoch before; a sweeper none."""
        epoch = data.draw(st.sampled_from([0, self.model.epoch - 1, self.model.epoch]))
        if not epoch:
            return None, ()
        plan = Plan("t", groups, edges_of(groups), bucket=BUCKET, epoch=epoch)
        return plan.raw, amounts_in_order(held)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), sends_legs=st.booleans())
    def lease(self, data: st.DataObject, sends_legs: bool) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.known)))
        epoch, groups, held = self.known[request_id]
        self._lease(request_id, epoch, groups, held, sends_legs=sends_legs)

    def _lease(self, request_id, epoch, groups, held, *, sends_legs: bool) -> None:
        packed = encode_legs("t", groups, edges_of(groups), amounts_in_order(held))
        item: tuple[object, ...] = (request_id, 3, epoch)
        if sends_legs:
            item += (as_text(b"i"), Raw(packed))
        argument = encode((TAG, self.run_id, self.soon(), LEASE_MS, [item]))
        reply = self.run(LEASE, argument)
        legs = plain_legs(groups, held) if sends_legs else None
        expected = self.model.lease(request_id, epoch, legs)
        assert (reply[0], reply[5]) == (b"OK", [expected])
        if expected == 1:
            self.known[request_id] = (self.model.epoch, groups, held)

    @rule(is_lost=st.booleans(), registers=st.booleans())
    def rebuild(self, is_lost: bool, registers: bool) -> None:
        """A new epoch, with or without the old keys; used is filled as the ledger knows it."""
        if is_lost:
            self.store.flushall()
        self.model.begin(is_lost=is_lost)
        epoch = self.model.epoch
        assert counters(self.store, BUCKET, "begin", epoch=epoch) == b"OK"
        empty = Plan("t", (), (), bucket=BUCKET, epoch=epoch)
        item = ReserveItem(empty.raw, "x", self.soon(), 1, as_text(b""), [1], as_text(b""))
        (refused,) = self.run(RESERVE, reserve_argument(self.run_id, (item,)))
        assert refused[0] == b"REBUILD"
        if registers:
            for request_id, (known_epoch, groups, held) in list(self.known.items()):
                if request_id in self.model.holds:
                    self._lease(request_id, known_epoch, groups, held, sends_legs=True)
        rows = [[suffix, dim, used, FAR[1]] for (suffix, dim), used in self.model.used.items()]
        assert counters(self.store, BUCKET, "fill", rows, epoch=epoch) == b"OK"
        assert counters(self.store, BUCKET, "open", 0, epoch=epoch) == b"OK"

    @invariant()
    def counters_equal_the_model(self) -> None:
        found: dict[tuple[str, str], int] = {}
        prefix = f"{TAG}:{self.model.epoch}:"
        for name in self.store.scan_iter(f"{prefix}*", count=1000):
            for dim, value in fields(self.store, name).items():
                if dim != "x" and value:
                    found[(name.decode().removeprefix(prefix), dim)] = value
        expected = {at: n for at, n in self.model.used.items() if n}
        expected |= {(s, f"{d}_h"): n for (s, d), n in self.model.held.items() if n}
        assert found == expected
        assert all(n > 0 for n in found.values())

    @invariant()
    def holds_leases_and_stream_equal_the_model(self) -> None:
        leases = {m.decode() for m in self.store.zrange(keys.bucket_leases(BUCKET), 0, -1)}
        assert leases == set(self.model.holds)
        for request_id, hold in self.model.holds.items():
            seen = hold_of(self.store, BUCKET, request_id)
            assert seen is not None and seen.epoch == hold.epoch
        entries = [
            (f[b"id"].decode(), f[b"t"].decode(), int(f[b"k"]))
            for _, f in self.store.xrange(keys.bucket_usage(BUCKET))
        ]
        assert entries == self.model.stream

    @invariant()
    def held_is_what_the_holds_of_this_epoch_say(self) -> None:
        total: dict[tuple[str, str], int] = {}
        for hold in self.model.holds.values():
            for _, suffix, taken in hold.legs if hold.epoch == self.model.epoch else ():
                for dim, amount in taken.items():
                    total[(suffix, dim)] = total.get((suffix, dim), 0) + amount
        assert {at: n for at, n in self.model.held.items() if n} == {
            at: n for at, n in total.items() if n
        }


@pytest.fixture
def one_server(store: "redis.Redis") -> str:
    return os.environ["REDIS_URL"]


@pytest.fixture
def three_masters() -> Iterator[str]:
    with running_cluster() as cluster:
        yield cluster.url


@pytest.mark.parametrize(("form", "examples"), [("one_server", 40), ("three_masters", 15)])
def test_scripts_equal_the_rules_in_any_order(
    request: pytest.FixtureRequest, form: str, examples: int
) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    Reservations.store = sync_client(request.getfixturevalue(form))
    run_state_machine_as_test(
        Reservations,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )

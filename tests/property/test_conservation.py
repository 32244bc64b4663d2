"""Whatever is done in whatever order: nothing over a limit, nothing lost, nothing below zero.

Read from the real store alone; what was asked and answered is added up beside it. Nothing here
repeats the scripts' arithmetic (`test_reservation_rules` does).
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from routing.contracts.enums import Dimension, LimitScope, WindowKind
from routing.contracts.snapshot import Limit
from routing.decision.limits import amounts_in_order, groups_for
from routing.decision.types import Amounts
from routing.store import keys
from routing.store.calls import ReserveItem, SettleItem, reserve_argument, settle_argument
from routing.store.plans import Plan, as_text
from routing.store.pooled import node_of, sync_client
from routing.store.reservations import group_edges
from routing.store.scripts import RESERVE, SETTLE, run_script
from tests.accounting import fields, key, open_bucket, run_id, tenant
from tests.clustering import running_cluster

BUCKET = 99
META, TAG = keys.bucket_meta(BUCKET), keys.bucket_tag(BUCKET)
LIMITS = {"req": 12, "in": 900, "out": 700, "usd": 5_000}  # of the tenant's month
CONCURRENCY = 4
DIMENSIONS = dict(zip(LIMITS, list(Dimension)[:4], strict=True))
WHO = tenant(
    *(
        Limit(LimitScope.TENANT, DIMENSIONS[name], WindowKind.MONTH, amount)
        for name, amount in LIMITS.items()
    ),
    Limit(LimitScope.TENANT, Dimension.CONCURRENCY, WindowKind.NOW, CONCURRENCY),
)
GROUPS = groups_for(WHO, key(), "alpha-8b", "standard")
ASKS = st.builds(
    Amounts, st.integers(0, 400), st.integers(0, 300), st.integers(0, 2_500), st.just(0)
)
SHARES = st.integers(0, 150)  # percent of what was held that is charged; above 100 is debt


class Books(RuleBasedStateMachine):
    """A tenant's month and its concurrency."""

    store: "redis.Redis"
    live = Bundle("live")
    ended = Bundle("ended")

    def __init__(self) -> None:
        super().__init__()
        self.store.flushall()
        self.run = run_id(self.store, BUCKET)
        open_bucket(self.store, BUCKET)
        self.made = 0
        self.reserved, self.released = Counter[str](), Counter[str]()
        self.charged, self.debt = Counter[str](), Counter[str]()
        self.running = 0

    @rule(target=live, amounts=ASKS, lease_ms=st.sampled_from([-5, 60_000]))
    def reserve(self, amounts: Amounts, lease_ms: int) -> Any:
        self.made += 1
        name, now_ms = f"r{self.made}", int(time.time() * 1000)
        edges = group_edges(GROUPS, "UTC", now_ms)
        plan = Plan("acme", GROUPS, edges, bucket=BUCKET, epoch=1)
        legs = plan.legs(amounts_in_order(amounts))
        item = ReserveItem(
            plan.raw, name, now_ms + 5000, lease_ms, as_text(b"i"), amounts_in_order(amounts),
            as_text(legs),
        )  # fmt: skip
        argument = reserve_argument(self.run, (item,))
        (reply,) = run_script(self.store, RESERVE, META, argument)
        if reply[0] == b"NO":
            return multiple()
        assert reply[0] == b"OK"
        held = dict(zip(LIMITS, amounts_in_order(amounts), strict=False))
        self.reserved.update(held)
        self.running += 1
        assert reply[5] == legs
        return (name, held, legs, lease_ms < 0)

    @rule(target=ended, hold=consumes(live), kind=st.sampled_from("svr"), share=SHARES)
    def end(self, hold: Any, kind: str, share: int) -> Any:
        name, held, legs, _ = hold
        charge = {} if kind == "v" else {n: x * share // 100 for n, x in held.items()}
        if kind != "v":
            charge["req"] = 1
        assert self.settle(name, kind, charge, legs) == b"OK"
        self.close(held, charge)
        return hold

    @rule(target=ended, hold=consumes(live))
    def sweep(self, hold: Any) -> Any:
        name, held, legs, is_expired = hold
        reply = self.settle(name, "w", held, legs)
        assert reply == (b"OK" if is_expired else b"ALIVE")
        if is_expired:
            self.close(held, held)
        else:
            self.end(hold, "v", 0)
        return hold

    @rule(hold=ended, kind=st.sampled_from("svwr"))
    def end_again(self, hold: Any, kind: str) -> None:
        """However often: it has ended."""
        name, held, legs, _ = hold
        assert self.settle(name, kind, held, legs) == (b"ALIVE" if kind == "w" else b"OK")

    def settle(self, name: str, kind: str, charge: dict[str, int], legs: bytes) -> bytes:
        item = SettleItem(TAG, None, name, 1, kind, charge, as_text(b"{}"), as_text(legs))
        (reply,) = run_script(self.store, SETTLE, META, settle_argument(self.run, (item,)))
        return bytes(reply[0])

    def close(self, held: dict[str, int], charge: dict[str, int]) -> None:
        self.released.update(held)
        self.charged.update(charge)
        self.debt.update({n: max(0, charge.get(n, 0) - x) for n, x in held.items()})
        self.running -= 1

    def counters(self, part: str) -> dict[str, int]:
        server = node_of(self.store, META)
        found = [fields(server, name) for name in server.scan_iter(f"{TAG}:1:{part}*", count=1000)]
        return {name: amount for row in found for name, amount in row.items()}

    @invariant()
    def nothing_is_over_its_limit_lost_or_below_zero(self) -> None:
        month = self.counters("w:acme:tenant::mo:")
        for name, limit in LIMITS.items():
            used, held = month.get(name, 0), month.get(f"{name}_h", 0)
            assert used >= 0
            assert held >= 0
            assert used + held <= limit + self.debt[name]
            assert held == self.reserved[name] - self.released[name]
            assert used == self.charged[name]
        running = self.counters("g:acme:tenant:").get("conc_h", 0)
        assert 0 <= running <= CONCURRENCY
        assert running == self.running


@pytest.fixture
def one_server(store: "redis.Redis") -> str:
    return os.environ["REDIS_URL"]


@pytest.fixture
def three_masters() -> Iterator[str]:
    with running_cluster() as cluster:
        yield cluster.url


@pytest.mark.parametrize(("form", "examples"), [("one_server", 25), ("three_masters", 8)])
def test_books_balance_in_any_order(
    request: pytest.FixtureRequest, form: str, examples: int
) -> None:
    Books.store = sync_client(request.getfixturevalue(form))
    run_state_machine_as_test(
        Books,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )

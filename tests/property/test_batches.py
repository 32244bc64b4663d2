"""A batch is its items one by one: outcomes, counters, holds, leases and stream, however it is cut.

One sequence of reserves and settles runs twice against a real store: each item in a call of its
own, then cut into batches. Everything but times and entry ids must be equal.
"""

from dataclasses import dataclass
from itertools import groupby
from typing import Any

import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from routing.contracts.enums import Dimension, LimitScope, WindowKind
from routing.contracts.snapshot import bucket_of
from routing.decision.limits import Edges, Group, amounts_in_order
from routing.decision.types import Amounts
from routing.store import keys
from routing.store.calls import ReserveItem, SettleItem, reserve_argument, settle_argument
from routing.store.packed import read_counter, read_hold
from routing.store.plans import Plan, as_text
from routing.store.scripts import RESERVE, SETTLE, run_script
from tests.accounting import open_bucket, run_id

D, S, W = Dimension, LimitScope, WindowKind
FAR_MS = 4_000_000_000_000
NOW_OPEN: Edges = (0, FAR_MS, FAR_MS + 1)
TURNED: Edges = (0, 1, FAR_MS)  # its first window is over, the next one is open
GONE: Edges = (0, 1, 2)  # both are over
GAUGE: Edges = (0, 0, 0)
TENANTS = ("acme", "beta", "corp")
EXPIRED_MS, LONG_MS = -60_000, 600_000
EPOCH = 3

DAY = Group(S.TENANT, W.DAY, "", ((D.REQUESTS, 6), (D.INPUT_TOKENS, -1), (D.SPEND_NANOUSD, 12)))
NOW = Group(S.TENANT, W.NOW, "", ((D.CONCURRENCY, 4), (D.KV_TOKENS, 15)))
LIMITS = {(DAY, dim): limit for dim, limit in DAY.dims if limit >= 0} | {
    (NOW, dim): limit for dim, limit in NOW.dims
}


def _key_month(name: str) -> Group:
    return Group(S.KEY, W.MONTH, name, ((D.OUTPUT_TOKENS, 9),))


# Plans of one tenant share its counters and differ in their keys'; two know older windows.
PLANS: tuple[tuple[tuple[Group, ...], tuple[Edges, ...]], ...] = (
    ((DAY, NOW), (NOW_OPEN, GAUGE)),
    ((DAY, NOW, _key_month("k1")), (NOW_OPEN, GAUGE, NOW_OPEN)),
    ((DAY, NOW, _key_month("k2")), (NOW_OPEN, GAUGE, TURNED)),
    ((DAY, NOW, _key_month("k1")), (NOW_OPEN, GAUGE, GONE)),
)
PLAN = {
    (tenant, number, epoch): Plan(tenant, *plan, bucket=bucket_of(tenant), epoch=epoch)
    for tenant in TENANTS
    for number, plan in enumerate(PLANS)
    for epoch in (EPOCH - 1, EPOCH)
}
SMALL = st.integers(0, 5)


@dataclass(frozen=True)
class Ask:
    name: str
    tenant: str
    plan: int
    epoch: int
    lease_ms: int
    is_late: bool
    amounts: tuple[int, ...]

    def item(self) -> ReserveItem:
        plan = PLAN[self.tenant, self.plan, self.epoch]
        not_after_ms = 1 if self.is_late else FAR_MS
        legs = as_text(plan.legs(self.amounts))
        info = as_text(b"info of " + self.name.encode())
        return ReserveItem(
            plan.raw, self.name, not_after_ms, self.lease_ms, info, self.amounts, legs
        )


@dataclass(frozen=True)
class End:
    of: Ask
    kind: str
    res_epoch: int
    knows_plan: bool
    charge: tuple[int, ...]

    def item(self) -> SettleItem:
        of, plan = self.of, PLAN[self.of.tenant, self.of.plan, self.of.epoch]
        charge = dict(zip(("req", "in", "out", "usd"), self.charge, strict=True))
        return SettleItem(
            keys.bucket_tag(bucket_of(of.tenant)),
            plan.raw if self.knows_plan else None,
            of.name,
            self.res_epoch,
            self.kind,
            {} if self.kind == "v" else charge,
            as_text(b"event of " + of.name.encode()),
            as_text(plan.legs(of.amounts)),
            of.amounts,
        )


@st.composite
def sequences(draw: Any) -> list[list[Ask] | list[End]]:
    """Reserves and settles of few ids, in batches: repeated, unknown, late and stale ones too."""
    names = st.sampled_from([f"r{number}" for number in range(8)])
    ask = st.builds(
        Ask,
        names,
        st.sampled_from(TENANTS),
        st.sampled_from([0, 0, 0, 1, 1, 2, 2, 3]),
        st.sampled_from([EPOCH] * 7 + [EPOCH - 1]),
        st.sampled_from([LONG_MS, LONG_MS, EXPIRED_MS]),
        st.sampled_from([False] * 7 + [True]),
        st.builds(Amounts, SMALL, SMALL, SMALL, SMALL).map(amounts_in_order),
    )
    asked: list[Ask] = []
    batches: list[list[Ask] | list[End]] = []
    for _ in range(draw(st.integers(1, 5))):
        asks = draw(st.lists(ask, min_size=1, max_size=7))
        asked += asks
        end = st.builds(
            End,
            st.sampled_from(asked),
            st.sampled_from("ssvwr"),
            st.sampled_from([EPOCH, EPOCH, EPOCH - 1, 0]),
            st.booleans(),
            st.tuples(SMALL, SMALL, SMALL, SMALL),
        )
        batches += [asks, draw(st.lists(end, min_size=1, max_size=7))]
    return batches


class Store:
    """A real store with the tenants' buckets open."""

    def __init__(self, client: "redis.Redis") -> None:
        self.client = client
        client.flushall()
        self.run_id = run_id(client, bucket_of(TENANTS[0]))
        self.buckets = sorted({bucket_of(tenant) for tenant in TENANTS})
        for bucket in self.buckets:
            open_bucket(client, bucket, epoch=EPOCH)

    def call(self, batch: list[Ask] | list[End]) -> list[Any]:
        """What each item is told, without times, entry ids and expiries."""
        meta = keys.bucket_meta(self.buckets[0])
        if isinstance(batch[0], Ask):
            argument = reserve_argument(self.run_id, [one.item() for one in batch])  # type: ignore[misc]
            replies: Any = run_script(self.client, RESERVE, meta, argument)
            return [[reply[:2], [_untimed(part) for part in reply[3:]]] for reply in replies]
        argument = settle_argument(self.run_id, [one.item() for one in batch])  # type: ignore[misc]
        replies = run_script(self.client, SETTLE, meta, argument)
        return [reply[:2] for reply in replies]

    def state(self) -> dict[str, Any]:
        """Every key of the buckets, without what is a time."""
        found: dict[str, Any] = {}
        for raw in sorted(self.client.scan_iter("*")):
            name, kind = raw.decode(), self.client.type(raw)
            if kind == b"string" and ":h:" in name:
                found[name] = read_hold(self.client.get(raw))._replace(expiry_ms=0)
            elif kind == b"string":
                fields = read_counter(self.client.get(raw))
                has_expiry = self.client.pexpiretime(raw) > 0
                found[name] = ({n: x for n, x in fields.items() if n != "x"}, has_expiry)
            elif kind == b"hash":
                found[name] = self.client.hgetall(raw)
            elif kind == b"zset":
                found[name] = set(self.client.zrange(raw, 0, -1))
            else:
                found[name] = [entry for _, entry in self.client.xrange(raw)]
        return found


def _untimed(part: Any) -> Any:
    """How long until the far end of a window changes from call to call."""
    return "long" if isinstance(part, int) and part > FAR_MS // 4 else part


def outcome(store: Store, batches: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    return [reply for batch in batches for reply in store.call(batch)], store.state()


@given(batches=sequences())
@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
def check_batches(client: "redis.Redis", batches: list[list[Ask] | list[End]]) -> None:
    """Batches as drawn, each item alone, and the longest batches there are: all the same."""
    alone = [[item] for batch in batches for item in batch]
    wanted = outcome(Store(client), alone)
    assert outcome(Store(client), batches) == wanted
    by_kind = [list(run) for _, run in groupby((one for (one,) in alone), key=type)]
    assert outcome(Store(client), by_kind) == wanted


def test_any_cut_into_batches_is_the_items_one_by_one(store: "redis.Redis") -> None:
    check_batches(store)


def test_a_batch_for_one_remaining_unit_admits_exactly_one(store: "redis.Redis") -> None:
    one = amounts_in_order(Amounts(0, 0, 1, 0))
    most = amounts_in_order(Amounts(0, 0, 11, 0))
    bucket = Store(store)

    def ask(name: str, amounts: tuple[int, ...], plan: int = 0) -> Ask:
        return Ask(name, "acme", plan, EPOCH, LONG_MS, is_late=False, amounts=amounts)

    racers = [ask(f"r{number}", one, plan=number % 2) for number in range(64)]
    replies = bucket.call([ask("first", most), *racers])
    assert [verdict for (verdict, _), *_ in replies] == [b"OK", b"OK"] + [b"NO"] * 63
    counted = [
        value[0]["usd_h"] for name, value in bucket.state().items() if ":w:acme:tenant:" in name
    ]
    assert counted == [12]


def test_items_that_did_not_hold_leave_no_trace_of_their_batch(store: "redis.Redis") -> None:
    bucket = Store(store)
    before = bucket.state()
    too_much = amounts_in_order(Amounts(0, 0, 13, 0))
    refused = [Ask(f"r{n}", "acme", n % 3, EPOCH, LONG_MS, False, too_much) for n in range(9)]
    assert {reply[0][0] for reply in bucket.call(refused)} == {b"NO"}
    assert bucket.state() == before

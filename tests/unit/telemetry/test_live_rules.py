"""Queries, what a person may see, and the bound on a frame."""

import msgspec
import pytest

from routing.contracts.endpoint_state import EndpointState
from routing.contracts.enums import ReplicaHealth
from routing.contracts.live import LivePool, LiveSlice, LiveSlices
from telemetry.live.rules import (
    FRAME_BYTES_MAX,
    ROWS_MAX,
    Access,
    Query,
    advance,
    is_allowed,
    parse_query,
    source_of,
    view_of,
)

OPERATOR = Access(1, "ops", sees_pools=True, tenants=None)
MEMBER = Access(2, "amy", sees_pools=False, tenants={"1": "acme"})


def row(tenant_id: str, tenant: str, model: str = "m", requests: int = 1) -> LiveSlice:
    return LiveSlice(
        f"{tenant}-{model}", tenant_id, tenant, model, "p1", requests, 0, 0, 60, 120, requests,
        0.1, 0.2, None, 1_500_000_000,
    )  # fmt: skip


def state(*rows: LiveSlice, seq: int = 1) -> LiveSlices:
    return LiveSlices("e", seq, 5000, 60, 0, None, list(rows))


@pytest.mark.parametrize(
    ("channel", "text"),
    [
        ("nothing", ""),
        ("slices", "color=red"),
        ("slices", "group=galaxy"),
        ("slices", "limit=0"),
        ("slices", "limit=-1"),
        ("slices", "limit=x"),
        ("slices", "limit=99999"),
        ("pool", "tenant=acme"),
        ("slices", "tenant=" + "x" * 600),
    ],
)
def test_unknown_questions_are_no_queries(channel: str, text: str) -> None:
    assert parse_query(channel, text) is None


def test_a_limit_is_clipped_to_the_contract() -> None:
    assert parse_query("slices", "limit=5000") == Query("slices", limit=ROWS_MAX)


@pytest.mark.parametrize(
    ("query", "operator", "member"),
    [
        (Query("slices"), True, True),
        (Query("slices", group="tenant"), True, True),
        (Query("slices", tenant="acme"), True, True),
        (Query("slices", tenant="globex"), True, False),
        (Query("slices", group="total"), True, False),
        (Query("slices", pool="p1"), True, False),
        (Query("pool"), True, False),
    ],
)
def test_who_may_ask_what(query: Query, operator: bool, member: bool) -> None:
    assert is_allowed(query, OPERATOR) is operator
    assert is_allowed(query, MEMBER) is member
    assert not is_allowed(query, Access(3, "x", sees_pools=False, tenants={}))


def test_members_read_slices_that_are_summed_over_pools() -> None:
    assert source_of(Query("slices"), OPERATOR) == "slices"
    assert source_of(Query("slices"), MEMBER) == "slices:model"


def test_a_view_leaves_out_what_a_person_may_not_see() -> None:
    seen = view_of(state(row("1", "acme"), row("2", "globex")), Query("slices"), MEMBER)
    assert [values[1] for values in seen.rows] == ["acme"]
    assert seen.more == 0


def test_access_that_shrank_is_noticed_and_access_that_grew_is_not_a_loss() -> None:
    both = Access(2, "amy", sees_pools=False, tenants={"1": "acme", "2": "globex"})
    assert both.covers(MEMBER)
    assert not MEMBER.covers(both)
    assert not MEMBER.covers(OPERATOR)
    assert OPERATOR.covers(Access(1, "ops", sees_pools=False, tenants={"1": "acme"}))
    assert not Access(9, "ops", sees_pools=True, tenants=None).covers(OPERATOR)


def test_the_limit_keeps_the_busiest_rows_in_a_stable_order() -> None:
    rows = [row("1", f"t{n:02}", requests=n) for n in range(10)]
    seen = view_of(state(*rows), Query("slices", limit=3), OPERATOR)
    assert [values[1] for values in seen.rows] == ["t07", "t08", "t09"]
    assert seen.more == 7


def test_a_frame_never_exceeds_its_bound() -> None:
    rows = [row("1", "acme", model=f"{n}-" + "ü" * 400) for n in range(ROWS_MAX)]
    seen = view_of(state(*rows), Query("slices", limit=ROWS_MAX), OPERATOR)
    frame, _ = advance(1, None, seen, 0.0)
    assert len(msgspec.json.encode(frame)) <= FRAME_BYTES_MAX
    assert seen.more == ROWS_MAX - len(seen.rows) > 0


def test_only_stale_replicas_have_an_age() -> None:
    def replica(name: str, at_ms: int) -> EndpointState:
        return EndpointState(name, "p1", at_ms, ReplicaHealth.OK, kv_usage_ratio=0.123456)

    live = LivePool("e", 1, 20_000, [replica("a", 19_500), replica("b", 6000), replica("c", 0)])
    seen = view_of(live, Query("pool"), OPERATOR)
    assert seen.ages == {1: 14}
    assert seen.rows[0][4] == 0.1235

"""Reads of the ledger: paged by key, each tenant its own, sums of a period, filters by index."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from routing.contracts.enums import (
    RequestStatus,
    SettleKind,
)
from tenants.ledger import selectors
from tests.ledgering import (
    Party,
    ScriptedGateway,
    cycle,
    make_party,
    rows,
)

pytestmark = pytest.mark.django_db(transaction=True)


def now_range() -> dict[str, datetime]:
    now = timezone.now()
    return {"since": now - timedelta(hours=2), "until": now + timedelta(minutes=1)}


def test_pages_follow_each_other_without_gap_or_repeat(
    gateway: ScriptedGateway, party: Party
) -> None:
    served = [gateway.serve(party).request_id for _ in range(25)]
    cycle()
    seen: list[str] = []
    after = None
    while True:
        page = selectors.usage_page(tenant_ids=frozenset({party.tenant_id}), after=after, limit=10)
        seen += [line.request_id for line in page.rows]
        after = page.next_after
        if after is None:
            break
    assert seen == sorted(served, reverse=True)


def test_tenant_scope_hides_others(gateway: ScriptedGateway, party: Party) -> None:
    other = make_party("other")
    mine, theirs = gateway.serve(party), gateway.serve(other)
    cycle()
    scope = frozenset({party.tenant_id})
    assert [line.tenant for line in page(scope)] == ["acme"]
    assert page(frozenset()) == ()
    assert len(page(None)) == 2
    assert len(page(frozenset({party.tenant_id, other.tenant_id}))) == 2
    assert selectors.usage_line(tenant_ids=scope, request_id=theirs.request_id) is None
    assert selectors.usage_line(tenant_ids=scope, request_id=mine.request_id) is not None
    assert selectors.usage_line(tenant_ids=None, request_id="nonsense") is None
    assert selectors.ledger_totals(tenant_ids=scope, **now_range()).requests == 1
    assert selectors.ledger_totals(tenant_ids=frozenset(), **now_range()).requests == 0
    assert selectors.ledger_totals(tenant_ids=None, **now_range()).requests == 2


def page(scope: frozenset[int] | None, **filters: object) -> tuple[selectors.UsageLine, ...]:
    return selectors.usage_page(tenant_ids=scope, after=None, limit=50, **filters).rows  # type: ignore[arg-type]


def test_filters_narrow_and_voids_are_shown_on_request(
    gateway: ScriptedGateway, party: Party
) -> None:
    gateway.serve(party, model="a")
    gateway.serve(party, model="b", status=RequestStatus.FAILED)
    gateway.settle(gateway.reserve(party), SettleKind.VOID)
    cycle()
    scope = frozenset({party.tenant_id})
    assert [line.model for line in page(scope, model="a")] == ["a"]
    assert [line.model for line in page(scope, status="failed")] == ["b"]
    assert len(page(scope, key_id=party.key_id)) == 2
    assert len(page(scope, project_id=party.project_id)) == 2
    assert page(scope, project_id=party.project_id + 1) == ()
    assert len(page(scope, with_void=True)) == 3
    assert page(scope, until=timezone.now().date() - timedelta(days=1)) == ()


def test_sums_of_a_period_come_by_tenant_model_and_key(
    gateway: ScriptedGateway, party: Party
) -> None:
    other = make_party("other")
    gateway.serve(party, model="a", spend_nanousd=5)
    gateway.serve(party, model="b", spend_nanousd=7, status=RequestStatus.FAILED)
    gateway.serve(other, model="a", spend_nanousd=100)
    cycle()
    by = {"tenant_ids": None, **now_range()}
    tenants = selectors.spend_by_tenant(**by)  # type: ignore[arg-type]
    assert [(s.label, s.totals.spend_nanousd) for s in tenants] == [("other", 100), ("acme", 12)]
    models = selectors.spend_by_model(**by)  # type: ignore[arg-type]
    assert [(s.subject, s.totals.spend_nanousd, s.totals.failed) for s in models] == [
        ("a", 105, 0),
        ("b", 7, 1),
    ]
    by_key = selectors.spend_by_key(**by)  # type: ignore[arg-type]
    assert {s.subject for s in by_key} == {str(party.key_id), str(other.key_id)}
    long_ago = {
        "since": datetime(2020, 1, 1, tzinfo=UTC),
        "until": datetime(2020, 2, 1, tzinfo=UTC),
    }
    assert selectors.spend_by_tenant(tenant_ids=None, **long_ago) == ()


def test_page_costs_two_queries_at_any_length(gateway: ScriptedGateway, party: Party) -> None:
    gateway.serve(party)
    cycle()
    scope = frozenset({party.tenant_id})
    with CaptureQueriesContext(connection) as one:
        page(scope)
    for _ in range(49):
        gateway.serve(party)
    cycle()
    with CaptureQueriesContext(connection) as fifty:
        assert len(page(scope)) == 50
    assert len(one) == len(fifty) == 2


@pytest.mark.parametrize(
    ("filters", "index"),
    [
        ({}, "usage_by_tenant"),
        ({"key_id": 1}, "usage_by_key"),
        ({"project_id": 1}, "usage_by_project"),
        ({"model": "m1"}, "usage_by_model"),
        ({"status": "failed"}, "usage_by_failure"),
    ],
)
def test_each_filter_reads_its_index(party: Party, filters: dict[str, object], index: str) -> None:
    """On a filled table the plan walks the named index in order: no sort of the whole."""
    other = make_party("other")
    _fill(party, other)
    own = {"key_id": party.key_id, "project_id": party.project_id}
    asked = {name: own.get(name, value) for name, value in filters.items()}
    scope = None if filters else frozenset({party.tenant_id})
    with CaptureQueriesContext(connection) as captured:
        page(scope, with_void=True, **asked)
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN " + captured[0]["sql"])
        plan = "\n".join(row[0] for row in cursor.fetchall())
    # a partition's index is named after it: find the parent by the indexed columns
    children = {
        row[0]
        for row in rows(
            "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
            " WHERE i.inhparent = %s::regclass",
            index,
        )
    }
    assert any(child in plan for child in children), plan
    # Another day's partition is empty where tests made it: to read nothing is no scan.
    filled = f"tenants_usage_{timezone.now():%Y%m%d}"
    assert f"Seq Scan on {filled}" not in plan


def _fill(party: Party, other: Party) -> None:
    """20,000 rows by SQL: one in fifty is the party's, one in a hundred failed."""
    today = timezone.now().date()
    with connection.cursor() as cursor:
        cursor.execute("SELECT headrace_ensure_partition('tenants_usage', %s)", [today])
        cursor.execute(
            "INSERT INTO tenants_usage SELECT %s, gen_random_uuid(), 's',"
            " CASE WHEN n %% 50 = 0 THEN %s ELSE %s END,"
            " CASE WHEN n %% 50 = 0 THEN %s ELSE %s END,"
            " CASE WHEN n %% 50 = 0 THEN %s ELSE %s END, 'm', 'm' || n %% 40, '', '', '',"
            " 'standard', CASE WHEN n %% 100 = 1 THEN 'failed' ELSE 'ok' END, 'reported', false,"
            " false, 200, '', now(), NULL, now(), 1, 0, 1, 0, 1, 0, 0, 0, 1, '', 1, '', '', '', '',"
            " '', '{}', '[]' FROM generate_series(1, 20000) AS n",
            [
                today,
                party.tenant_id,
                other.tenant_id,
                party.key_id,
                other.key_id,
                party.project_id,
                other.project_id,
            ],
        )
        cursor.execute("ANALYZE tenants_usage")

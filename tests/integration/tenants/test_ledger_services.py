"""Corrections by people, reads of the ledger, and the end of what is kept."""

from datetime import UTC, date, datetime, timedelta
from uuid import uuid4

import pytest
import redis
from django.conf import settings
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from console.audit.rules import Actor
from console.demo.seed import seed_demo
from console.errors import Conflict, InvalidInput, NotFound
from console.models import AuditEvent
from routing.contracts.enums import (
    Dimension,
    LimitScope,
    RequestStatus,
    SettleKind,
    WindowKind,
)
from routing.contracts.ids import day_of, uuid7
from routing.contracts.snapshot import Limit, TenantEntry
from routing.policies.services import push_snapshot
from routing.store import keys
from tenants.ledger import selectors
from tenants.ledger.retention import drop_old
from tenants.ledger.services import adjust, seed_windows
from tenants.models import DamagedEntry, UsageAdjustment, UsageRollup, WindowUsage
from tenants.quotas.selectors import positions
from tenants.quotas.services import set_limit
from tests.accounting import fields, set_fields
from tests.ledgering import (
    Party,
    ScriptedGateway,
    Ticket,
    assert_exact,
    make_party,
    make_writer,
    rows,
)
from tests.reconciling import reconcile

pytestmark = pytest.mark.django_db(transaction=True)
OPERATOR = Actor(user_id=None, label="ada")


@pytest.fixture
def gateway(store: redis.Redis) -> ScriptedGateway:
    cycle()
    return ScriptedGateway(store)


@pytest.fixture
def party() -> Party:
    return make_party()


def cycle() -> None:
    writer = make_writer()
    writer.cycle()
    writer.close()


def take_back(ticket: Ticket, amount: int, reason: str = "wrong price") -> int:
    return adjust(
        request_id=ticket.request_id,
        day=day_of(ticket.request_id),
        reason=reason,
        spend_nanousd=amount,
        note="a typo in the price",
        actor=OPERATOR,
    )


def now_range() -> dict[str, datetime]:
    now = timezone.now()
    return {"since": now - timedelta(hours=2), "until": now + timedelta(minutes=1)}


def test_adjustment_reaches_row_rollups_counter_and_audit(
    gateway: ScriptedGateway, party: Party
) -> None:
    ticket = gateway.serve(party, spend_nanousd=9_000_000)
    cycle()
    take_back(ticket, -8_000_000)
    cycle()
    assert rows("SELECT spend_nanousd FROM tenants_usage") == [(9_000_000,)]
    assert assert_exact(gateway, party)["usd"] == 1_000_000
    event = AuditEvent.objects.get(act="usage_adjusted")
    assert (event.actor_label, event.object_id) == ("ada", ticket.request_id)
    assert event.tenant_id == party.tenant_id
    line = selectors.usage_line(tenant_ids=None, request_id=ticket.request_id)
    assert line is not None
    assert (line.spend_nanousd, line.net_nanousd) == (9_000_000, 1_000_000)


def test_adjustment_survives_a_lost_store(
    gateway: ScriptedGateway, party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tenants.ledger.writer import rebuild

    monkeypatch.setattr(rebuild, "REGISTER_WAIT_MS", 0)
    ticket = gateway.serve(party)
    cycle()
    gateway.client.flushall()
    take_back(ticket, -100)  # written while nobody has noticed
    cycle()
    assert assert_exact(gateway, party)["usd"] == 200


def test_adjustment_is_refused_twice_for_one_reason(gateway: ScriptedGateway, party: Party) -> None:
    ticket = gateway.serve(party)
    cycle()
    take_back(ticket, -100)
    with pytest.raises(Conflict):
        take_back(ticket, -100)
    take_back(ticket, -100, reason="goodwill")
    cycle()
    assert assert_exact(gateway, party)["usd"] == 100


def test_request_never_costs_less_than_nothing(gateway: ScriptedGateway, party: Party) -> None:
    ticket = gateway.serve(party)
    cycle()
    take_back(ticket, -200)
    with pytest.raises(InvalidInput) as refused:
        take_back(ticket, -101, reason="more")
    assert refused.value.field == "spend_nanousd"
    assert refused.value.hint == "At most 0.0000001 USD can be taken back."
    assert UsageAdjustment.objects.count() == 1


@pytest.mark.parametrize("reason", ["", "late", "x" * 65])
def test_reason_must_be_the_operators_own(
    gateway: ScriptedGateway, party: Party, reason: str
) -> None:
    ticket = gateway.serve(party)
    cycle()
    with pytest.raises(InvalidInput):
        take_back(ticket, -1, reason=reason)
    assert not AuditEvent.objects.exists()


def test_unknown_request_is_not_found(gateway: ScriptedGateway, party: Party) -> None:
    for request_id in (str(uuid4()), "nonsense", "x" * 36):
        with pytest.raises(NotFound):
            adjust(
                request_id=request_id,
                day=date(2026, 1, 1),
                reason="r",
                spend_nanousd=1,
                note="",
                actor=OPERATOR,
            )


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


def test_adjustments_are_paged_newest_first(gateway: ScriptedGateway, party: Party) -> None:
    tickets = [gateway.serve(party) for _ in range(3)]
    cycle()
    ids = [take_back(ticket, -1) for ticket in tickets]
    scope = frozenset({party.tenant_id})
    first = selectors.adjustments_page(tenant_ids=scope, after=None, limit=2)
    rest = selectors.adjustments_page(tenant_ids=scope, after=first.next_after, limit=2)
    assert [line.id for line in (*first.rows, *rest.rows)] == ids[::-1]
    assert selectors.adjustments_page(tenant_ids=frozenset(), after=None, limit=2).rows == ()
    one = selectors.adjustments_page(
        tenant_ids=scope, after=None, limit=9, request_id=tickets[0].request_id
    )
    assert [line.id for line in one.rows] == ids[:1]


def test_what_is_past_its_time_goes_and_the_rest_stays(
    gateway: ScriptedGateway, party: Party
) -> None:
    today = timezone.now().date()
    kept, old = today - timedelta(days=7), today - timedelta(days=8)
    for day in (kept, old):
        rows("SELECT headrace_ensure_partition('tenants_shape', %s)::text", day)
    gateway.serve(party)
    cycle()
    rollup = UsageRollup.objects.filter(grain="m").get()
    rollup.pk, rollup.start_at = None, rollup.start_at - timedelta(days=60)
    rollup.save()
    window = WindowUsage.objects.get()
    window.pk, window.suffix = None, "w:old"
    window.window_end_at = timezone.now() - timedelta(days=4)
    window.save()
    DamagedEntry.objects.create(stream="s", entry_id="1-1", reason="r", raw=b"")
    DamagedEntry.objects.update(created_at=timezone.now() - timedelta(days=100))
    gone = drop_old()
    assert gone["shape_partitions"] >= 1
    assert (gone["windows"], gone["minutes"], gone["damaged"]) == (1, 1, 1)
    tables = {
        row[0] for row in rows("SELECT relname FROM pg_class WHERE relname LIKE 'tenants_s%%'")
    }
    assert f"tenants_shape_{kept:%Y%m%d}" in tables
    assert f"tenants_shape_{old:%Y%m%d}" not in tables
    assert set(drop_old().values()) == {0}
    assert WindowUsage.objects.count() == UsageRollup.objects.filter(grain="m").count() == 1


def test_reconcile_is_clean_at_quiet_and_names_what_differs(
    gateway: ScriptedGateway, party: Party
) -> None:
    ticket = gateway.serve(party)
    cycle()
    assert check(party).is_clean
    tag = keys.bucket_tag(party.bucket)
    set_fields(gateway.client, f"{tag}:1:{ticket.legs[0][1]}", usd=305)
    found = check(party)
    assert [(d.dimension, d.counter, d.ledger) for d in found.differences] == [("usd", 305, 300)]
    set_fields(gateway.client, f"{tag}:1:{ticket.legs[0][1]}", usd=300)
    live = gateway.reserve(party)
    found = check(party)
    assert ("conc", 1) in {(name, amount) for _, name, amount in found.held}
    gateway.client.zrem(keys.bucket_leases(party.bucket), live.request_id)
    assert check(party).holds_without_lease == (live.request_id,)
    gateway.client.delete(keys.hold(party.bucket, live.request_id))
    gateway.client.zadd(keys.bucket_leases(party.bucket), {uuid7(1, 1): 1})
    assert check(party).leases_without_hold == (uuid7(1, 1),)


def check(party: Party):  # type: ignore[no-untyped-def]
    return reconcile(tenant_id=party.tenant_id, store_url=settings.REDIS_URL)


def test_new_limit_starts_with_what_was_used_before_it(
    gateway: ScriptedGateway, party: Party
) -> None:
    other_key = make_party("other")
    for spend in (100, 200):
        gateway.serve(party, spend_nanousd=spend)
    gateway.serve(other_key, spend_nanousd=7_000)
    cycle()
    tenant = _tenant(
        party,
        Limit(LimitScope.TENANT, Dimension.SPEND_NANOUSD, WindowKind.MONTH, 1_000),
        Limit(LimitScope.KEY, Dimension.REQUESTS, WindowKind.DAY, 5, str(party.key_id)),
        Limit(LimitScope.TENANT_MODEL, Dimension.OUTPUT_TOKENS, WindowKind.WEEK, 5, "no-such"),
        Limit(LimitScope.TENANT, Dimension.SPEND_NANOUSD, WindowKind.DAY, 1_000),
        Limit(LimitScope.TENANT, Dimension.REQUESTS, WindowKind.MINUTE, 9),
    )
    assert seed_windows(tenant=tenant, now_ms=gateway.now_ms()) == 2
    assert seed_windows(tenant=tenant, now_ms=gateway.now_ms()) == 0
    cycle()
    tag = keys.bucket_tag(party.bucket)
    found = {
        name: fields(gateway.client, name)
        for name in gateway.client.scan_iter(f"{tag}:1:w:{party.tenant_id}:*")
        if b":mo:" in name or b":key:" in name
    }
    assert sorted(one for counters in found.values() for one in counters.items() if one[1]) == [
        ("req", 2),
        ("usd", 300),
    ]
    assert check(party).is_clean


def _tenant(party: Party, *limits: Limit) -> TenantEntry:
    return TenantEntry(
        id=str(party.tenant_id),
        slug="acme",
        bucket=party.bucket,
        timezone="UTC",
        cache_salt="s",
        models=("*",),
        limits=limits,
    )


def test_a_limit_set_late_in_its_window_counts_what_was_spent_before(
    gateway: ScriptedGateway, party: Party
) -> None:
    seed_demo({})
    for spend in (100, 200):
        gateway.serve(party, spend_nanousd=spend)
    cycle()
    set_limit(
        tenant_id=party.tenant_id,
        scope=LimitScope.TENANT,
        dimension=Dimension.SPEND_NANOUSD,
        window=WindowKind.MONTH,
        amount=1_000,
        actor=Actor(user_id=None, label="test"),
    )
    assert push_snapshot()
    cycle()
    (monthly,) = [p for p in positions(party.tenant_id) if p.limit.window == WindowKind.MONTH]
    assert (monthly.used, monthly.remaining) == (300, 700)

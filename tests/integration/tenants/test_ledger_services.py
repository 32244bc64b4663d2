"""The end of what is kept, counters against the ledger, and what a new limit starts with."""

from datetime import timedelta

import pytest
from django.conf import settings
from django.utils import timezone

from console.audit.rules import Actor
from console.demo.seed import seed_demo
from routing.contracts.enums import (
    Dimension,
    LimitScope,
    WindowKind,
)
from routing.contracts.ids import uuid7
from routing.contracts.snapshot import Limit, TenantEntry
from routing.policies.services import push_snapshot
from routing.store import keys
from tenants.ledger.retention import drop_old
from tenants.ledger.services import seed_windows
from tenants.models import DamagedEntry, UsageRollup, WindowUsage
from tenants.quotas.selectors import positions
from tenants.quotas.services import set_limit
from tests.accounting import fields, set_fields
from tests.ledgering import (
    Party,
    ScriptedGateway,
    cycle,
    make_party,
    rows,
)
from tests.reconciling import reconcile

pytestmark = pytest.mark.django_db(transaction=True)


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

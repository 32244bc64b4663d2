"""Limits whose window begins later than the calendar's: set, counted, seeded, rebuilt, shown."""

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
import redis
from django.test import Client

from console.errors import InvalidInput
from console.models import AuditEvent
from routing.contracts.enums import Dimension, LimitScope, SettleKind, WindowKind, WorkClass
from routing.contracts.snapshot import KeyEntry, Limit, TenantEntry
from routing.decision.limits import groups_for
from routing.store import keys
from tenants.directory.selectors import tenants_for_snapshot
from tenants.directory.services import create_tenant
from tenants.ledger.services import seed_windows
from tenants.ledger.writer import rebuild as rebuilding
from tenants.models import WindowUsage
from tenants.quotas import selectors
from tenants.quotas.selectors import limits, positions
from tenants.quotas.services import set_limit
from tests import factories
from tests.accounting import fields, set_fields
from tests.factories import ACTOR, World
from tests.ledgering import (
    Party,
    ScriptedGateway,
    assert_exact,
    cycle,
    event_of,
    is_open,
    running_writer,
    until,
)

pytestmark = pytest.mark.django_db(transaction=True)

ZONE = "Europe/Berlin"
MINUTE_MS = 60_000
DAY_MIN = 1_440
SPEND_MONTH = {"scope": "tenant", "dimension": "usd", "window": "mo"}


@pytest.fixture
def world(store: redis.Redis) -> World:
    made = World()
    made.tenants["acme"] = create_tenant(slug="acme", name="Acme", timezone=ZONE, actor=ACTOR)
    factories.make_people(made)
    selectors._store.cache_clear()
    return made


def put(world: World, amount: int | None = 5, **asked: object) -> None:
    fields = {**SPEND_MONTH, **asked}
    set_limit(tenant_id=world.tenants["acme"], amount=amount, actor=ACTOR, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("window", "day", "time", "minutes"),
    [
        ("mo", 15, "10:00", 14 * DAY_MIN + 600),
        ("mo", 31, None, 30 * DAY_MIN),
        ("mo", None, "23:59", 1_439),
        ("w", 3, None, 2 * DAY_MIN),
        ("w", 7, "06:30", 6 * DAY_MIN + 390),
        ("d", None, "06:00", 360),
        ("mo", 1, "00:00", 0),
        ("d", None, None, 0),
    ],
)
def test_an_anchor_reads_back_and_reaches_the_snapshot(world, window, day, time, minutes):
    put(world, window=window, anchor_day=day, anchor_time=time)
    (row,) = limits(world.tenants["acme"])
    assert row.anchor_min == minutes
    if minutes:
        assert row.anchor_time == (time or "00:00")
        assert row.anchor_day == (None if window == "d" else day or 1)
    else:
        assert (row.anchor_day, row.anchor_time) == (None, None)
    (tenant,) = tenants_for_snapshot()
    assert [one.anchor_min for one in tenant.limits] == [minutes]
    put(world, None, window=window)
    assert limits(world.tenants["acme"]) == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"anchor_day": 32}, "anchor_day"),
        ({"anchor_day": 0}, "anchor_day"),
        ({"anchor_day": True}, "anchor_day"),
        ({"window": "w", "anchor_day": 8}, "anchor_day"),
        ({"window": "d", "anchor_day": 1}, "anchor_day"),
        ({"window": "m", "anchor_day": 1}, "anchor_day"),
        ({"window": "m", "anchor_time": "10:00"}, "anchor_time"),
        ({"dimension": "conc", "window": "g", "anchor_time": "10:00"}, "anchor_time"),
        ({"anchor_time": "24:00"}, "anchor_time"),
        ({"anchor_time": "10:60"}, "anchor_time"),
        ({"anchor_time": "9:00"}, "anchor_time"),
        ({"anchor_time": "+1:00"}, "anchor_time"),
        ({"anchor_day": 15, "anchor_time": "noon!"}, "anchor_time"),
    ],
)
def test_what_is_no_anchor_is_refused_with_its_field(world, change, field):
    with pytest.raises(InvalidInput) as refused:
        put(world, **change)
    assert refused.value.field == field
    assert limits(world.tenants["acme"]) == []


def test_moving_the_anchor_keeps_one_limit_and_is_audited(world):
    put(world, 5)
    put(world, 5, anchor_day=15, anchor_time="10:00")
    put(world, 5, anchor_day=15, anchor_time="10:00")
    (row,) = limits(world.tenants["acme"])
    assert (row.amount, row.anchor_day, row.anchor_time) == (5, 15, "10:00")
    first, second = AuditEvent.objects.filter(act="limit.set").order_by("pk")
    assert first.after["anchor"] is None
    assert (second.before["anchor"], second.after["anchor"]) == (None, {"day": 15, "time": "10:00"})


def test_the_form_sets_an_anchor_and_the_pages_say_when_it_resets(world, store):
    client = Client()
    client.force_login(world.people["ana"])
    asked = {**SPEND_MONTH, "amount": "5.00", "anchor_day": "31", "anchor_time": "10:00"}
    assert client.post("/tenants/acme/limits/", asked).status_code == 302
    (row,) = limits(world.tenants["acme"])
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    _, end = selectors.window_of(row, ZONE, now_ms)
    is_last_hour = end.timestamp() * 1000 - now_ms < 3_660_000
    local = end.astimezone(ZoneInfo(ZONE))
    assert (local + timedelta(days=1)).day == 1  # day 31, or a month's last
    assert (local.hour, local.minute) == (10, 0)
    for path in ("/tenants/acme/limits/", "/tenants/acme/"):
        html = " ".join(re.sub(r"<[^>]+>", " ", client.get(path).text).split())
        assert "Monthly spend from day 31, 10:00" in html, path
        is_dated = f"{local:%d} {local:%b}" in html or f"{local:%Y-%m-%d}" in html
        # In a window's last hour the tenant's page counts the minutes and names no date.
        assert is_dated or (is_last_hour and "resets in" in html), path
    wrong = client.post("/tenants/acme/limits/", {**asked, "anchor_time": "25:00"})
    assert wrong.status_code == 422
    assert "No time of day" in wrong.text


def tenant_of(party: Party, *bounds: Limit) -> TenantEntry:
    return TenantEntry(
        id=str(party.tenant_id),
        slug="acme",
        bucket=party.bucket,
        timezone=party.timezone,
        cache_salt="s",
        models=("*",),
        limits=bounds,
    )


def anchored(anchor_min: int, amount: int = 10_000) -> Limit:
    return Limit(
        LimitScope.TENANT,
        Dimension.SPEND_NANOUSD,
        WindowKind.DAY,
        amount,
        anchor_min=anchor_min,
    )


def counters(gateway: ScriptedGateway, party: Party, window: str) -> list[int]:
    """Spend of every counter of the window in the present epoch."""
    base = keys.counter_base(str(party.tenant_id), "tenant", "", window)
    pattern = f"{keys.bucket_tag(party.bucket)}:{gateway.epoch(party)}:w:{base}:*"
    names = gateway.client.scan_iter(pattern)
    return [fields(gateway.client, name).get("usd", 0) for name in names]


def test_a_new_anchored_limit_starts_with_what_its_own_window_used(
    store: redis.Redis, party: Party
) -> None:
    cycle()
    gateway = ScriptedGateway(store)
    now_ms = gateway.now_ms()
    early = gateway.reserve(party)
    started_at_ms = now_ms - 120 * MINUTE_MS
    event = event_of(early, started_at_ms=started_at_ms, ended_at_ms=now_ms, spend_nanousd=700)
    gateway.send(early, SettleKind.SETTLED, event)
    gateway.serve(party, spend_nanousd=300)
    cycle()
    now_min = now_ms // MINUTE_MS
    an_hour_ago, in_an_hour = (now_min - 60) % DAY_MIN or 1, (now_min + 60) % DAY_MIN or 1
    for anchor_min, used in ((an_hour_ago, 300), (in_an_hour, 1_000)):
        tenant = tenant_of(party, anchored(anchor_min))
        assert seed_windows(tenant=tenant, now_ms=now_ms) == 1
        assert seed_windows(tenant=tenant, now_ms=now_ms) == 0
        cycle()
        assert counters(gateway, party, f"d@{anchor_min}") == [used]
    assert gateway.day_counters(party)["usd"] == 1_000  # the calendar's own is as it was


def test_anchored_counters_are_charged_and_rebuilt_from_the_ledger(
    store: redis.Redis, party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebuilding, "REGISTER_WAIT_MS", 30)
    cycle()
    half_a_day_off = ScriptedGateway(store).now_ms() // MINUTE_MS % DAY_MIN + 720
    anchor_min = half_a_day_off % DAY_MIN or 1
    tenant = tenant_of(party, anchored(anchor_min, amount=2_200))
    key = KeyEntry(str(party.key_id), tenant.id, "p", "hr", ("*",))
    gateway = ScriptedGateway(store, groups=groups_for(tenant, key, "alpha-8b", WorkClass.STANDARD))
    gateway.serve(party, spend_nanousd=300)
    gateway.serve(party, spend_nanousd=1_200)
    assert gateway.ask(party, "01-refused", (1, 9, 9, 1_000, 1, 0))[0] == b"NO"
    cycle()
    sums = dict(WindowUsage.objects.values_list("suffix", "spend_nanousd"))
    assert len(sums) == 2
    assert set(sums.values()) == {1_500}
    gateway.client.flushall()
    with running_writer():
        until(lambda: is_open(gateway.client, party, 2), what="epoch 2")
    assert counters(gateway, party, f"d@{anchor_min}") == counters(gateway, party, "d") == [1_500]
    assert gateway.ask(party, "01-refused", (1, 9, 9, 1_000, 1, 0))[0] == b"NO"
    assert_exact(gateway, party)


def test_a_position_is_that_of_the_anchored_counter(world, store):
    tenant_id = world.tenants["acme"]
    put(world, 1_000, anchor_day=15, anchor_time="10:00")
    cycle()
    (row,) = positions(tenant_id)
    assert row.window_start is not None
    local = row.window_start.astimezone(ZoneInfo(ZONE))
    assert (local.day, local.hour, local.minute) == (15, 10, 0)
    entry = tenants_for_snapshot()[0]
    epoch = store.hget(keys.bucket_meta(entry.bucket), "epoch").decode()
    start_ms = int(row.window_start.timestamp() * 1000)
    for window, used in (("mo", 900), (f"mo@{14 * DAY_MIN + 600}", 250)):
        base = keys.counter_base(str(tenant_id), "tenant", "", window)
        name = f"{keys.bucket_tag(entry.bucket)}:{epoch}:w:{base}:{start_ms}"
        set_fields(store, name, usd=used)
    (row,) = positions(tenant_id)
    assert (row.used, row.remaining) == (250, 750)

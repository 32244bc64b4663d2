"""Limits: stored as set, and where they stand. Prices: added, never edited, slips asked about."""

from datetime import timedelta

import pytest
from django.db import DatabaseError
from django.test import Client
from django.utils import timezone

from console.errors import Conflict, InvalidInput, NotFound
from routing.contracts.enums import Dimension, LimitScope, WindowKind
from routing.contracts.snapshot import bucket_of
from routing.decision.limits import window_edges
from routing.store import keys as store_keys
from tenants.directory.selectors import tenants_for_snapshot
from tenants.directory.services import create_tenant
from tenants.keys.services import issue_key
from tenants.models import PriceRow
from tenants.prices.selectors import price_in_force, prices_for_snapshot
from tenants.prices.services import add_price
from tenants.quotas import selectors
from tenants.quotas.rules import GAUGES
from tenants.quotas.selectors import limits, positions
from tenants.quotas.services import set_limit
from tests import factories
from tests.accounting import set_fields
from tests.factories import ACTOR, USD, World

pytestmark = pytest.mark.django_db


@pytest.fixture
def world(store) -> World:
    made = World()
    made.tenants["acme"] = create_tenant(
        slug="acme", name="Acme", timezone="Europe/Berlin", actor=ACTOR
    )
    made.keys["acme"] = issue_key(tenant_id=made.tenants["acme"], name="bot", actor=ACTOR)
    factories.make_fleet(made, {"p-a": 1})
    return made


def subjects(world: World) -> dict[LimitScope, dict[str, object]]:
    return {
        LimitScope.TENANT: {},
        LimitScope.KEY: {"key_id": world.keys["acme"].id},
        LimitScope.TENANT_MODEL: {"model": "llama-8b"},
        LimitScope.TENANT_CLASS: {"work_class": "batch"},
    }


def every_limit(world: World):
    """Each limit that the schema offers."""
    for scope, subject in subjects(world).items():
        for dimension in Dimension:
            for window in WindowKind:
                if (dimension in GAUGES) == (window is WindowKind.NOW):
                    yield {"scope": scope, "dimension": dimension, "window": window, **subject}


def set_one(world: World, amount: int | None = 5, **asked) -> None:
    set_limit(tenant_id=world.tenants["acme"], amount=amount, actor=ACTOR, **asked)


def open_bucket(store, tenant_id: int, epoch: int = 3) -> str:
    bucket = bucket_of(str(tenant_id))
    run_id = store_keys.run_name(store.info("server")["run_id"])
    meta = {"epoch": epoch, "state": "ready", "run_id": run_id, "seq": 0, "pos": "0-0"}
    store.hset(store_keys.bucket_meta(bucket), mapping=meta)
    return f"{store_keys.bucket_tag(bucket)}:{epoch}:"


def test_each_limit_reads_back_unchanged_and_reaches_the_snapshot(world):
    """R12."""
    asked = list(every_limit(world))
    for number, one in enumerate(asked):
        set_one(world, number + 1, **one)
    found = {
        (row.scope, row.dimension, row.window, row.key_id, row.model, row.work_class): row.amount
        for row in limits(world.tenants["acme"])
    }
    assert found == {
        (
            one["scope"],
            one["dimension"],
            one["window"],
            one.get("key_id"),
            one.get("model"),
            one.get("work_class", ""),
        ): number + 1
        for number, one in enumerate(asked)
    }
    (tenant,) = tenants_for_snapshot()
    assert sorted(limit.amount for limit in tenant.limits) == list(range(1, len(asked) + 1))
    for one in asked:
        set_one(world, None, **one)
    assert limits(world.tenants["acme"]) == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"scope": "team"}, "scope"),
        ({"dimension": "tpm"}, "dimension"),
        ({"window": "hour"}, "window"),
        ({"dimension": "conc"}, "window"),
        ({"window": "g"}, "window"),
        ({"amount": -1}, "amount"),
        ({"amount": 9 * 10**15 + 1}, "amount"),
        ({"amount": True}, "amount"),
        ({"model": "llama-8b"}, "model"),
        ({"scope": "key"}, "key_id"),
        ({"scope": "key", "key_id": 10**9}, "key_id"),
        ({"scope": "tenant_model", "model": "nope"}, "model"),
        ({"scope": "tenant_class", "work_class": "vip"}, "work_class"),
    ],
)
def test_what_is_no_limit_is_refused_with_its_field(world, change, field):
    asked = {"scope": "tenant", "dimension": "req", "window": "m", "amount": 5, **change}
    with pytest.raises(InvalidInput) as refused:
        set_one(world, **asked)
    assert refused.value.field == field
    assert limits(world.tenants["acme"]) == []


def test_another_tenants_key_is_no_subject(world):
    factories.make_tenant(world, "globex")
    with pytest.raises(InvalidInput):
        set_one(world, scope="key", dimension="req", window="m", key_id=world.keys["globex"].id)


def suffix_of(row, tenant_id: int, now_ms: int) -> str:
    """The counter that gateways admit this limit by."""
    subject = str(row.key_id or "") or row.model or row.work_class
    base = store_keys.counter_base(str(tenant_id), row.scope, subject, row.window)
    if row.window is WindowKind.NOW:
        return f"g:{base}"
    return f"w:{base}:{window_edges(row.window, 'Europe/Berlin', now_ms)[0]}"


def test_positions_are_what_the_admitting_counters_say(world, store):
    tenant_id = world.tenants["acme"]
    pre = open_bucket(store, tenant_id)
    for one in every_limit(world):
        set_one(world, 1000, **one)
    expected = {}
    # Written for this minute and the next: the check may cross into it.
    now_ms = store.time()[0] * 1000
    for number, row in enumerate(limits(tenant_id)):
        dim = row.dimension.value
        for at_ms in (now_ms, now_ms + 60_000):
            taken = {dim: number, f"{dim}_h": 2 * number}
            set_fields(store, pre + suffix_of(row, tenant_id, at_ms), **taken)
        expected[row.id] = (number, 2 * number, 1000 - 3 * number)
    found = positions(tenant_id)
    assert {row.limit.id: (row.used, row.held, row.remaining) for row in found} == expected
    for row in found:
        assert (row.window_start is None) == (row.limit.window is WindowKind.NOW)


def test_changing_a_limit_keeps_what_was_used(world, store):
    """R20: 800 of 1000 used; at 500 nothing is left, at 1500 700 are."""
    tenant_id = world.tenants["acme"]
    pre = open_bucket(store, tenant_id)
    one = {"scope": "tenant", "dimension": "usd", "window": "mo"}
    set_one(world, 1000, **one)
    (row,) = limits(tenant_id)
    set_fields(store, pre + suffix_of(row, tenant_id, store.time()[0] * 1000), usd=800)
    for amount, left in ((1000, 200), (500, 0), (1500, 700)):
        set_one(world, amount, **one)
        (position,) = positions(tenant_id)
        assert (position.used, position.remaining) == (800, left)


@pytest.mark.parametrize("lost", ["no meta", "rebuilding", "another run"])
def test_a_store_that_lost_its_counters_knows_no_position(world, store, lost):
    set_one(world, scope="tenant", dimension="usd", window="d")
    open_bucket(store, world.tenants["acme"])
    (known,) = positions(world.tenants["acme"])
    assert (known.used, known.held, known.remaining, known.is_known) == (0, 0, 5, True)
    meta = store_keys.bucket_meta(bucket_of(str(world.tenants["acme"])))
    if lost == "no meta":
        store.delete(meta)
    elif lost == "rebuilding":
        store.hset(meta, "state", "rebuilding")
    else:
        store.hset(meta, "run_id", "an earlier process")
    (unknown,) = positions(world.tenants["acme"])
    assert (unknown.used, unknown.held, unknown.remaining) == (None, None, None)
    assert unknown.window_start == known.window_start


def test_a_store_that_is_away_knows_no_position(world, settings, store):
    set_one(world, scope="tenant", dimension="usd", window="d")
    open_bucket(store, world.tenants["acme"])
    selectors._store.cache_clear()
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    try:
        (unknown,) = positions(world.tenants["acme"])
    finally:
        selectors._store.cache_clear()
    assert not unknown.is_known
    with pytest.raises(NotFound):
        positions(10**9)


def price(output: int, **asked) -> int:
    rates = {"input_nanousd": USD, "cached_nanousd": USD, "output_nanousd": output}
    return add_price(model="llama-8b", **rates, **asked, actor=ACTOR)


def test_a_slip_is_asked_about_and_its_repair_is_not(world):
    """R22: a price a million times too high is repaired by the next row, without the database."""
    with pytest.raises(InvalidInput) as refused:
        price(2_400_000 * USD)
    assert refused.value.code == "invalid"
    with pytest.raises(InvalidInput) as refused:
        price(24_000 * USD)
    assert refused.value.code == "price_needs_confirmation"
    assert "USD per million tokens" in refused.value.hint
    assert price(24_000 * USD, confirm=True) == 2
    assert price(2 * USD) == 3
    assert price_in_force("llama-8b", timezone.now()).output_nanousd == 2 * USD


def test_a_price_row_never_changes(world):
    with pytest.raises(DatabaseError, match="append-only"):
        PriceRow.objects.update(output_nanousd=0)


def test_the_past_keeps_its_price_and_two_prices_share_no_moment(world):
    with pytest.raises(InvalidInput) as refused:
        price(USD, valid_from=timezone.now() - timedelta(hours=1))
    assert refused.value.field == "valid_from"
    later = timezone.now() + timedelta(hours=1)
    price(USD, valid_from=later)
    with pytest.raises(Conflict):
        price(2 * USD, valid_from=later)
    with pytest.raises(InvalidInput) as refused:
        add_price(model="nope", input_nanousd=0, cached_nanousd=0, output_nanousd=0, actor=ACTOR)
    assert refused.value.field == "model"


def test_snapshots_hold_the_price_in_force_and_those_to_come(world):
    later = timezone.now() + timedelta(days=3)
    price(4 * USD, valid_from=later)
    now_rows = prices_for_snapshot(timezone.now())["llama-8b"]
    assert [row.version for row in now_rows] == [1, 2]
    in_between = prices_for_snapshot(later - timedelta(seconds=1))["llama-8b"]
    assert [row.version for row in in_between] == [1, 2]
    after = prices_for_snapshot(later + timedelta(days=2))["llama-8b"]
    assert [row.version for row in after] == [2]


def test_the_limits_page_says_how_true_retry_times_were_today(world, store):
    tenant_id = world.tenants["acme"]
    day = int(timezone.now().timestamp()) // 86_400
    factories.make_people(world)
    client = Client()
    client.force_login(world.people["ana"])
    selectors._store.cache_clear()

    def page() -> str:
        return client.get("/tenants/acme/limits/").content.decode()

    assert "Nobody came back" in page()
    name = store_keys.returns_day(str(tenant_id), day)
    counts = {
        "requests_per_minute|admitted": 45,
        "requests_per_minute|refused": 1,
        "concurrency|admitted": 3,
        "concurrency|refused": 1,
    }
    store.hset(name, mapping=counts)
    store.hset(store_keys.returns_day(str(tenant_id), day - 1), "concurrency|refused", 99)
    found = selectors.returns_today(tenant_id)
    assert [(v.limit, v.admitted, v.refused) for v in found] == [
        ("requests_per_minute", 45, 1),
        ("concurrency", 3, 1),
    ]
    html = page()
    assert "96 %" in html
    assert "25 %" in html
    assert "concurrency" in html


def test_returns_are_not_known_while_the_store_is_away(world, settings):
    selectors._store.cache_clear()
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    try:
        assert selectors.returns_today(world.tenants["acme"]) is None
    finally:
        selectors._store.cache_clear()

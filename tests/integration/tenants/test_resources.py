"""Named resources from limit and price to the ledger: exact with uses settled, lost and late."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import redis
from django.db import DatabaseError
from django.test import Client
from django.utils import timezone

from console.accounts.services import issue_token
from console.errors import InvalidInput
from routing.contracts.enums import LimitScope
from routing.contracts.snapshot import TenantEntry
from tenants.directory.selectors import tenants_for_snapshot
from tenants.models import ResourcePrice, Usage, UsageAdjustment
from tenants.prices.selectors import resource_prices_for_snapshot
from tenants.prices.services import add_resource_price
from tenants.quotas import selectors
from tenants.quotas.selectors import positions
from tenants.quotas.services import set_limit
from tests import factories
from tests.factories import ACTOR, World
from tests.ledgering import is_open, make_party, running_writer, until
from tests.reconciling import reconcile
from tests.stack import ACME_KEY, GatewayProcess, api_key, make_snapshot, start_gateway

pytestmark = pytest.mark.django_db(transaction=True)
UNIT = 2_000_000
NAME = "tool:search"
SWEPT_S = 40.0


@pytest.fixture
def world(store: redis.Redis) -> World:
    made = World(tenants={"acme": make_party().tenant_id})
    factories.make_people(made)
    selectors._store.cache_clear()
    return made


def put(world: World, **asked: Any) -> None:
    fields = {"scope": "resource", "dimension": "conc", "window": "g", "resource": NAME} | asked
    set_limit(tenant_id=world.tenants["acme"], amount=5, actor=ACTOR, **fields)


def test_a_limit_names_its_resource_and_reaches_the_snapshot(world: World) -> None:
    put(world)
    put(world, resource="db:orders")
    put(world, dimension="usd", window="mo")
    found = tenants_for_snapshot()[0].limits
    assert {(one.scope, one.subject) for one in found} == {
        (LimitScope.RESOURCE, NAME), (LimitScope.RESOURCE, "db:orders"),
    }  # fmt: skip
    assert len(found) == 3
    assert {one.limit.resource for one in positions(world.tenants["acme"])} == {NAME, "db:orders"}


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"resource": ""}, "resource"),
        ({"resource": "Has Space"}, "resource"),
        ({"resource": "a" * 101}, "resource"),
        ({"dimension": "in", "window": "d"}, "dimension"),
        ({"dimension": "kv"}, "dimension"),
        ({"work_class": "batch"}, "work_class"),
        ({"scope": "tenant"}, "resource"),
    ],
)
def test_a_limit_that_makes_no_sense_names_its_field(
    world: World, asked: dict[str, str], field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        put(world, **asked)
    assert refused.value.field == field


def test_prices_are_added_and_never_edited(world: World) -> None:
    secret = issue_token(user_id=world.people["ada"].pk, name="t", actor=ACTOR).secret
    client = Client(headers={"authorization": f"Bearer {secret}"})

    def add(**body: str) -> Any:
        return client.post("/api/v1/resource-prices/", body, content_type="application/json")

    assert add(resource=NAME, unit_usd="0.002").json() == {"resource": NAME, "version": 1}
    assert add(resource=NAME, unit_usd="0.003").json()["version"] == 2
    assert add(resource="free", unit_usd="0").status_code == 201
    for body, field in [
        ({"resource": "No Name", "unit_usd": "1"}, "resource"),
        ({"resource": NAME, "unit_usd": "1001"}, "unit_usd"),
        ({"resource": NAME}, "unit_usd"),
    ]:
        refused = add(**body)
        assert refused.status_code in (400, 422), body
        assert field in refused.content.decode()
    listed = client.get("/api/v1/resource-prices/", {"resource": NAME}).json()["items"]
    assert [(row["version"], row["unit_usd"]) for row in listed] == [(2, "0.003"), (1, "0.002")]
    found = resource_prices_for_snapshot(timezone.now())
    assert [price.unit_nanousd for price in found[NAME]] == [2_000_000, 3_000_000]
    assert [price.unit_nanousd for price in found["free"]] == [0]
    with pytest.raises(DatabaseError, match="append"):
        ResourcePrice.objects.update(unit_nanousd=1)


def test_limits_form_takes_a_resource(world: World) -> None:
    browser = Client()
    browser.force_login(world.people["ana"])
    form = {
        "scope": "resource", "dimension": "req", "window": "m", "amount": "30", "resource": NAME,
    }  # fmt: skip
    assert browser.post("/tenants/acme/limits/", form).status_code == 302
    page = browser.get("/tenants/acme/limits/").content.decode()
    assert f"resource {NAME}" in page


def test_ledger_and_counters_agree_after_uses_settled_lost_and_late(
    store: redis.Redis, tmp_path: Path
) -> None:
    party = make_party()
    add_resource_price(resource=NAME, unit_nanousd=UNIT, actor=ACTOR)
    set_limit(
        tenant_id=party.tenant_id, scope="resource", dimension="usd", window="d", resource=NAME,
        amount=1_000 * UNIT, actor=ACTOR,
    )  # fmt: skip
    (tenant,) = tenants_for_snapshot()
    with running_writer(), ExitStack() as opened:
        until(lambda: is_open(store, party), what="bucket open")
        one, two = (_gateway(opened, tmp_path, name, tenant, party) for name in ("g0", "g1"))
        exact, lost, late = (
            _post(one, f"{NAME}/reserve", units=4, ttl_s=ttl_s)["id"] for ttl_s in (60, 1, 1)
        )
        assert _post(two, f"{exact}/settle", units=3)["spend_usd"] == "0.006000000"
        one.process.kill()
        one.process.wait(10)
        until(lambda: Usage.objects.filter(kind="w").count() == 2, SWEPT_S, "both swept")
        assert _post(two, f"{late}/settle", units=1)["spend_usd"] == "0.002000000"
        until(UsageAdjustment.objects.exists, what="late adjustment")
        one = _gateway(opened, tmp_path, "g0", tenant, party)  # its journal settles nothing twice
        until(lambda: _is_exact(party.tenant_id), what="counters equal rows")
        lines = {str(row.request_id): row for row in Usage.objects.all()}
        assert set(lines) == {exact, lost, late}
        assert {row.model for row in lines.values()} == {f"resource:{NAME}"}
        assert {row.task_id for row in lines.values()} == {"task-9"}
        assert {row.price_version for row in lines.values()} == {1}
        assert (lines[exact].status, lines[exact].spend_nanousd) == ("ok", 3 * UNIT)
        for use_id in (lost, late):
            assert lines[use_id].usage_source == "estimated"
            assert lines[use_id].spend_nanousd == 4 * UNIT
        (adjustment,) = UsageAdjustment.objects.all()
        assert str(adjustment.request_id) == late
        assert (adjustment.reason, adjustment.spend_nanousd) == ("late", -3 * UNIT)
        (position,) = positions(party.tenant_id)
        assert (position.used, position.held) == ((3 + 4 + 1) * UNIT, 0)


def _gateway(
    opened: ExitStack, tmp_path: Path, name: str, tenant: TenantEntry, party: Any
) -> GatewayProcess:
    digest, key = api_key("acme", ACME_KEY, id=str(party.key_id), project_id=str(party.project_id))
    snapshot = make_snapshot(
        [],
        tenants={tenant.id: tenant},
        keys={digest: msgspec.structs.replace(key, tenant_id=tenant.id)},
        resources=resource_prices_for_snapshot(timezone.now()),
    )
    gateway = opened.enter_context(
        start_gateway(snapshot, os.environ["REDIS_URL"], tmp_path / name, HEADRACE_GATEWAY_ID=name)
    )
    opened.callback(gateway.process.kill)
    return gateway


def _post(gateway: GatewayProcess, path: str, **body: Any) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {ACME_KEY}", "x-headrace-task-id": "task-9"}
    with httpx.Client(timeout=30, trust_env=False, headers=headers) as client:
        response = client.post(f"{gateway.url}/v1/resources/{path}", json=body)
    assert response.status_code == 200, response.text
    return dict(response.json())


def _is_exact(tenant_id: int) -> bool:
    found = reconcile(tenant_id=tenant_id, store_url=os.environ["REDIS_URL"])
    return bool(found.is_clean)

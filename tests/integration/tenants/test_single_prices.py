"""Prices of one rate: a use of a resource, a GPU-second of a pool; their pages and their REST."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError
from django.test import Client
from django.utils import timezone

from console.accounts.services import issue_token
from console.errors import InvalidInput
from console.models import AuditEvent
from tenants.models import PoolPrice, ResourcePrice
from tenants.prices.selectors import gpu_second_nanousd, resource_prices_for_snapshot
from tenants.prices.services import add_pool_price, add_resource_price
from tests import factories
from tests.factories import ACTOR, USD

pytestmark = pytest.mark.django_db

KINDS = [
    ("resources", "resource", "db:orders", "unit_nanousd", "0.002", "11"),
    ("pools", "pool", "p-a", "gpu_second_nanousd", "0.000694445", "0.5"),
]


@pytest.fixture
def world(store: Any) -> factories.World:
    made = factories.World()
    factories.make_tenant(made, "acme")
    factories.make_people(made)
    factories.make_fleet(made, {"p-a": 1})
    return made


def page_of(world: factories.World, name: str = "ada") -> Client:
    client = Client()
    client.force_login(world.people[name])
    return client


@pytest.mark.parametrize(("book", "subject", "name", "field", "usual", "odd"), KINDS)
def test_a_price_is_added_and_listed_by_its_page(
    world: factories.World, book: str, subject: str, name: str, field: str, usual: str, odd: str
) -> None:
    page, path = page_of(world), f"/prices/{book}/"
    assert "No price yet" in page.get(path).text
    new = path + "new/"
    assert 'name="confirm"' not in page.get(new).text
    assert page.post(new, {subject: name, field: usual}).status_code == 302
    text = page.get(path).text
    assert usual in text
    assert "in force" in text
    assert page.get(f"{path}?name={name}").text.count("in force") == 1
    assert "No price matches" in page.get(f"{path}?name=other").text

    doubted = page.post(new, {subject: name, field: odd})
    assert doubted.status_code == 422
    assert "looks like a slip" in doubted.text
    assert 'name="confirm"' in doubted.text
    assert page.post(new, {subject: name, field: odd, "confirm": "on"}).status_code == 302
    assert page.get(path).text.count("ended") == 1
    for wrong in ("", "1,5", "-1", "99999"):
        assert page.post(new, {subject: name, field: wrong}).status_code == 422, wrong
    acts = AuditEvent.objects.filter(act="price.add", object_type=f"{subject}_price")
    assert [(one.after["version"], one.after["confirmed"]) for one in acts.order_by("pk")] == [
        (1, False),
        (2, True),
    ]
    row: type[PoolPrice] | type[ResourcePrice] = PoolPrice if subject == "pool" else ResourcePrice
    with pytest.raises(DatabaseError, match="append"):
        row.objects.update(**{field: 1})


def test_the_page_of_resources_shows_who_may_use_how_much(world: factories.World) -> None:
    page = page_of(world, "aud")
    assert "No limit" in page.get("/prices/resources/").text
    factories.make_single_prices(world, "p-a", 2)
    text = page.get("/prices/resources/").text
    assert "tool:t1" in text
    assert "requests_per_minute" in text
    assert 'href="/tenants/acme/limits/"' in text
    assert "tool:t1" not in page.get("/prices/resources/?name=tool:t2").text


def test_a_gpu_second_costs_what_was_said_for_that_moment(world: factories.World) -> None:
    now = timezone.now()
    assert gpu_second_nanousd("p-a", now) is None, "not said is not 0"
    add_pool_price(pool="p-a", gpu_second_nanousd=694_445, actor=ACTOR)
    later = now + timedelta(days=2)
    version = add_pool_price(pool="p-a", gpu_second_nanousd=0, valid_from=later, actor=ACTOR)
    assert version == 2
    assert gpu_second_nanousd("p-a", now + timedelta(days=1)) == 694_445
    assert gpu_second_nanousd("p-a", later) == 0
    assert resource_prices_for_snapshot(now) == {}, "gateways charge nobody by it"


@pytest.mark.parametrize(
    ("amount", "code"),
    [
        (USD // 100, ""),
        (USD // 100 + 1, "price_needs_confirmation"),
        (2_500_000_000, "invalid"),
        (-1, "invalid"),
        (True, "invalid"),
    ],
)
def test_a_price_meant_per_hour_is_not_taken_per_second(
    world: factories.World, amount: int, code: str
) -> None:
    if not code:
        assert add_pool_price(pool="p-a", gpu_second_nanousd=amount, actor=ACTOR) == 1
        return
    with pytest.raises(InvalidInput) as refused:
        add_pool_price(pool="p-a", gpu_second_nanousd=amount, actor=ACTOR)
    assert (refused.value.field, refused.value.code) == ("gpu_second_nanousd", code)
    told = f"{refused.value.message} {refused.value.hint}"
    assert ("USD for a GPU-second" if code != "invalid" else "0 and 1.00 USD") in told
    assert not PoolPrice.objects.exists()


def test_a_thousandfold_of_the_price_before_is_asked_about(world: factories.World) -> None:
    add_resource_price(resource="tool:x", unit_nanousd=1_000, actor=ACTOR)
    add_resource_price(resource="tool:x", unit_nanousd=1_000_000, actor=ACTOR)
    with pytest.raises(InvalidInput, match="slip"):
        add_resource_price(resource="tool:x", unit_nanousd=1_000_000_001, actor=ACTOR)
    add_resource_price(resource="tool:x", unit_nanousd=1, actor=ACTOR)  # cheaper is never doubted


def test_rest_lists_and_adds_gpu_prices_and_tenants_see_none(world: factories.World) -> None:
    def client(name: str) -> Client:
        secret = issue_token(user_id=world.people[name].pk, name="t", actor=ACTOR).secret
        return Client(headers={"authorization": f"Bearer {secret}"})

    body = {"pool": "p-a", "gpu_second_usd": "0.000694445"}
    made = client("ada").post("/api/v1/pool-prices/", body, content_type="application/json")
    assert (made.status_code, made.json()) == (201, {"pool": "p-a", "version": 1})
    (row,) = client("aud").get("/api/v1/pool-prices/", {"pool": "p-a"}).json()["items"]
    assert (row["pool"], row["gpu_second_usd"], row["version"]) == ("p-a", "0.000694445", 1)
    assert client("tina").get("/api/v1/pool-prices/").status_code == 403

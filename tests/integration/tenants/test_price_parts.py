"""Cache writes, reasoning and pictures: from the price book to the ledger row, exactly."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from django.test import Client
from django.utils import timezone

from capacity.fleet.services import create_model
from console.accounts.services import issue_token
from console.errors import InvalidInput
from routing.contracts.snapshot import Price
from tenants.prices.selectors import price_in_force, prices_for_snapshot
from tenants.prices.services import add_price
from tests import factories
from tests.factories import ACTOR, USD, World
from tests.ledgering import ScriptedGateway, make_party, make_writer, rows
from tests.stack import make_snapshot, start_gateway
from tests.upstream import UpstreamThread, answer, json_script, usage

pytestmark = pytest.mark.django_db(transaction=True)
PARTS = Price(7, USD, USD // 10, 2 * USD, 0, USD * 5 // 4, 5 * USD, 3_000_000)
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


@pytest.fixture
def world() -> World:
    made = World(tenants={"acme": make_party().tenant_id})
    factories.make_people(made)
    create_model(name="llama-8b", context_tokens=16_384, bytes_per_token=3.0, actor=ACTOR)
    return made


def price(**parts: Any) -> int:
    rates = {"input_nanousd": USD, "cached_nanousd": USD // 10, "output_nanousd": 2 * USD}
    return add_price(model="llama-8b", **rates, **parts, actor=ACTOR)


def test_parts_reach_the_snapshot_and_absent_ones_stay_absent(world: World) -> None:
    price()
    price(cache_write_nanousd=5, reasoning_nanousd=0, image_nanousd=9)
    plain, parted = prices_for_snapshot(timezone.now())["llama-8b"]
    assert (plain.cache_write_nanousd, plain.reasoning_nanousd, plain.image_nanousd) == (
        None,
        None,
        0,
    )
    assert (parted.cache_write_nanousd, parted.reasoning_nanousd, parted.image_nanousd) == (5, 0, 9)


def test_slip_in_a_part_needs_confirmation(world: World) -> None:
    with pytest.raises(InvalidInput) as refused:
        price(reasoning_nanousd=2_000_000 * USD // 1_000)
    assert refused.value.field == "reasoning_nanousd"
    assert refused.value.code == "price_needs_confirmation"
    assert price(reasoning_nanousd=2_000 * USD, confirm=True) == 1


def test_rest_and_form_take_parts(world: World) -> None:
    secret = issue_token(user_id=world.people["ada"].pk, name="t", actor=ACTOR).secret
    body = {
        "model": "llama-8b",
        "input_usd_per_mtok": "1.00",
        "cached_usd_per_mtok": "0.10",
        "output_usd_per_mtok": "2.00",
        "cache_write_usd_per_mtok": "1.25",
        "image_usd": "0.003",
    }
    client = Client(headers={"authorization": f"Bearer {secret}"})
    made = client.post("/api/v1/prices/", body, content_type="application/json")
    assert made.status_code == 201, made.content
    listed = client.get("/api/v1/prices/").json()["items"][0]
    assert (listed["cache_write_usd_per_mtok"], listed["reasoning_usd_per_mtok"]) == (
        "1.25",
        None,
    )
    assert listed["image_usd"] == "0.003"
    browser = Client()
    browser.force_login(world.people["ada"])
    form = {
        "model": "llama-8b", "input_nanousd": "1", "cached_nanousd": "0.1", "output_nanousd": "2",
        "reasoning_nanousd": "5", "cache_write_nanousd": "", "image_nanousd": "",
    }  # fmt: skip
    assert browser.post("/new-price/", form).status_code == 302
    found = price_in_force("llama-8b", timezone.now())
    assert found is not None
    assert (found.version, found.reasoning_nanousd, found.cache_write_nanousd) == (2, 5 * USD, None)
    assert found.image_nanousd == 0


def test_real_request_is_held_and_charged_by_its_parts(store: redis.Redis, state_dir: Path) -> None:
    reported = usage(prompt=1_000, completion=500) | {
        "prompt_tokens_details": {"cached_tokens": 400, "cache_write_tokens": 300},
        "completion_tokens_details": {"reasoning_tokens": 200},
    }
    with UpstreamThread(json_script(answer(used=reported))) as upstream:
        snapshot = make_snapshot([upstream.address])
        model = msgspec.structs.replace(snapshot.models["alpha-8b"], prices=(PARTS,))
        snapshot = msgspec.structs.replace(snapshot, models={"alpha-8b": model})
        content = [{"type": "text", "text": "what is this"}, IMAGE]
        with start_gateway(snapshot, os.environ["REDIS_URL"], state_dir) as gateway:
            reply = gateway.chat(
                model="alpha-8b", messages=[{"role": "user", "content": content}], max_tokens=500
            )
    spend = 300 * 1_000 + 400 * 100 + 300 * 1_250 + 300 * 2_000 + 200 * 5_000 + 3_000_000
    assert reply.headers["x-headrace-cost-usd"] == f"0.{spend:09d}"


def test_row_keeps_what_its_charge_was_made_of(store: redis.Redis) -> None:
    writer = make_writer()
    writer.cycle()
    gateway, party = ScriptedGateway(store), make_party()
    gateway.serve(party, cache_write_tokens=3, images=2)
    writer.cycle()
    writer.close()
    assert rows("SELECT cache_write_tokens, images FROM tenants_usage") == [(3, 2)]

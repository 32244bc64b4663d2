"""Pages name things as people do, and ask only what is needed."""

import re

import pytest
from django.test import Client

from capacity.fleet.services import create_model
from console.jobs.services import enqueue
from console.models import Job, JobState
from tests import factories
from tests.factories import World

pytestmark = pytest.mark.django_db


@pytest.fixture
def world(store) -> World:
    made = World()
    factories.make_tenant(made, "acme", "Acme Support", key_name="demo", zone="Europe/Berlin")
    factories.make_people(made)
    factories.make_fleet(made, {"p-a": 1})
    factories.make_policy(made)
    return made


def client_of(world: World, name: str = "ada") -> Client:
    client = Client()
    client.force_login(world.people[name])
    return client


def text_of(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def set_limit(client: Client, **fields: object) -> object:
    asked = {"scope": "tenant", "dimension": "usd", "window": "d", "amount": "5.00", **fields}
    return client.post("/tenants/acme/limits/", asked)


def test_changes_and_audit_name_the_tenant_and_the_object(world):
    client = client_of(world)
    key = world.keys["acme"]
    set_limit(client)
    set_limit(client, scope="key", key_id=key.id)
    for path in ("/", "/audit/"):
        text = text_of(client.get(path).text)
        assert "limit: spend per day of acme" in text, path
        assert "limit: spend per day of key demo of acme" in text, path
    text = text_of(client.get("/audit/").text)
    assert "key demo of acme" in text
    assert "tenant acme" in text
    assert f"key {key.id} " not in text


def test_a_limit_of_a_key_is_chosen_by_the_keys_name(world):
    client = client_of(world)
    key = world.keys["acme"]
    form = client.get("/tenants/acme/limits/").text
    assert re.search(rf'<option value="{key.id}">demo \({key.prefix}', form)
    assert set_limit(client, scope="key", key_id=key.id).status_code == 302
    assert f"key demo ({key.prefix}…)" in text_of(client.get("/tenants/acme/limits/").text)
    assert set_limit(client, scope="key", key_id=key.id + 999).status_code == 422


def test_usage_is_filtered_by_a_key_of_the_tenant_by_name(world):
    key = world.keys["acme"]
    for path in ("/usage/?tenant=acme", "/t/acme/usage/"):
        shown = client_of(world).get(f"{path}{'&' if '?' in path else '?'}key={key.id}").text
        assert f'<option value="{key.id}" selected>demo' in shown, path


def test_usage_shows_when_requests_started_in_a_zone_that_the_head_names(world):
    factories.make_usage(world, "acme", 2)
    client = client_of(world)
    for path, zone in (("/usage/", "UTC"), ("/t/acme/usage/", "Europe/Berlin")):
        text = text_of(client.get(path).text)
        assert f"Started {zone}" in text, path
        assert "Ended" not in text, path


def test_routine_jobs_are_hidden_until_asked_for_or_failed(world):
    Job.objects.all().delete()
    enqueue("reconcile_pools")
    failed = enqueue("roll_up_slices")
    Job.objects.filter(pk=failed).update(state=JobState.FAILED)
    other = enqueue("rehearse")
    client = client_of(world)

    def kinds(path: str) -> list[str]:
        return [row.kind for row in client.get(path).context["page"].rows]

    assert other > failed
    assert kinds("/jobs/") == ["rehearse", "roll_up_slices"]
    assert kinds("/jobs/?routine=1") == ["rehearse", "roll_up_slices", "reconcile_pools"]
    assert kinds("/jobs/?kind=reconcile_pools") == ["reconcile_pools"]
    assert 'href="?routine=1"' in client.get("/jobs/").text


def test_an_unusual_rate_is_confirmed_only_when_it_was_doubted(world):
    client = client_of(world)
    fields = {
        "model": "llama-8b",
        "input_nanousd": "90000",
        "cached_nanousd": "90000",
        "output_nanousd": "90000",
    }
    assert 'name="confirm"' not in client.get("/new-price/").text
    doubted = client.post("/new-price/", fields)
    assert doubted.status_code == 422
    assert 'name="confirm"' in doubted.text
    assert "tick below" in doubted.text
    slip = client.post("/new-price/", {**fields, "input_nanousd": "x"})
    assert 'name="confirm"' not in slip.text
    assert client.post("/new-price/", {**fields, "confirm": "on"}).status_code == 302


@pytest.mark.parametrize(("typed", "model"), [("*", "llama-8b"), ("llama-8b, other", "llama-8b")])
def test_the_command_of_a_new_key_names_a_model_that_it_may_ask_for(world, typed, model):
    create_model(name="other", context_tokens=16_384, bytes_per_token=3.0, actor=factories.ACTOR)
    client = client_of(world)
    form = client.get("/tenants/acme/keys/issue/").text
    fields = {
        "name": "ci",
        "project_id": re.search(r'<option value="(\d+)"', form).group(1),
        "allowed_models": typed,
        "idempotency_key": "once-and-only",
    }
    shown = client.post("/tenants/acme/keys/issue/", fields).text
    assert f'"model": "{model}"' in shown


def test_a_page_says_the_version_of_every_process(world, store):
    factories.beat(store)
    rows = client_of(world).get("/system/").context["processes"]
    ours = {row.version for row in rows if row.state == "up" and row.kind == "process"}
    assert ours == {"0.1.0"}
    servers = {row.name: row.version for row in rows if row.kind == "server"}
    assert all(servers[name] for name in ("store", "postgres"))


def test_a_person_without_a_role_is_not_called_a_tenant(world):
    assert "nobody · no role" in text_of(client_of(world, "nobody").get("/").text)
    assert "tina · tenant" in text_of(client_of(world, "tina").get("/t/acme/").text)

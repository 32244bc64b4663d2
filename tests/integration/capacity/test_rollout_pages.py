"""Rollouts over pages and REST: start, act, refusals with the next step."""

import json
import re

import pytest
from django.test import Client

from capacity.models import Pool, PoolRevision, Replica, Rollout
from capacity.rollouts.services import machine
from console.accounts.services import issue_token
from console.models import AuditEvent
from tests import factories
from tests.factories import ACTOR, World

pytestmark = pytest.mark.django_db


@pytest.fixture
def world(store) -> World:
    made = World()
    factories.make_tenant(made, "acme")
    factories.make_people(made)
    factories.make_fleet(made, {"p-a": 2, "p-b": 1})
    return made


def client_of(world: World, name: str) -> Client:
    client = Client()
    client.force_login(world.people[name])
    return client


def form_of(client: Client, pool: str) -> dict[str, str]:
    text = client.get(f"/fleet/pools/{pool}/roll-out/").text
    once = re.search(r'name="idempotency_key" value="([^"]+)"', text).group(1)
    return {
        "spec": '{"profile": "demo", "max_num_seqs": 16}',
        "artifact": "",
        "engine_version": "",
        "load_limit_s": "60",
        "warm_s": "5",
        "drain_limit_s": "60",
        "judge_requests": "50",
        "judge_limit_s": "60",
        "on_too_few": "hold",
        "most_ttft_ratio": "1.5",
        "most_error_excess_ratio": "0.01",
        "pause_after": "",
        "reason": "smaller batch",
        "confirm": pool,
        "idempotency_key": once,
    }


def test_a_person_starts_one_and_sees_its_timeline(world: World) -> None:
    client = client_of(world, "ana")
    fields = form_of(client, "p-a")
    done = client.post("/fleet/pools/p-a/roll-out/", fields)
    rollout = Rollout.objects.get()
    assert (done.status_code, done.headers["Location"]) == (302, f"/rollouts/{rollout.pk}/")
    again = client.post("/fleet/pools/p-a/roll-out/", fields)  # the button pressed twice
    assert again.headers["Location"] == f"/rollouts/{rollout.pk}/"
    assert Rollout.objects.count() == 1
    for _ in range(2):
        machine.advance_once(rollout.pk)
    text = client.get(f"/rollouts/{rollout.pk}/").text
    assert "p-a-0 → p-a-2" in text
    assert "max_num_seqs" in text
    assert 'hx-trigger="every 2s"' in text
    assert re.search(r'aria-label="load: under way for [\d.]+ s"', text)
    assert 'aria-label="drain: not begun"' in text
    part = client.get(f"/rollouts/{rollout.pk}/", headers={"HX-Request": "true"}).text
    assert "<html" not in part
    assert 'id="live"' in part


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"spec": "{"}, "This is not JSON"),
        ({"spec": "[1]"}, "Settings are one object"),
        ({"spec": '{"profile": "none"}'}, "setting &#x27;profile&#x27; must be one of"),
        (
            {"spec": '{"kv_blocks": 1e30}'},
            "setting &#x27;kv_blocks&#x27; must be a whole number from 2 to 1,000,000",
        ),
        ({"spec": '{"a": NaN}'}, "NaN is not a JSON number"),
        ({"confirm": "p-b"}, "nothing was changed"),
        ({"load_limit_s": "1"}, "greater than or equal to 5"),
        ({"most_ttft_ratio": "0.5"}, "greater than or equal to 1"),
        ({"most_error_excess_ratio": "NaN"}, "Enter a number"),
        ({"on_too_few": "shrug"}, "Select a valid choice"),
        ({"pause_after": "one"}, "Write whole numbers, such as 1, 3."),
        ({"pause_after": "2"}, "a pause comes after 1 to 1 of them"),
        ({"reason": ""}, "This field is required"),
    ],
)
def test_what_cannot_start_is_said_at_its_field_and_nothing_typed_is_lost(
    world: World, change: dict[str, str], said: str
) -> None:
    client = client_of(world, "ana")
    fields = {**form_of(client, "p-a"), "engine_version": "0.77", **change}
    answer = client.post("/fleet/pools/p-a/roll-out/", fields)
    assert answer.status_code == 422
    assert said in answer.text
    assert 'value="0.77"' in answer.text
    assert not Rollout.objects.exists()
    assert PoolRevision.objects.filter(pool__name="p-a").count() == 1


def test_a_taken_pool_says_by_whom_and_what_to_do(world: World) -> None:
    client = client_of(world, "ana")
    first = factories.make_rollout(world, "p-a")
    text = client.get("/fleet/pools/p-a/roll-out/").text
    assert f"Rollout {first} has this pool." in text
    assert "abort it" in text
    fields = form_of(client, "p-a")
    answer = client.post("/fleet/pools/p-a/roll-out/", fields)
    assert answer.status_code == 422
    assert "Wait until it ends, or abort it." in answer.text


def test_acts_of_the_page_change_state_and_ended_ones_are_refused(world: World) -> None:
    client = client_of(world, "ana")
    rollout_id = factories.make_rollout(world, "p-a")
    path = f"/rollouts/{rollout_id}/"

    def state() -> str:
        return Rollout.objects.get().state

    assert client.post(f"{path}pause/", {"reason": "look"}).status_code == 302
    assert state() == "paused"
    page = client.get(path).text
    assert "Resume it to go on" in page
    assert client.post(f"{path}resume/", {"reason": ""}).status_code == 302
    assert state() == "running"
    wrong = client.post(f"{path}abort/", {"confirm": "p-b", "reason": "no"})
    assert (wrong.status_code, state()) == (422, "running")
    assert client.post(f"{path}abort/", {"confirm": "p-a", "reason": "no"}).status_code == 302
    assert state() == "cancelled"
    assert Replica.objects.get(name="p-a-2").is_retired
    assert "Stopped half way: 0 of 2" in client.get(path).text
    late = client.post(f"{path}pause/", {"reason": ""})
    assert late.status_code == 422
    assert "Start another rollout" in late.text
    assert client.post(f"{path}roll-back/", {"reason": "mixed"}).status_code == 302
    assert state() == "rolling_back"
    machine.advance_once(rollout_id)
    assert state() == "rolled_back"
    assert client.get(f"{path}explode/").status_code == 404
    reasons = AuditEvent.objects.filter(object_type="rollout").values_list("act", "reason")
    assert ("rollout.paused", "look") in list(reasons)


def test_a_way_back_that_is_gone_is_not_offered(world: World) -> None:
    client = client_of(world, "ana")
    first = factories.make_rollout(world, "p-b")
    client.post(f"/rollouts/{first}/abort/", {"confirm": "p-b", "reason": "no"})
    Pool.objects.filter(name="p-b").update(revision=9)
    text = client.get(f"/rollouts/{first}/").text
    assert 'title="The pool has been rolled out since"' in text
    refused = client.post(f"/rollouts/{first}/roll-back/", {"reason": ""})
    assert refused.status_code == 422
    assert "Start a rollout to the revision that you want." in refused.text


def test_over_rest_a_second_one_is_409_and_a_repeated_call_the_same(world: World) -> None:
    secret = issue_token(user_id=world.people["ana"].pk, name="t", actor=ACTOR).secret
    client = Client(headers={"Authorization": f"Bearer {secret}"})

    def start(body: dict, key: str = "") -> tuple[int, dict]:
        headers = {"Idempotency-Key": key} if key else {}
        answer = client.post(
            "/api/v1/rollouts/", json.dumps(body), content_type="application/json", headers=headers
        )
        return answer.status_code, answer.json()

    body = {"pool": "p-a", "spec": {"profile": "demo"}, "reason": "again"}
    status, made = start(body, "key-of-mine")
    assert (status, made["rollout"]["state"]) == (201, "running")
    assert start(body, "key-of-mine")[1]["rollout"]["id"] == made["rollout"]["id"]
    status, second = start(body)
    assert (status, second["code"], second["field"]) == (409, "rollout_running", "pool")
    assert second["hint"]
    status, other = start({**body, "reason": "else"}, "key-of-mine")
    assert (status, other["code"]) == (409, "idempotency_conflict")
    status, bad = start({"pool": "p-b", "spec": {"profile": "none"}, "reason": "x"})
    assert (status, bad["field"]) == (422, "spec")
    assert start({"pool": "p-b", "reason": "x", "wait_s": 1})[0] in (400, 422)
    assert start({"pool": "nope", "reason": "x"})[0] == 404
    listed = client.get("/api/v1/rollouts/?pool=p-a&state=active").json()
    assert [item["id"] for item in listed["items"]] == [made["rollout"]["id"]]
    assert client.get("/api/v1/rollouts/?state=odd").status_code in (400, 422)


def test_rollouts_are_paged_by_key(world: World) -> None:
    for number in range(3):
        rollout_id = factories.make_rollout(world, "p-a", reason=f"n{number}")
        Rollout.objects.filter(pk=rollout_id).update(state="cancelled")
        Pool.objects.update(surge_replicas=0)
    secret = issue_token(user_id=world.people["aud"].pk, name="t", actor=ACTOR).secret
    client = Client(headers={"Authorization": f"Bearer {secret}"})
    seen: list[str] = []
    after = ""
    while True:
        page = client.get(f"/api/v1/rollouts/?limit=2{after}").json()
        seen += [item["reason"] for item in page["items"]]
        if page["next"] is None:
            break
        after = f"&after={page['next']}"
    assert seen == ["n2", "n1", "n0"]


def test_settings_left_as_they_are_are_said_to_be_a_restart(world: World) -> None:
    client = client_of(world, "ana")
    fields = {**form_of(client, "p-a"), "spec": '{"profile": "demo"}'}
    said = client.post("/fleet/pools/p-a/roll-out/", fields, follow=True).text
    assert "It restarts every replica with the same settings." in said
    assert "every replica is restarted with the same settings." in said
    other = {**form_of(client, "p-b"), "spec": "{}"}
    said = client.post("/fleet/pools/p-b/roll-out/", other, follow=True).text
    assert "with the same settings" not in said
    assert "—" in said  # the profile that it no longer states


def test_a_pool_with_one_more_that_is_not_ready_is_not_all_ready(world: World) -> None:
    client = client_of(world, "ana")
    assert "all ready" in client.get("/fleet/pools/p-a/").text
    factories.make_rollout(world, "p-a")
    text = client.get("/fleet/pools/p-a/").text
    assert "1 more not ready" in text
    assert "all ready" not in text

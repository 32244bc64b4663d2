"""What a person sees before and after publishing: the change, and only the change."""

import json

import pytest
from django.test import Client

from routing.models import PolicyVersion
from routing.policies import selectors, services
from tests import factories
from tests.factories import ACTOR, World

pytestmark = pytest.mark.django_db

EDIT = "/policies/main/edit/"


@pytest.fixture
def world(store) -> World:
    made = World()
    factories.make_tenant(made, "acme")
    factories.make_people(made)
    factories.make_fleet(made, {"p-a": 2})
    factories.make_policy(made, versions=2)
    return made


def client_of(world: World) -> Client:
    client = Client()
    client.force_login(world.people["ana"])
    return client


def shown_document(client: Client) -> dict:
    form = client.get(EDIT).context["form"]
    return json.loads(form.initial["document"])


def changes(client: Client, document: dict) -> list[tuple[str, str]]:
    asked = {"document": json.dumps(document), "act": "check", "base": "2"}
    diff = client.post(EDIT, asked).context["changes"].lines
    return [(line.kind, line.text.strip(" ,")) for line in diff if line.kind in ("add", "remove")]


def test_an_unmodified_document_changes_no_line(world):
    client = client_of(world)
    assert changes(client, shown_document(client)) == []


def test_one_changed_number_is_two_lines_in_whatever_order_it_was_typed(world):
    client = client_of(world)
    document = shown_document(client)
    document["outage"]["max_s"] = 7
    backwards = dict(reversed(document.items()))
    for typed in (document, backwards):
        kinds = changes(client, typed)
        assert [kind for kind, _ in kinds] == ["remove", "add"]
        assert kinds[1][1] == '"max_s": 7'


def test_a_stored_version_differs_from_the_live_one_only_where_it_does(world):
    first, second = (selectors.version("main", number).document for number in (1, 2))
    diff = client_of(world).get("/policies/main/versions/1/").context["changes"].lines
    changed = [line for line in diff if line.kind in ("add", "remove")]
    assert first != second
    assert [line.kind for line in changed] == ["remove", "add"] * 2  # the note and the weight


def test_publishing_only_a_note_says_that_nothing_changed(world):
    client = client_of(world)
    document = {**shown_document(client), "note": "another word"}
    asked = {"document": json.dumps(document), "base": "2", "note": "why"}
    checked = client.post(EDIT, {**asked, "act": "check"})
    assert "only notes differ" in checked.text
    said = client.post(EDIT, {**asked, "act": "publish"}, follow=True)
    assert "No change" in said.text
    assert "main@2 is live." not in said.text
    assert PolicyVersion.objects.count() == 2


def test_rest_says_whether_a_publish_changed_anything(world):
    client = client_of(world)
    document = shown_document(client)

    def publish(document: dict, base: int) -> dict:
        return client.post(
            "/api/v1/policies/main/publish/",
            {"document": document, "base": base},
            content_type="application/json",
        ).json()

    same = publish({**document, "note": "another word"}, 2)
    assert (same["changed"], same["number"]) == (False, 2)
    document["outage"]["max_s"] = 7
    other = publish(document, 2)
    assert (other["changed"], other["number"]) == (True, 3)
    again = client.post(
        "/api/v1/policies/main/versions/3/rollback/", {"base": 3}, content_type="application/json"
    ).json()
    assert (again["changed"], again["number"]) == (False, 3)


def test_the_change_is_said_in_words_with_what_somebody_loses(world):
    client = client_of(world)
    document = shown_document(client)
    document["outage"]["store_away"] = "closed"
    asked = {"document": json.dumps(document), "act": "check", "base": "2"}
    text = client.post(EDIT, asked).text
    assert "Store away: everything is refused (was: 0.8 of each limit for 300 s)." in text
    assert "less</span>" in text


def test_a_stale_base_shows_what_the_other_person_changed_and_keeps_the_text(world):
    client = client_of(world)
    mine = shown_document(client)
    mine["outage"]["max_s"] = 7
    theirs = shown_document(client) | {"note": "theirs"}
    theirs["routing"]["stale_after_s"] = 9
    services.publish(policy="main", document=theirs, base=2, note="", actor=ACTOR)
    asked = {"document": json.dumps(mine), "act": "publish", "base": "2", "note": ""}
    answer = client.post(EDIT, asked)
    assert answer.status_code == 409
    assert "What main@3 changed meanwhile" in answer.text
    assert "A replica silent for 9 s gets no work (was 3)." in answer.text
    assert "&quot;max_s&quot;: 7" in answer.text
    assert PolicyVersion.objects.count() == 3

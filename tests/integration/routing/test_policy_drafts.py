"""A draft is saved as typed, checked with lines, guarded by its edition, published on its base."""

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from console.audit.rules import Actor
from console.errors import InvalidInput, NotFound
from console.models import AuditEvent
from console.web.store import store_watch
from routing.models import PolicyDraft, PolicyVersion
from routing.policies import selectors, services
from routing.store import keys
from tests import factories
from tests.factories import ACTOR, World

pytestmark = pytest.mark.django_db

EDIT = "/policies/main/edit/"
DRAFT = "/api/v1/policies/main/draft/"
JSON = "application/json"


@pytest.fixture
def world(store) -> World:
    made = World()
    factories.make_tenant(made, "acme")
    factories.make_people(made)
    factories.make_fleet(made, {"p-a": 2})
    factories.make_policy(made, versions=2)
    return made


def client_of(world: World, name: str = "ana") -> Client:
    client = Client()
    client.force_login(world.people[name])
    return client


def live_document() -> dict[str, Any]:
    found = selectors.live("main")
    assert found is not None
    return json.loads(json.dumps(found.document))


def posted(client: Client, document: object, act: str, **more: str) -> Any:
    text = document if isinstance(document, str) else json.dumps(document, indent=2)
    sent = {"document": text, "act": act, "base": "2", "note": "", "tag": "", **more}
    return client.post(EDIT, sent)


def tag() -> str:
    found = selectors.draft("main")
    return found.tag if found else ""


def test_a_draft_is_kept_as_typed_and_publishes_nothing(world):
    client = client_of(world)
    typed = '{"name": "main", half written'
    assert posted(client, typed, "save", note="later").status_code == 302
    page = client.get(EDIT)
    assert page.status_code == 200
    assert page.context["form"].initial["document"] == typed
    assert "draft 1, saved by ana" in page.text
    assert "Not checked" in page.text
    assert PolicyVersion.objects.count() == 2
    assert "Draft 1 on main@2" in client.get("/policies/main/").text


def test_findings_name_path_reason_fix_and_line(world):
    document = live_document()
    document["failures"]["num_retries"] = 3
    document["outage"]["max_s"] = 1000
    text = json.dumps(document, indent=2)
    answer = posted(client_of(world), document, "check")
    rows = {row.finding.path: row for row in answer.context["findings"]}
    assert set(rows) == {"failures.num_retries", "outage.max_s"}
    for path, row in rows.items():
        key = path.rpartition(".")[2]
        assert f'"{key}"' in text.splitlines()[row.line - 1]
        assert row.finding.reason
        assert row.finding.fix
        assert f"line {row.line}" in answer.text
    states = {row.name: row.state for row in answer.context["checks"]}
    assert set(states.values()) == {"refused", "waiting"}


def test_an_unknown_block_is_refused_by_name_and_never_dropped(world):
    document = live_document() | {"response_cache": {"ttl_s": 3600}}
    answer = posted(client_of(world), document, "publish")
    assert answer.status_code == 422
    assert [row.finding.path for row in answer.context["findings"]] == ["response_cache"]
    assert PolicyVersion.objects.count() == 2
    kept = selectors.draft("main")
    assert kept is not None
    assert "response_cache" in kept.text


def test_each_check_is_listed_and_says_what_it_found(world):
    document = live_document()
    document["models"]["llama-8b"]["targets"][0]["pool"] = "nowhere"
    answer = posted(client_of(world), document, "check")
    states = {row.name: (row.state, row.count) for row in answer.context["checks"]}
    assert states["Targets are pools that serve the model"] == ("refused", 1)
    assert states["Models have a price"] == ("ok", 0)
    fine = posted(client_of(world), live_document(), "check")
    assert {row.state for row in fine.context["checks"]} == {"ok"}


def test_while_typing_only_the_checks_come_back(world):
    sent = {"document": "{", "act": "check", "base": "2", "tag": ""}
    answer = client_of(world).post(EDIT, sent, headers={"HX-Request": "true"})
    assert answer.status_code == 200
    assert answer.text.strip().startswith("<div")
    assert 'id="checks"' in answer.text
    assert "Not JSON at line 1" in answer.text
    assert "<textarea" not in answer.text
    assert not PolicyDraft.objects.exists()


def test_of_two_who_edit_one_draft_the_second_learns_it_and_loses_nothing(world):
    ana, ada = client_of(world), client_of(world, "ada")
    mine, theirs = live_document(), live_document()
    mine["outage"]["max_s"] = 7
    theirs["outage"]["max_s"] = 9
    assert posted(ada, theirs, "save").status_code == 302
    answer = posted(ana, mine, "save")
    assert answer.status_code == 409
    assert "ada saved draft 1" in answer.text
    assert [line.text.strip(" ,") for line in answer.context["their_changes"] if line.kind == "add"]
    assert "&quot;max_s&quot;: 7" in answer.text
    # the page now stands on theirs: saving again is a decision
    next_tag = answer.context["form"]["tag"].value()
    assert next_tag == tag()
    assert posted(ana, mine, "save", tag=next_tag).status_code == 302
    kept = selectors.draft("main")
    assert kept is not None
    assert (kept.edition, json.loads(kept.text)["outage"]["max_s"]) == (2, 7)


def test_a_stale_draft_says_what_changed_and_goes_on_top_of_it_when_told(world):
    client = client_of(world)
    mine = live_document()
    mine["outage"]["max_s"] = 7
    posted(client, mine, "save")
    theirs = live_document()
    theirs["routing"]["stale_after_s"] = 9
    services.publish(policy="main", document=theirs, base=2, note="", actor=ACTOR)
    assert "A replica silent for 9 s gets no work (was 3)." in client.get(EDIT).text
    refused = posted(client, mine, "publish", tag=tag())
    assert refused.status_code == 409
    assert PolicyVersion.objects.count() == 3
    posted(client, mine, "rebase", tag=tag())
    kept = selectors.draft("main")
    assert kept is not None
    assert kept.base == 3
    done = posted(client, mine, "publish", tag=tag(), base="3")
    assert done.status_code == 302
    live = selectors.live("main")
    assert live is not None
    assert (live.number, live.document["outage"]["max_s"]) == (4, 7)
    assert not PolicyDraft.objects.exists()


def test_discarding_leaves_the_live_version_and_is_audited(world):
    client = client_of(world)
    posted(client, live_document(), "save")
    assert posted(client, live_document(), "discard", tag=tag()).status_code == 302
    assert not PolicyDraft.objects.exists()
    acts = AuditEvent.objects.filter(object_type="policy").order_by("id")
    assert list(acts.values_list("act", flat=True))[-2:] == ["policy.draft", "policy.discard_draft"]


def test_a_draft_has_bounds_and_a_base_that_exists(world):
    for text, base, field in (
        ("  ", 2, "document"),
        ("x" * 300_000, 2, "document"),
        ("{}", 9, "base"),
    ):
        with pytest.raises(InvalidInput) as refused:
            services.save_draft(policy="main", text=text, base=base, actor=ACTOR)
        assert refused.value.field == field
    with pytest.raises(NotFound):
        services.publish_draft(policy="main", tag="", note="", actor=ACTOR)


def test_rest_keeps_a_draft_behind_if_match_and_publishes_it(world):
    client = client_of(world)
    document = live_document()
    document["outage"]["max_s"] = 7
    made = client.put(DRAFT, {"document": document}, content_type=JSON)
    assert made.status_code == 200, made.content
    first = made.headers["ETag"]
    assert made.json()["base"] == 2
    assert [line["kind"] for line in made.json()["lines"] if line["kind"] != "same"][:2]
    assert made.json()["words"][0]["text"]
    document["outage"]["max_s"] = 8
    body = {"document": document}
    assert client.put(DRAFT, body, content_type=JSON).status_code == 428
    again = client.put(DRAFT, body, content_type=JSON, headers={"If-Match": first})
    assert again.json()["edition"] == 2
    stale = client.put(DRAFT, body, content_type=JSON, headers={"If-Match": first})
    assert (stale.status_code, stale.json()["code"]) == (409, "draft_changed")
    whichever = client.put(DRAFT, body, content_type=JSON, headers={"If-Match": "*"})
    assert (whichever.status_code, whichever.json()["edition"]) == (200, 3)
    second = {"If-Match": whichever.headers["ETag"]}
    done = client.post(f"{DRAFT}publish/", {"note": "8 s"}, content_type=JSON, headers=second)
    assert (done.status_code, done.json()["number"]) == (201, 3)
    assert client.get(DRAFT).status_code == 404
    none = client.put(DRAFT, body, content_type=JSON, headers={"If-Match": "*"})
    assert (none.status_code, none.json()["title"]) == (404, "There is no draft.")
    live = selectors.live("main")
    assert live is not None
    assert (live.document["outage"]["max_s"], live.note, live.author) == (8, "8 s", "ana")


def test_rest_answers_a_stale_draft_with_what_changed(world):
    client = client_of(world)
    mine = live_document()
    mine["outage"]["max_s"] = 7
    kept = client.put(DRAFT, {"document": mine}, content_type=JSON)
    theirs = live_document()
    theirs["routing"]["stale_after_s"] = 9
    services.publish(policy="main", document=theirs, base=2, note="", actor=ACTOR)
    assert client.get(DRAFT).json()["is_stale"] is True
    answer = client.post(
        f"{DRAFT}publish/", {}, content_type=JSON, headers={"If-Match": kept.headers["ETag"]}
    )
    assert (answer.status_code, answer.json()["code"]) == (409, "stale_base")
    assert answer.json()["changes"][0]["text"] == "A replica silent for 9 s gets no work (was 3)."
    assert PolicyDraft.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_of_two_first_saves_at_once_one_wins(world):
    together = Barrier(2)

    def save(name: str) -> str:
        actor = Actor(user_id=world.people[name].pk, label=name)
        try:
            together.wait(10)
            services.save_draft(policy="main", text=f'"{name}"', base=2, actor=actor)
        except services.DraftChanged as error:
            return error.code
        finally:
            connection.close()
        return "saved"

    with ThreadPoolExecutor(2) as pool:
        answers = sorted(pool.map(save, ("ana", "ada")))
    assert answers == ["draft_changed", "saved"]
    assert PolicyDraft.objects.get().edition == 1


def test_a_versions_page_says_which_gateways_run_it(world, store):
    factories.beat(store, gateways=2)  # they say that they run main@1
    client = client_of(world)
    old = client.get("/policies/main/versions/1/")
    assert "Gateways that run main@1" in old.text
    assert len(old.context["acks"].gateways) == 2
    live = client.get("/policies/main/versions/2/")
    assert [one.policy for one in live.context["acks"].gateways] == ["main@1", "main@1"]
    store.delete(keys.GATEWAYS)
    assert "No gateway runs it" in client.get("/policies/main/versions/1/").text


def test_a_store_that_is_known_to_hang_is_not_waited_for(world, store, monkeypatch):
    factories.beat(store, gateways=2)
    assert selectors.acks().is_known
    monkeypatch.setattr(store_watch, "_fault", "The store has not answered for more than 1 s")
    for page in ("/policies/", "/policies/main/", "/policies/main/versions/2/"):
        assert "Acknowledgements unknown" in client_of(world).get(page).text, page

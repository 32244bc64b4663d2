"""A tenant asks for more; an operator decides once; a grant's end returns the old limit."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from capacity.fleet.services import set_capacity_limit
from console.audit.rules import Actor
from console.errors import Conflict, DomainError, InvalidInput, NotFound
from console.models import AuditEvent, Job
from tenants.models import Limit, QuotaRequest
from tenants.quotas.selectors import limits
from tenants.quotas.services import set_limit
from tenants.requests import selectors, services
from tenants.requests.tasks import end_quota_grants
from tests import factories
from tests.factories import ACTOR, USD, World

pytestmark = pytest.mark.django_db

OWN = "tenants/acme/quota-requests/"
ALL = "quota-requests/"
INPUT = {"scope": "tenant", "dimension": "in", "window": "m"}


@pytest.fixture
def world(store) -> World:
    made = World()
    factories.make_tenant(made, "acme", zone="Europe/Berlin")
    factories.make_tenant(made, "globex")
    factories.make_people(made)
    factories.make_fleet(made, {"p-a": 2})
    return made


class Manager:
    """One person at the REST API."""

    def __init__(self, world: World, name: str) -> None:
        self._client = Client()
        self._client.force_login(world.people[name])

    def call(self, method: str, path: str, body: Any = None) -> Any:
        send = getattr(self._client, method)
        if method == "get":
            return send(f"/api/v1/{path}")
        return send(f"/api/v1/{path}", body or {}, content_type="application/json")


def limit_of(world: World, dimension: str, slug: str = "acme") -> Limit:
    return Limit.objects.get(tenant_id=world.tenants[slug], scope="tenant", dimension=dimension)


def ask(world: World, amount: int, dimension: str = "in", slug: str = "acme", **more: Any) -> int:
    return services.ask_for_more(
        tenant_id=world.tenants[slug],
        limit_id=limit_of(world, dimension, slug).pk,
        amount=amount,
        reason="launch",
        actor=ACTOR,
        **more,
    )


def soon() -> Any:
    return timezone.now() + timedelta(hours=1)


def let_time_pass(request_id: int) -> None:
    """As if the grant's end had come."""
    QuotaRequest.objects.filter(pk=request_id).update(ends_at=timezone.now() - timedelta(seconds=1))


def test_a_tenant_asks_and_an_operator_grants_less_for_a_time_over_rest(world):
    tina, ana = Manager(world, "tina"), Manager(world, "ana")
    made = tina.call("post", OWN, {**INPUT, "amount": 400_000, "reason": "launch on Monday"})
    assert made.status_code == 201, made.content
    asked = made.json()
    assert (asked["amount_then"], asked["amount_asked"], asked["state"]) == (
        150_000,
        400_000,
        "open",
    )
    assert (asked["asked_by"], asked["amount_asked_usd"], asked["outcome"]) == ("tina", None, "")
    path = f"{ALL}{asked['id']}/"
    granted = ana.call(
        "post", f"{path}grant/", {"amount": 300_000, "ends_at": "2027-01-15T00:00:00Z"}
    )
    assert granted.status_code == 200, granted.content
    assert limit_of(world, "in").amount == 300_000
    own = tina.call("get", f"{OWN}{asked['id']}/").json()
    assert (own["state"], own["amount_granted"], own["decided_by"]) == ("granted", 300_000, "ana")
    assert own["ends_at"] == "2027-01-15T00:00:00.000000Z"
    assert "ana granted 300,000 until 2027-01-15" in own["outcome"]
    acts = AuditEvent.objects.filter(tenant_id=world.tenants["acme"]).order_by("id")
    assert list(acts.values_list("act", "actor_label"))[-3:] == [
        ("quota.ask", "tina"),
        ("quota.grant", "ana"),
        ("limit.set", "ana"),
    ]


def test_spend_is_asked_and_granted_in_dollars(world):
    tina, ada = Manager(world, "tina"), Manager(world, "ada")
    budget = {"scope": "tenant", "dimension": "usd", "window": "d", "reason": "launch"}
    assert tina.call("post", OWN, {**budget, "amount": 500}).json()["field"] == "amount_usd"
    asked = tina.call("post", OWN, {**budget, "amount_usd": "250.50"}).json()
    assert (asked["amount_then_usd"], asked["amount_asked_usd"]) == (
        "100.00",
        "250.50",
    )
    answer = ada.call("post", f"{ALL}{asked['id']}/grant/", {"amount_usd": "250.50"})
    assert answer.json()["amount_granted_usd"] == "250.50"
    assert limit_of(world, "usd").amount == 250 * USD + USD // 2


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({**INPUT, "amount": 150_000}, "amount"),
        ({**INPUT, "amount": 10**17}, "amount"),
        ({**INPUT, "window": "d", "amount": 9}, "scope"),
        ({**INPUT, "scope": "key", "amount": 9}, "scope"),
        ({**INPUT, "amount": 200_000, "reason": ""}, "reason"),
        ({**INPUT, "amount": 200_000, "until": "2020-01-01T00:00:00Z"}, "until"),
        ({**INPUT, "amount": 200_000, "until": "2090-01-01T00:00:00Z"}, "until"),
        ({**INPUT, "amount": 200_000, "priority": 1}, "priority"),
    ],
)
def test_what_cannot_be_asked_names_its_field(world, body, field):
    answer = Manager(world, "tina").call("post", OWN, {"reason": "why", **body})
    assert answer.status_code in (400, 422), answer.content
    assert answer.json()["field"] == field
    assert not QuotaRequest.objects.exists()


@pytest.mark.parametrize("amount", [10**17, 10**24])
def test_an_ask_above_every_limit_is_told_the_bound(world, amount):
    answer = Manager(world, "tina").call("post", OWN, {**INPUT, "amount": amount, "reason": "why"})
    told = (answer.status_code, answer.json()["field"], answer.json()["title"])
    assert told == (422, "amount", "A limit is at most 9,000,000,000,000,000.")


def test_a_tenant_never_sees_anothers_requests(world):
    theirs = ask(world, 400_000, slug="globex")
    tina = Manager(world, "tina")
    assert tina.call("get", OWN).json() == {"items": [], "next": None}
    assert tina.call("get", f"{OWN}{theirs}/").status_code == 404
    assert tina.call("post", f"{OWN}{theirs}/withdraw/").status_code == 404
    assert tina.call("get", "tenants/globex/quota-requests/").status_code == 404
    assert tina.call("get", ALL).status_code == 403
    assert tina.call("post", f"{ALL}{theirs}/grant/", {"amount": 400_000}).status_code == 403
    assert QuotaRequest.objects.get().state == "open"


def test_who_may_only_look_neither_asks_nor_decides(world):
    request_id = ask(world, 400_000)
    body = {"scope": "tenant", "dimension": "out", "window": "m", "amount": 90_000, "reason": "x"}
    assert Manager(world, "vic").call("get", OWN).status_code == 200
    assert Manager(world, "vic").call("post", OWN, body).status_code == 403
    for name in ("ola", "aud"):
        assert Manager(world, name).call("get", ALL).status_code == 200
        for act in ("grant", "refuse"):
            sent = {"reason": "x", **({"amount": 400_000} if act == "grant" else {})}
            answer = Manager(world, name).call("post", f"{ALL}{request_id}/{act}/", sent)
            assert answer.status_code == 403
    assert limit_of(world, "in").amount == 150_000


def test_one_request_a_limit_is_open_and_a_decided_one_makes_room(world):
    request_id = ask(world, 400_000)
    with pytest.raises(Conflict):
        ask(world, 500_000)
    services.withdraw(tenant_id=world.tenants["acme"], request_id=request_id, actor=ACTOR)
    assert ask(world, 500_000) > request_id


def test_a_tenant_has_a_bounded_number_of_open_requests(world, monkeypatch):
    monkeypatch.setattr(services, "MAX_OPEN", 1)
    ask(world, 400_000)
    with pytest.raises(InvalidInput):
        ask(world, 90_000, "out")


def test_a_refusal_needs_a_reason_and_changes_no_limit(world):
    request_id = ask(world, 400_000)
    with pytest.raises(InvalidInput) as empty:
        services.refuse(request_id=request_id, reason="  ", actor=ACTOR)
    assert empty.value.field == "reason"
    services.refuse(request_id=request_id, reason="The fleet is full until May.", actor=ACTOR)
    found = selectors.one_request(request_id, tenant_ids=None)
    assert (found.state, found.decision_reason) == ("refused", "The fleet is full until May.")
    assert limit_of(world, "in").amount == 150_000


@pytest.mark.parametrize("amount", [150_000, 400_001])
def test_a_grant_lies_between_the_limit_and_what_was_asked(world, amount):
    request_id = ask(world, 400_000)
    with pytest.raises(InvalidInput) as refused:
        services.grant(request_id=request_id, amount=amount, actor=ACTOR)
    assert refused.value.field == "amount"
    assert limit_of(world, "in").amount == 150_000


def test_an_ended_grant_returns_the_old_limit_by_the_job_and_keeps_its_anchor(world):
    set_limit(
        tenant_id=world.tenants["acme"], scope="tenant", dimension="usd", window="d",
        amount=100 * USD, anchor_time="06:30", actor=ACTOR,
    )  # fmt: skip
    anchored = limit_of(world, "usd").anchor_min
    assert anchored
    request_id = ask(world, 200 * USD, "usd")
    services.grant(request_id=request_id, amount=180 * USD, ends_at=soon(), actor=ACTOR)
    assert services.end_due_grants() == 0
    assert limit_of(world, "usd").amount == 180 * USD
    let_time_pass(request_id)
    Job.objects.all().delete()
    end_quota_grants(None)  # type: ignore[arg-type]  # it reads no argument of its job
    back = limit_of(world, "usd")
    assert (back.amount, back.anchor_min) == (100 * USD, anchored)
    assert Job.objects.filter(kind="push_snapshot", state="queued").count() == 1
    found = selectors.one_request(request_id, tenant_ids=None)
    assert found.state == "ended"
    assert services.end_due_grants() == 0
    ended = AuditEvent.objects.filter(act="quota.end").get()
    assert (ended.actor_label, ended.after["amount"]) == ("system", 100 * USD)


def test_a_limit_that_a_person_changed_meanwhile_is_left_alone(world):
    request_id = ask(world, 400_000)
    services.grant(request_id=request_id, amount=400_000, ends_at=soon(), actor=ACTOR)
    set_limit(tenant_id=world.tenants["acme"], **INPUT, amount=120_000, actor=ACTOR)
    let_time_pass(request_id)
    assert services.end_due_grants() == 1
    assert limit_of(world, "in").amount == 120_000
    assert "changed meanwhile" in selectors.one_request(request_id, tenant_ids=None).end_note


def test_a_second_grant_takes_over_the_first_ones_return(world):
    first = ask(world, 300_000)
    services.grant(request_id=first, amount=300_000, ends_at=soon(), actor=ACTOR)
    second = ask(world, 500_000)
    services.grant(request_id=second, amount=500_000, ends_at=soon(), actor=ACTOR)
    assert QuotaRequest.objects.get(pk=first).state == "superseded"
    for request_id in (first, second):
        let_time_pass(request_id)
    assert services.end_due_grants() == 1
    assert limit_of(world, "in").amount == 150_000


def test_a_grant_for_a_removed_limit_is_a_conflict(world):
    request_id = ask(world, 400_000)
    set_limit(tenant_id=world.tenants["acme"], **INPUT, amount=None, actor=ACTOR)
    with pytest.raises(Conflict) as refused:
        services.grant(request_id=request_id, amount=400_000, actor=ACTOR)
    assert refused.value.code == "limit_gone"


def test_the_room_beside_a_request_is_what_rows_and_replicas_say(world, store):
    factories.scrape(
        store,
        "p-a",
        r0={"kv_usage_ratio": 0.25, "prompt_tokens_per_s": 100.0, "generation_tokens_per_s": 10.0},
        r1={"kv_usage_ratio": 0.75, "prompt_tokens_per_s": 50.0, "generation_tokens_per_s": None},
    )
    set_capacity_limit(pool=None, dimension="in", amount=1_000_000, actor=ACTOR)
    request_id = ask(world, 400_000)
    (case,) = Manager(world, "ana").call("get", f"{ALL}?state=open").json()["items"]
    assert case["id"] == request_id
    assert case["room"] == {
        "tenants": 2,
        "promised": 300_000,
        "promised_after": 550_000,
        "bound": 1_000_000,
        "replicas": 2,
        "ready_replicas": 2,
        "kv_free_tokens": 100_000,
        "kv_tokens": 200_000,
        "input_tokens_per_min": 9_000,
        "output_tokens_per_min": 600,
    }


def test_unseen_replicas_are_unknown_never_empty(world):
    ask(world, 400_000)
    (case,) = Manager(world, "ana").call("get", ALL).json()["items"]
    room = case["room"]
    assert (room["replicas"], room["kv_free_tokens"], room["output_tokens_per_min"]) == (
        2,
        None,
        None,
    )
    assert room["bound"] is None


@pytest.mark.django_db(transaction=True)
def test_of_two_operators_who_decide_at_once_one_wins_and_the_other_learns_it(world):
    request_id = ask(world, 400_000)
    together = Barrier(2)

    def decide(name: str) -> DomainError | None:
        actor = Actor(user_id=world.people[name].pk, label=name)
        together.wait(10)
        try:
            if name == "ana":
                services.grant(request_id=request_id, amount=300_000, actor=actor)
            else:
                services.refuse(request_id=request_id, reason="No room.", actor=actor)
        except DomainError as error:
            return error
        finally:
            connection.close()
        return None

    with ThreadPoolExecutor(2) as pool:
        answers = dict(zip(("ana", "ada"), pool.map(decide, ("ana", "ada")), strict=True))
    (loser,) = [name for name, answer in answers.items() if answer]
    winner = "ana" if loser == "ada" else "ada"
    lost = answers[loser]
    assert lost is not None
    assert (lost.status, lost.code) == (409, "already_decided")
    assert f"{winner} {'granted 300,000' if winner == 'ana' else 'refused it'}" in lost.message
    is_granted = winner == "ana"
    assert QuotaRequest.objects.get().state == ("granted" if is_granted else "refused")
    assert limit_of(world, "in").amount == (300_000 if is_granted else 150_000)
    assert AuditEvent.objects.filter(act__in=("quota.grant", "quota.refuse")).count() == 1


@pytest.mark.django_db(transaction=True)
def test_asking_anew_while_the_last_one_is_decided_never_deadlocks(world):
    for _ in range(5):
        request_id = ask(world, 400_000)
        together = Barrier(2)

        def decide(request_id: int = request_id, together: Barrier = together) -> None:
            try:
                together.wait(10)
                services.refuse(request_id=request_id, reason="No.", actor=ACTOR)
            finally:
                connection.close()

        def anew(together: Barrier = together) -> int:
            try:
                together.wait(10)
                return ask(world, 500_000)
            except Conflict:
                return 0
            finally:
                connection.close()

        with ThreadPoolExecutor(2) as pool:
            decided, asked = pool.submit(decide), pool.submit(anew)
            decided.result(20)
            made = asked.result(20)
        if made:
            services.withdraw(tenant_id=world.tenants["acme"], request_id=made, actor=ACTOR)
    assert not QuotaRequest.objects.filter(state="open").exists()


def test_lists_are_paged_by_key(world):
    for _ in range(3):
        made = ask(world, 400_000)
        services.withdraw(tenant_id=world.tenants["acme"], request_id=made, actor=ACTOR)
    ana = Manager(world, "ana")
    first = ana.call("get", f"{ALL}?limit=2&tenant=acme").json()
    rest = ana.call("get", f"{ALL}?limit=2&tenant=acme&after={first['next']}").json()
    ids = [item["id"] for item in first["items"] + rest["items"]]
    assert len(ids) == 3
    assert ids == sorted(ids, reverse=True)
    assert rest["next"] is None
    with pytest.raises(NotFound):
        selectors.one_request(made, tenant_ids=frozenset({world.tenants["globex"]}))
    assert limits(world.tenants["acme"])


@pytest.mark.parametrize(("name", "amount"), [("tina", 150_000), ("ana", 900_000)])
def test_by_the_limits_page_only_operators_raise_what_they_grant(world, name, amount):
    client = Client()
    client.force_login(world.people[name])
    answer = client.post("/tenants/acme/limits/", {**INPUT, "amount": "900000"})
    assert answer.status_code == (302 if name == "ana" else 422)
    assert limit_of(world, "in").amount == amount


def test_a_tenant_admin_still_sets_limits_of_keys_by_the_page(world):
    client = Client()
    client.force_login(world.people["tina"])
    key_id = world.keys["acme"].id
    sent = {"scope": "key", "dimension": "in", "window": "m", "amount": "5", "key_id": key_id}
    assert client.post("/tenants/acme/limits/", sent).status_code == 302
    assert Limit.objects.get(scope="key", dimension="in").amount == 5

"""Evaluations: a fallback is published with one that stands, and ends with it."""

import pytest
from django.test import Client

from capacity.fleet.services import create_domain, create_pool
from console.errors import InvalidInput
from console.models import AuditEvent, Job
from routing.contracts.snapshot import decode_snapshot
from routing.evaluations.services import record_evaluation, withdraw_evaluation
from routing.models import Evaluation, SnapshotRow
from routing.policies.services import PolicyRefused, publish, push_snapshot
from tenants.prices.services import add_price
from tests import factories
from tests.factories import ACTOR, World

GOOD = {"model": "llama-8b", "stands_in": "llama-70b", "score_ratio": 0.9, "note": "200 cases"}


@pytest.fixture
def world(store) -> World:
    made = World()
    factories.make_tenant(made, "acme")
    factories.make_people(made)
    factories.make_fleet(made, {"p-a": 1})
    factories.make_evaluations(made)
    create_domain(region="eu", slug="eu-b", actor=ACTOR)
    add_price(model="llama-70b", input_nanousd=1, cached_nanousd=1, output_nanousd=1, actor=ACTOR)
    create_pool(
        name="p-70b", model="llama-70b", driver="simulated", region="eu", domain="eu-b",
        hardware="sim", spec={"profile": "demo"}, desired_replicas=1, actor=ACTOR,
    )  # fmt: skip
    return made


def document(evaluation: int) -> dict:
    fallback = {
        "model": "llama-70b", "evaluation": f"ev-{evaluation}", "headroom_ratio": 0.1
    }  # fmt: skip
    return {
        "schema_version": 1,
        "name": "main",
        "models": {
            "llama-8b": {"targets": [{"pool": "p-a"}], "fallbacks": [fallback]},
            "llama-70b": {"targets": [{"pool": "p-70b"}]},
        },
    }


def newest() -> tuple[str, ...]:
    row = SnapshotRow.objects.order_by("-number").first()
    models = decode_snapshot(bytes(row.body)).models
    return tuple(one.model for one in models["llama-8b"].fallbacks)


@pytest.mark.django_db(transaction=True)
def test_a_fallback_is_served_while_its_evaluation_stands(world):
    with pytest.raises(PolicyRefused) as refused:
        publish(
            policy="main", document=document(world.evaluation + 1), base=None, note="",
            actor=ACTOR,
        )  # fmt: skip
    (finding,) = refused.value.findings
    assert (finding.path, finding.reason) == ("models.llama-8b.fallbacks[0]", "no evaluation.")
    assert "Record how llama-70b does in place of llama-8b" in finding.fix
    publish(policy="main", document=document(world.evaluation), base=None, note="", actor=ACTOR)
    push_snapshot()
    assert newest() == ("llama-70b",)
    _, changed = withdraw_evaluation(evaluation_id=world.evaluation, actor=ACTOR)
    _, again = withdraw_evaluation(evaluation_id=world.evaluation, actor=ACTOR)
    assert (changed, again) == (True, False)
    assert Job.objects.filter(kind="push_snapshot").exists()
    push_snapshot()
    assert newest() == ()
    acts = AuditEvent.objects.filter(object_type="evaluation").order_by("id")
    assert [one.act for one in acts] == ["evaluation.record", "evaluation.withdraw"]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("field", "value"),
    [("model", "no-such"), ("stands_in", "no-such"), ("stands_in", "llama-8b"),
     ("score_ratio", 1.01), ("score_ratio", float("nan")), ("note", " ")],
)  # fmt: skip
def test_a_record_that_says_nothing_is_refused_at_its_field(world, field, value):
    with pytest.raises(InvalidInput) as refused:
        record_evaluation(**GOOD | {field: value}, actor=ACTOR)
    assert refused.value.field == field
    assert Evaluation.objects.count() == 1


@pytest.mark.django_db
def test_a_person_records_and_withdraws_on_the_pages(world):
    client = Client()
    client.force_login(world.people["ana"])
    assert client.post("/new-evaluation/", {**GOOD, "score_ratio": "2"}).status_code == 422
    assert client.post("/new-evaluation/", GOOD).status_code == 302
    made = Evaluation.objects.latest("id")
    assert (made.author_label, made.score_ratio) == ("ana", 0.9)
    client.post(f"/evaluations/{made.pk}/withdraw/")
    page = client.get("/evaluations/").content.decode()
    assert f"Withdrawn: ev-{made.pk}" in page
    assert f'aria-label="Withdraw ev-{made.pk}"' not in page
    assert f'aria-label="Withdraw ev-{world.evaluation}"' in page

"""The overview names what acts on traffic and what is stuck, each with the way there."""

import pytest
from django.test import Client

from capacity.models import PlaybookRun, Replica, Rollout, RolloutState
from capacity.playbooks.services import ensure_shipped, evaluate_playbooks, set_mode
from capacity.rollouts import services as rollouts
from capacity.rollouts.services.steps import turn
from console.audit.rules import SYSTEM, Actor
from routing.contracts.enums import WorkClass
from routing.contracts.override import OverrideKind
from routing.overrides.rules import Wanted
from routing.overrides.services import apply_override
from tests import factories
from tests.factories import ACTOR, World

pytestmark = pytest.mark.django_db


@pytest.fixture
def world(store) -> World:
    made = World()
    factories.make_tenant(made, "acme")
    factories.make_people(made)
    factories.make_fleet(made, {"p-a": 2})
    return made


@pytest.fixture
def client(world: World) -> Client:
    found = Client()
    found.force_login(world.people["ada"])
    return found


def test_a_playbook_that_acts_is_named_once_with_its_run(client: Client) -> None:
    ensure_shipped()
    set_mode(name="capacity-lost", mode="armed", actor=ACTOR)
    quiet = client.get("/").text
    assert "Playbook capacity-lost" not in quiet
    Replica.objects.filter(ordinal=0).update(lifecycle="failed", handle={"failures": 1})
    evaluate_playbooks()
    run = PlaybookRun.objects.get()
    text = client.get("/").text
    assert "Playbook capacity-lost acts on p-a since" in text
    assert f'href="/playbooks/capacity-lost/runs/{run.pk}/"' in text
    assert "Override until" not in text
    set_mode(name="capacity-lost", mode="dry_run", actor=ACTOR)
    evaluate_playbooks()
    assert "Playbook capacity-lost would act on p-a since" in client.get("/").text


def test_a_persons_override_is_named(client: Client) -> None:
    wanted = Wanted(OverrideKind.PAUSE, work_class=WorkClass.BATCH)
    apply_override(wanted=wanted, hold_s=600, reason="Maintenance.", source="person", actor=ACTOR)
    text = client.get("/").text
    assert "pause class batch" in text
    assert 'href="/overrides/"' in text


def test_a_rollout_is_named_while_it_stands_or_fails(world: World, client: Client) -> None:
    rollout_id = factories.make_rollout(world, "p-a")
    assert f"Rollout {rollout_id} of pool" not in client.get("/").text
    rollouts.pause(rollout_id=rollout_id, actor=ACTOR)
    text = client.get("/").text
    assert f"Rollout {rollout_id} of pool p-a: paused." in text
    assert f'href="/rollouts/{rollout_id}/"' in text
    Rollout.objects.update(state="failed", cause="p-a-2: not loaded within 5 s")
    assert "p-a: failed. p-a-2: not loaded within 5 s" in client.get("/").text
    Rollout.objects.update(state="done")
    assert f"Rollout {rollout_id} of pool" not in client.get("/").text


@pytest.mark.parametrize("who", ["machine", "ola"])
def test_a_finished_way_back_is_named_unless_a_person_asked_for_it(
    world: World, client: Client, who: str
) -> None:
    rollout_id = factories.make_rollout(world, "p-a")
    rollout = Rollout.objects.get(pk=rollout_id)
    if who == "machine":
        turn(rollout, RolloutState.ROLLING_BACK, SYSTEM)
    else:
        person = Actor(user_id=world.people[who].pk, label=who)
        rollouts.roll_back(rollout_id=rollout_id, actor=person)
    named = f"Rollout {rollout_id} of pool p-a: rolling back."
    assert named in client.get("/").text
    rollout.refresh_from_db()
    turn(rollout, RolloutState.ROLLED_BACK, SYSTEM)
    is_named = f"Rollout {rollout_id} of pool p-a: rolled back." in client.get("/").text
    assert is_named == (who == "machine")

"""Publishing and the snapshot: one winner per base, stored once, offered until it is there."""

import threading
from typing import Any

import pytest
from django.db import DatabaseError, connection
from redis.exceptions import RedisError

from capacity.fleet.services import create_model, set_capacity_limit
from console.errors import Conflict, NotFound
from console.models import AuditEvent, Job
from routing.contracts.snapshot import Snapshot, decode_snapshot
from routing.models import Policy, PolicyVersion, SnapshotRow
from routing.policies import selectors
from routing.policies.services import PolicyRefused, publish, push_snapshot, roll_back, snapshot
from routing.store import keys
from tenants.directory.services import suspend_tenant
from tenants.keys.services import revoke_key, rotate_key
from tenants.prices.services import add_price
from tenants.quotas.services import set_limit
from tests import factories
from tests.factories import ACTOR, World

pytestmark = pytest.mark.django_db(transaction=True)

PUBLISHERS = 20


@pytest.fixture
def world(store) -> World:
    made = World()
    factories.make_tenant(made, "acme")
    factories.make_fleet(made, {"p-a": 2})
    factories.make_policy(made)
    return made


def document(**target: Any) -> dict[str, Any]:
    return {
        "name": "main",
        "models": {"llama-8b": {"aliases": ["chat"], "targets": [{"pool": "p-a", **target}]}},
    }


def in_store(store) -> Snapshot:
    return decode_snapshot(store.get(keys.SNAPSHOT))


def at_once(acts) -> list[Any]:
    ready, found = threading.Barrier(len(acts)), []

    def body(act) -> None:
        ready.wait(20)
        try:
            found.append(act())
        except (Conflict, PolicyRefused) as error:
            found.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=body, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == len(acts)
    return found


def test_of_many_publishes_on_one_base_one_wins(world):
    def one(weight: int):
        return lambda: publish(
            policy="main", document=document(weight=weight), base=1, note="", actor=ACTOR
        )

    found = at_once([one(number % 10) for number in range(PUBLISHERS)])
    won = [item for item in found if not isinstance(item, Exception)]
    assert [item.number for item in won] == [2]
    assert {item.code for item in found if isinstance(item, Exception)} == {"stale_base"}
    assert PolicyVersion.objects.count() == 2
    assert selectors.policy("main").live_number == 2


def test_the_first_publish_of_two_policies_lets_one_pass(store):
    made = World()
    factories.make_fleet(made, {"p-a": 1})

    def first(name: str):
        asked = {**document(), "name": name}
        return lambda: publish(policy=name, document=asked, base=None, note="", actor=ACTOR)

    found = at_once([first("main"), first("other")])
    assert sorted(getattr(item, "code", "won") for item in found) == ["one_policy", "won"]


def test_a_version_never_changes(world):
    with pytest.raises(DatabaseError, match="append-only"):
        PolicyVersion.objects.update(note="x")


def test_the_same_content_again_is_no_new_version(world):
    made = publish(policy="main", document=document(), base=1, note="", actor=ACTOR)
    again = publish(
        policy="main", document={**document(), "note": "x"}, base=2, note="", actor=ACTOR
    )
    assert made == again


def test_rolling_back_is_a_new_version_with_the_old_content(world):
    publish(policy="main", document=document(weight=5), base=1, note="", actor=ACTOR)
    back = roll_back(policy="main", number=1, base=2, note="", actor=ACTOR)
    first = selectors.version("main", 1)
    assert (back.number, back.digest, back.document) == (3, first.digest, first.document)
    with pytest.raises(NotFound):
        roll_back(policy="main", number=9, base=3, note="", actor=ACTOR)
    with pytest.raises(Conflict):
        roll_back(policy="main", number=1, base=2, note="", actor=ACTOR)


def test_a_model_without_a_price_is_refused_by_name(world):
    """R15: never served at 0 by accident."""
    create_model(name="beta-7b", context_tokens=8192, actor=ACTOR)
    factories.make_pools(world, {"p-beta": 1}, "beta-7b")
    asked = document()
    asked["models"]["beta-7b"] = {"targets": [{"pool": "p-beta"}]}
    with pytest.raises(PolicyRefused) as refused:
        publish(policy="main", document=asked, base=1, note="", actor=ACTOR)
    assert [(f.path, f.rule) for f in refused.value.findings] == [("models.beta-7b", "price")]
    free = {"input_nanousd": 0, "cached_nanousd": 0, "output_nanousd": 0}
    add_price(model="beta-7b", **free, actor=ACTOR)
    assert publish(policy="main", document=asked, base=1, note="", actor=ACTOR).number == 2


def test_a_pushed_snapshot_holds_everything_and_a_second_push_changes_nothing(world, store):
    number = push_snapshot()
    body = store.get(keys.SNAPSHOT)
    found = in_store(store)
    assert found.number == number == int(store.get(keys.SNAPSHOT_NUMBER))
    assert found.policy.label == "main@1"
    assert set(found.models) == {"llama-8b"}
    (tenant,) = found.tenants.values()
    assert len(tenant.limits) == 6
    assert [key.id for key in found.keys.values()] == [str(world.keys["acme"].id)]
    assert len(found.pools["p-a"].endpoints) == 2
    assert push_snapshot() == number
    assert store.get(keys.SNAPSHOT) == body
    assert SnapshotRow.objects.count() == 1


def test_every_change_that_gateways_must_know_makes_a_new_snapshot(world, store):
    tenant_id, key_id = world.tenants["acme"], world.keys["acme"].id
    limit = {"scope": "tenant", "dimension": "req", "window": "d", "amount": 1}
    acts = [
        lambda: set_limit(tenant_id=tenant_id, **limit, actor=ACTOR),
        lambda: set_limit(tenant_id=tenant_id, **{**limit, "amount": None}, actor=ACTOR),
        lambda: rotate_key(tenant_id=tenant_id, key_id=key_id, actor=ACTOR),
        lambda: revoke_key(tenant_id=tenant_id, key_id=key_id, actor=ACTOR),
        lambda: suspend_tenant(tenant_id=tenant_id, actor=ACTOR, reason="x"),
        lambda: publish(policy="main", document=document(weight=7), base=1, note="", actor=ACTOR),
        lambda: factories.make_pools(world, {"p-new": 1}),
        lambda: set_capacity_limit(pool="p-a", dimension="conc", amount=9, actor=ACTOR),
        lambda: set_capacity_limit(pool=None, dimension="req", amount=99, actor=ACTOR),
        lambda: set_capacity_limit(pool=None, dimension="req", amount=None, actor=ACTOR),
    ]
    numbers = [push_snapshot()]
    for act in acts:
        Job.objects.all().delete()
        act()
        assert Job.objects.filter(kind="push_snapshot", state="queued").count() == 1
        numbers.append(push_snapshot())
    assert numbers == sorted(set(numbers))
    assert in_store(store).number == numbers[-1]


def test_parallel_pushes_agree_on_the_newest(world, store):
    push_snapshot()
    for amount in range(5):
        limit = {"scope": "tenant", "dimension": "req", "window": "d", "amount": amount}
        set_limit(tenant_id=world.tenants["acme"], **limit, actor=ACTOR)
        numbers = at_once([push_snapshot] * 3)
        assert len(set(numbers)) == 1
        assert in_store(store).number == numbers[0] == int(store.get(keys.SNAPSHOT_NUMBER))
    assert SnapshotRow.objects.count() == 6


class Overtaken:
    """The store of a slow pusher: between its read and its write another push happens."""

    def __init__(self, real: Any, meanwhile) -> None:
        self.real, self.meanwhile = real, [meanwhile]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def pipeline(self, **options: Any) -> Any:
        while self.meanwhile:
            self.meanwhile.pop()()
        return self.real.pipeline(**options)


def test_an_older_body_written_late_is_put_right_by_its_writer(world, store, monkeypatch):
    push_snapshot()
    real = snapshot.store()
    store.flushall()

    def newer() -> None:
        monkeypatch.setattr(snapshot, "store", lambda: real)
        limit = {"scope": "tenant", "dimension": "req", "window": "d", "amount": 9}
        set_limit(tenant_id=world.tenants["acme"], **limit, actor=ACTOR)
        push_snapshot()
        monkeypatch.setattr(snapshot, "store", lambda: slow)

    slow = Overtaken(real, newer)
    monkeypatch.setattr(snapshot, "store", lambda: slow)
    push_snapshot()
    newest = SnapshotRow.objects.order_by("-number").first().number
    assert SnapshotRow.objects.count() == 2
    assert in_store(store).number == newest == int(store.get(keys.SNAPSHOT_NUMBER))


def test_an_emptied_store_gets_the_newest_again(world, store):
    number = push_snapshot()
    store.flushall()
    assert push_snapshot() == number
    assert in_store(store).number == number


def test_a_store_that_is_away_keeps_the_row_for_the_next_push(world, store, monkeypatch):
    def away() -> Any:
        raise RedisError("away")

    real = snapshot.store
    monkeypatch.setattr(snapshot, "store", away)
    with pytest.raises(RedisError):
        push_snapshot()
    assert SnapshotRow.objects.count() == 1
    monkeypatch.setattr(snapshot, "store", real)
    number = push_snapshot()
    assert SnapshotRow.objects.get().number == number == in_store(store).number


def test_only_recent_bodies_are_kept(world):
    for amount in range(snapshot.BODIES_KEPT + 3):
        limit = {"scope": "tenant", "dimension": "req", "window": "d", "amount": amount}
        set_limit(tenant_id=world.tenants["acme"], **limit, actor=ACTOR)
        push_snapshot()
    assert SnapshotRow.objects.count() == snapshot.BODIES_KEPT + 3
    assert SnapshotRow.objects.filter(body__isnull=False).count() == snapshot.BODIES_KEPT


def test_without_a_live_policy_nothing_is_pushed(store):
    assert push_snapshot() == 0
    assert store.get(keys.SNAPSHOT) is None


def test_acknowledgements_name_who_is_behind_and_forget_the_silent(world, store):
    number = push_snapshot()
    factories.beat(store, gateways=2, snapshot=number)
    factories.beat(store, gateways=1, snapshot=number - 1)
    found = selectors.acks()
    assert [(ack.gateway_id, ack.is_current) for ack in found.gateways] == [
        ("g0", False),
        ("g1", True),
    ]
    factories.beat(store, gateways=2, snapshot=number, age_ms=60_000)
    assert selectors.acks().gateways == ()
    assert selectors.acks().is_known


# -- a database that went back to a backup ------------------------------------------------------


def _go_back(number: int) -> None:
    """As restored from a dump taken when `number` was the newest snapshot, sequence included."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM routing_snapshotrow WHERE number > %s", [number])
        cursor.execute(
            "SELECT setval(pg_get_serial_sequence('routing_snapshotrow', 'number'), %s)", [number]
        )


def test_numbers_jump_ahead_of_what_gateways_ran_before_the_restore(store, world):
    first = push_snapshot()
    for amount in (50, 60, 70):
        set_limit(
            tenant_id=world.tenants["acme"],
            scope="tenant",
            dimension="req",
            window="m",
            amount=amount,
            actor=ACTOR,
        )
        newest = push_snapshot()
    assert newest == first + 3
    _go_back(first)
    jumped = push_snapshot()
    assert jumped == newest + 1 == in_store(store).number
    assert push_snapshot() == jumped, "once"
    set_limit(
        tenant_id=world.tenants["acme"],
        scope="tenant",
        dimension="req",
        window="m",
        amount=80,
        actor=ACTOR,
    )
    assert push_snapshot() == jumped + 1
    event = AuditEvent.objects.get(act="policy.database_went_back")
    assert event.before["snapshot"] == newest


def test_lost_policy_version_is_never_given_out_again(store, world):
    push_snapshot()
    lost = publish(policy="main", document=document(weight=3), base=1, note="", actor=ACTOR)
    newest = push_snapshot()
    with connection.cursor() as cursor:
        cursor.execute("UPDATE routing_policy SET live_id = NULL")
        cursor.execute("ALTER TABLE routing_policyversion DISABLE TRIGGER USER")
        cursor.execute("DELETE FROM routing_snapshotrow WHERE number = %s", [newest])
        cursor.execute("DELETE FROM routing_policyversion WHERE number = %s", [lost.number])
        cursor.execute("ALTER TABLE routing_policyversion ENABLE TRIGGER USER")
    Policy.objects.update(live=PolicyVersion.objects.get(number=1))
    push_snapshot()
    assert in_store(store).policy.version == lost.number + 1
    assert in_store(store).number > newest
    again = PolicyVersion.objects.get(number=lost.number + 1)
    assert again.document == PolicyVersion.objects.get(number=1).document
    assert "went back" in again.note


def test_gateway_that_runs_a_higher_number_counts_too(store, world):
    """The store was emptied as well: only the gateways still know the number."""
    number = push_snapshot()
    store.flushall()
    factories.beat(store, snapshot=number + 9)
    assert push_snapshot() == number + 10 == in_store(store).number

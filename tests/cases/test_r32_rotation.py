"""R32: rotating a key keeps its identity and honours the grace time (what gateways are told)."""

import time
from datetime import timedelta

import pytest
from django.conf import settings
from django.utils import timezone

from console.errors import Conflict, InvalidInput
from routing.contracts.digest import keyed_digest
from tenants.keys.selectors import key, keys_for_snapshot
from tenants.keys.services import IssuedKey, revoke_key, rotate_key
from tenants.models import ApiKey
from tests import factories
from tests.factories import ACTOR, World
from tests.managing import Manager, managed_gateway, managed_world
from tests.stack import wait_until
from tests.upstream import UpstreamThread, answer, json_script, usage

pytestmark = pytest.mark.django_db


@pytest.fixture
def world(store) -> World:
    made = World()
    factories.make_tenant(made, "acme")
    return made


def rotate(world: World, **asked) -> IssuedKey:
    return rotate_key(
        tenant_id=world.tenants["acme"], key_id=world.keys["acme"].id, actor=ACTOR, **asked
    )


def entry_of(secret: str, after_s: float = 0):
    """What gateways know of a secret, compiled so much later."""
    digest = keyed_digest(settings.KEY_PEPPER.encode(), secret.encode())
    return keys_for_snapshot(timezone.now() + timedelta(seconds=after_s)).get(digest)


def test_both_secrets_are_one_key_until_the_grace_ends(world):
    old = world.keys["acme"]
    new = rotate(world, grace_s=60)
    before, after = entry_of(old.secret), entry_of(new.secret)
    assert before.id == after.id == str(old.id)
    assert after.expires_at_ms is None
    left_s = before.expires_at_ms / 1000 - timezone.now().timestamp()
    assert 58 < left_s <= 60, "gateways end the old one to the second by themselves"
    assert entry_of(old.secret, after_s=61) is None
    assert entry_of(new.secret, after_s=61) is not None


def test_the_key_keeps_its_row_and_its_limits(world):
    old = world.keys["acme"]
    limits = set(ApiKey.objects.get(pk=old.id).limits.values_list("pk", flat=True))
    assert limits
    rotate(world, grace_s=60)
    row = ApiKey.objects.get(tenant_id=world.tenants["acme"])
    assert row.pk == old.id
    assert set(row.limits.values_list("pk", flat=True)) == limits


def test_a_repeated_call_is_the_same_rotation(world):
    first = rotate(world, grace_s=60, idempotency_key="lost-answer-1")
    again = rotate(world, grace_s=60, idempotency_key="lost-answer-1")
    assert first == again
    assert entry_of(world.keys["acme"].secret) is not None, "the first secret still works"
    assert len(keys_for_snapshot(timezone.now())) == 2, "no third secret"


@pytest.mark.parametrize("grace_s", [-1, 7 * 24 * 3600 + 1])
def test_an_invalid_grace_changes_nothing(world, grace_s):
    row = ApiKey.objects.values().get()
    with pytest.raises(InvalidInput) as refused:
        rotate(world, grace_s=grace_s)
    assert refused.value.field == "grace_s"
    assert ApiKey.objects.values().get() == row


def test_a_second_rotation_does_not_cut_a_running_grace_short(world):
    rotate(world, grace_s=60)
    with pytest.raises(Conflict) as refused:
        rotate(world, grace_s=60)
    assert refused.value.code == "rotation_in_progress"
    newest = rotate(world, grace_s=0)
    (only,) = keys_for_snapshot(timezone.now()).values()
    assert only.prefix == newest.prefix


def test_revoking_ends_both_secrets_at_once(world):
    new = rotate(world, grace_s=60)
    revoke_key(tenant_id=world.tenants["acme"], key_id=new.id, actor=ACTOR)
    assert keys_for_snapshot(timezone.now()) == {}
    assert key(world.tenants["acme"], new.id).revoked_at is not None
    with pytest.raises(Conflict):
        rotate(world, grace_s=0)


def test_a_keys_own_end_comes_before_a_longer_grace(world):
    soon = timezone.now() + timedelta(seconds=30)
    ApiKey.objects.update(expires_at=soon)
    rotate(world, grace_s=3600)
    ends = {entry.expires_at_ms for entry in keys_for_snapshot(timezone.now()).values()}
    assert ends == {int(soon.timestamp() * 1000)}


@pytest.mark.django_db(transaction=True)
def test_gateways_honour_the_grace_to_the_second_and_count_on(store, tmp_path):
    """Both secrets work on two processes until the grace ends; `spent` goes on over both."""
    grace_s = 4
    with UpstreamThread() as upstream:
        world = managed_world(upstream, "acme")
        upstream.plan(json_script(answer(used=usage(10, 5))))
        key_id, old = world.keys["acme"].id, world.keys["acme"].secret
        manager = Manager(world)
        limit = {"scope": "key", "key_id": key_id, "dimension": "req", "window": "d"}
        manager.call("put", "tenants/acme/limits/", {**limit, "amount": 1000})
        with (
            managed_gateway(world, store, tmp_path / "a") as first,
            managed_gateway(world, store, tmp_path / "b", HEADRACE_GATEWAY_ID="g1") as second,
        ):

            def statuses(secret: str) -> list[int]:
                return [g.chat(secret, model="llama-8b").status_code for g in (first, second)]

            assert statuses(old) == [200, 200]
            rotated = manager.call(
                "post", f"tenants/acme/keys/{key_id}/rotate/", {"grace_s": grace_s}
            )
            start_s = time.monotonic()
            new = rotated.json()["secret"]
            wait_until(lambda: statuses(new) == [200, 200], 2, "new secret known")
            while time.monotonic() - start_s < grace_s - 1:
                assert statuses(old) == [200, 200]
                time.sleep(0.3)
            wait_until(lambda: statuses(old) == [401, 401], grace_s + 5, "old secret ended")
            assert time.monotonic() - start_s > grace_s - 0.5
            assert statuses(new) == [200, 200]
            served = len(upstream.requests)

            def used() -> int:
                (row,) = manager.call("get", "tenants/acme/limits/").json()
                return row["used"] + row["held"]

            wait_until(lambda: used() == served, 5, "counted on one key")

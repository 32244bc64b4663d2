"""Hooks as rows: who may be called, what is kept of a secret, and that gateways follow."""

from typing import Any

import pytest

from console.errors import Conflict, DomainError, InvalidInput, NotFound
from console.models import AuditEvent
from routing.contracts.hooks import HookReport, HookVerdict
from routing.contracts.sealing import hook_purpose, open_sealed
from routing.contracts.snapshot import decode_snapshot
from routing.hooks.selectors import hook, hooks, hooks_for_snapshot, state_of
from routing.hooks.services import add_hook, change_hook, remove_hook
from routing.models import Hook, SnapshotRow
from routing.policies.services import publish, push_snapshot
from telemetry.stats.sketch import index_of
from tests import factories
from tests.factories import ACTOR, World
from tests.pages import client_of

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = "a-secret-of-this-test-0123456789"
URL = "https://guard.example.com/check?v=1"


@pytest.fixture
def world(store) -> World:
    made = World()
    factories.make_tenant(made, "acme")
    factories.make_people(made)
    factories.make_fleet(made, {"p-a": 1})
    factories.make_policy(made, versions=1)
    return made


def added(name: str = "pii", **changes: Any) -> Any:
    values = {"kind": "webhook", "url": URL, "secret": SECRET, **changes}
    return add_hook(name=name, actor=ACTOR, **values)


def published(*rules: dict[str, Any]) -> None:
    models = {"llama-8b": {"targets": [{"pool": "p-a"}]}}
    document: dict[str, Any] = {"name": "main", "models": models, "hooks": list(rules)}
    publish(policy="main", document=document, base=1, note="hooks", actor=ACTOR)


def test_a_webhook_is_kept_with_its_secret_sealed_for_it_alone(world: World, settings: Any) -> None:
    made = added()
    assert (made.found_at, made.secret_hint, made.uses) == (URL, SECRET[-4:], ())
    row = Hook.objects.get()
    assert SECRET.encode() not in bytes(row.sealed_secret)
    pepper = settings.KEY_PEPPER.encode()
    assert open_sealed(pepper, hook_purpose("pii"), bytes(row.sealed_secret)) == SECRET
    entry = hooks_for_snapshot()["pii"]
    assert (entry.host, entry.port, entry.path, entry.has_tls) == (
        "guard.example.com",
        443,
        "/check?v=1",
        True,
    )
    trail = list(AuditEvent.objects.filter(act="hook.add").values_list("after", flat=True))
    assert [one["secret_ends_with"] for one in trail] == [SECRET[-4:]]
    assert SECRET not in str(trail)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "Pii"}, "name"),
        ({"name": "x" * 41}, "name"),
        ({"kind": "lua"}, "kind"),
        ({"url": "ftp://guard.example.com/"}, "url"),
        ({"url": "https://user:pass@guard.example.com/"}, "url"),
        ({"url": "https://guard.example.com/#x"}, "url"),
        ({"url": "https://guard.example.com/a b"}, "url"),
        ({"url": "https://guard.example.com:0/"}, "url"),
        ({"url": "https:///check"}, "url"),
        ({"url": "http://guard.example.com/check"}, "url"),  # prompts in the clear
        ({"url": "https://127.0.0.1/check"}, "url"),
        ({"url": "https://2130706433/check"}, "url"),  # the same in decimal
        ({"url": "https://localhost/check"}, "url"),
        ({"url": "https://169.254.169.254/latest"}, "url"),
        ({"url": "https://[::1]/check"}, "url"),
        ({"secret": "short"}, "secret"),
        ({"secret": "with space " * 3}, "secret"),
        ({"secret": ""}, "secret"),
        ({"entry_point": "x"}, "entry_point"),
        ({"kind": "python", "url": "", "secret": ""}, "entry_point"),
        ({"kind": "python", "url": URL, "secret": "", "entry_point": "x"}, "url"),
        ({"kind": "python", "url": "", "entry_point": "x"}, "secret"),
    ],
)
def test_what_cannot_be_a_hook_is_refused_with_its_field(
    world: World, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        added(**{"name": "pii", **changes})
    assert refused.value.field == field
    assert refused.value.hint or field == "secret"
    assert not Hook.objects.exists()


def test_a_host_inside_is_for_who_runs_headrace_to_allow(world: World, settings: Any) -> None:
    settings.PRIVATE_HOOKS = frozenset({"guard.internal", "127.0.0.1"})
    assert added("one", url="http://guard.internal:9000/check").url.startswith("http://")
    assert added("two", url="https://127.0.0.1/check").url == "https://127.0.0.1/check"
    with pytest.raises(InvalidInput):
        added("three", url="http://127.0.0.2/check")


def test_names_are_unique_and_changes_keep_what_is_not_said(world: World) -> None:
    added()
    with pytest.raises(Conflict) as taken:
        added()
    assert taken.value.field == "name"
    before = bytes(Hook.objects.get().sealed_secret)
    assert change_hook(name="pii", purpose="Names and numbers", actor=ACTOR).purpose
    assert bytes(Hook.objects.get().sealed_secret) == before
    change_hook(name="pii", secret=SECRET[::-1], actor=ACTOR)
    row = Hook.objects.get()
    assert (row.secret_hint, row.url) == (SECRET[::-1][-4:], URL)
    change_hook(name="pii", url=URL, actor=ACTOR)  # as it is: nothing to record
    assert AuditEvent.objects.filter(act="hook.change").count() == 2
    with pytest.raises(NotFound):
        change_hook(name="none", actor=ACTOR)


def test_a_policy_names_hooks_and_the_snapshot_carries_them(world: World) -> None:
    rule = {"hook": "pii", "at": "before", "deadline_ms": 150}
    with pytest.raises(DomainError) as unknown:
        published(rule)
    assert unknown.value.field == "hooks[0].hook"
    added()
    added("idle")
    published(rule)
    push_snapshot()
    snapshot = decode_snapshot(bytes(SnapshotRow.objects.order_by("-number").first().body))
    assert [(use.hook, use.deadline_s) for use in snapshot.policy.hooks] == [("pii", 0.15)]
    assert sorted(snapshot.hooks) == ["pii"]
    number = snapshot.number
    change_hook(name="pii", url="https://other.example.com/", actor=ACTOR)
    assert push_snapshot() == number + 1
    assert [use.words for use in hook("pii").uses] == ["main@2 before, 150 ms, else refuse"]
    with pytest.raises(Conflict) as used:
        remove_hook(name="pii", actor=ACTOR)
    assert used.value.code == "hook_in_use"
    remove_hook(name="idle", actor=ACTOR)
    assert [one.name for one in hooks()] == ["pii"]
    assert AuditEvent.objects.filter(act="hook.remove").count() == 1


def test_what_gateways_say_is_added_up() -> None:
    fast, slow = index_of(0.01), index_of(0.5)
    one = HookReport({HookVerdict.PASS: 90, HookVerdict.FAILED: 2}, ((fast, 90),), "closed", "a", 5)
    two = HookReport({HookVerdict.REFUSE: 8, HookVerdict.SKIPPED: 3}, ((slow, 10),), "open", "b", 9)
    found = state_of([one, two])
    assert (found.state, found.gateways, found.calls) == ("failing", 2, 100)
    assert (found.passed, found.refused, found.failed, found.skipped) == (90, 8, 2, 3)
    assert found.error == "b"
    assert found.p95_s == pytest.approx(0.5, rel=0.02)
    assert (state_of([]).state, state_of([HookReport()]).state) == ("unused", "idle")


def test_pages_add_change_and_remove_and_say_what_to_do_next(world: World, settings: Any) -> None:
    client = client_of(world, "ana")
    assert "No hook" in client.get("/hooks/").content.decode()
    inside = {"name": "pii", "kind": "webhook", "url": "https://10.0.0.1/x", "secret": SECRET}
    refused = client.post("/new-hook/", inside)
    assert refused.status_code == 422
    assert "HEADRACE_PRIVATE_HOOKS" in refused.content.decode()
    assert SECRET not in refused.content.decode()
    assert client.post("/new-hook/", {**inside, "url": URL}).status_code == 302
    changed = {"url": URL, "secret": "", "purpose": "Names"}
    assert client.post("/hooks/pii/", changed).status_code == 302
    assert (hook("pii").purpose, hook("pii").secret_hint) == ("Names", SECRET[-4:])
    shown = client.get("/hooks/").content.decode() + client.get("/hooks/pii/").content.decode()
    assert URL in shown
    assert SECRET not in shown
    published({"hook": "pii", "at": "before"})
    held = client.post("/hooks/pii/remove/")
    assert held.status_code == 409
    assert "Publish a policy without it first." in held.content.decode()
    publish(
        policy="main",
        document={"name": "main", "models": {"llama-8b": {"targets": [{"pool": "p-a"}]}}},
        base=2,
        note="without",
        actor=ACTOR,
    )
    assert client.post("/hooks/pii/remove/").status_code == 302
    assert hooks() == []

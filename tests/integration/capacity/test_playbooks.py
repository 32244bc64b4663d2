"""Playbooks over real rows and the real store: they act, help, release, and can be taken back."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from django.test import Client

from capacity.models import Playbook, PlaybookRun, PlaybookWatch, Replica
from capacity.playbooks import selectors
from capacity.playbooks.rules import SHIPPED, to_plain
from capacity.playbooks.services import (
    ensure_shipped,
    evaluate_playbooks,
    publish_document,
    set_mode,
    undo_run,
)
from console.audit.rules import Actor
from console.errors import Conflict, InvalidInput
from console.models import AuditEvent
from routing.models import Override
from tests import factories
from tests.factories import ACTOR, World
from tests.playbooking import Clock, clock, minutes_before, offers

pytestmark = pytest.mark.django_db
ANA = Actor(user_id=None, label="ana")
QUIET, LOUD = 40_000, 200_000


@pytest.fixture
def world(store: Any) -> World:
    made = World()
    for slug in ("acme", "globex"):
        factories.make_tenant(made, slug)
    factories.make_people(made)
    factories.make_fleet(made, {"p-a": 4})
    ensure_shipped()
    return made


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    with clock(monkeypatch) as moved:
        yield moved


class Noisy:
    """The noisy tenant's playbook, evaluated every five seconds of the clock."""

    def __init__(self, world: World, store: Any, at: Clock, mode: str = "armed") -> None:
        self.world, self.store, self.at = world, store, at
        for slug in ("acme", "globex"):
            minutes_before(world.tenants[slug], at.now, [QUIET] * 5)
        set_mode(name="capacity-lost", mode="off", actor=ACTOR)
        set_mode(name="noisy-tenant", mode=mode, actor=ACTOR)

    def goes(self, globex: int, seconds: int = 5, **total: Any) -> None:
        """That much is offered, for so long."""
        for _ in range(seconds // 5):
            ids = self.world.tenants
            offers(self.store, {ids["acme"]: QUIET, ids["globex"]: globex}, **total)
            self.at.forward(5)
            evaluate_playbooks()

    def run(self) -> PlaybookRun:
        return PlaybookRun.objects.latest("id")


def in_force(at: Clock) -> list[tuple[str, str, str, str, int]]:
    rows = Override.objects.filter(lifted_at=None, ends_at__gt=at.now).order_by(
        "kind", "work_class"
    )
    return [(row.kind, row.tenant_slug, row.work_class, row.model, row.amount) for row in rows]


CAPS = [
    ("concurrency_cap", "globex", "", "", 4),
    ("context_cap", "globex", "", "", 4096),
]


def test_a_noisy_tenant_is_contained_and_released_and_others_are_left_alone(
    world: World, store: Any, at: Clock
) -> None:
    noisy = Noisy(world, store, at)
    noisy.goes(QUIET, 30)
    assert in_force(at) == []
    noisy.goes(LOUD, 10)
    assert in_force(at) == []  # not sustained yet
    noisy.goes(LOUD, 5, ttft_p95_s=1.2)
    assert in_force(at) == CAPS
    run = noisy.run()
    assert (run.label, run.is_dry_run, run.baseline) == ("globex", False, QUIET)
    assert run.start_value == LOUD / QUIET
    noisy.goes(LOUD, 60, ttft_p95_s=0.3)
    act = selectors.run(run.pk).acts[0]
    assert act.before["ttft_p95_s"] == 1.2
    assert act.after["ttft_p95_s"] == 0.3
    noisy.goes(QUIET, 30)
    assert in_force(at) == CAPS
    noisy.goes(QUIET, 10)
    assert in_force(at) == []
    run = noisy.run()
    assert run.ended_at is not None
    assert run.end_reason == "The signal has ended."
    assert selectors.run(run.pk).acts[0].undone_by == "playbook:noisy-tenant"
    acts = list(AuditEvent.objects.order_by("id").values_list("act", flat=True))
    kept = [act for act in acts if act.startswith(("playbook.engage", "playbook.undo", "override"))]
    assert kept == [
        "override.set", "override.set", "playbook.engage",
        "override.lift", "override.lift", "playbook.undo",
    ]  # fmt: skip


def test_the_baseline_is_frozen_while_it_is_contained(world: World, store: Any, at: Clock) -> None:
    """Containment lowers what is admitted; measured against that, the signal would never end."""
    noisy = Noisy(world, store, at)
    noisy.goes(LOUD, 20)
    assert in_force(at) == CAPS
    minutes_before(world.tenants["globex"], at.now + timedelta(minutes=7), [1] * 5)
    noisy.goes(QUIET, 45)
    assert in_force(at) == []
    assert noisy.run().baseline == QUIET


def test_a_dry_run_decides_and_records_the_same_and_touches_nothing(
    world: World, store: Any, at: Clock
) -> None:
    noisy = Noisy(world, store, at, mode="dry_run")
    noisy.goes(LOUD, 20)
    assert Override.objects.count() == 0
    run = selectors.run(noisy.run().pk)
    assert run.run.state == "watching"
    assert [one["id"] for one in run.acts[0].overrides] == [None, None]
    assert "4,096" in run.acts[0].overrides[0]["words"]
    noisy.goes(QUIET, 45)
    assert noisy.run().ended_at is not None


def test_a_small_or_unknown_tenant_is_nobodys_trouble(world: World, store: Any, at: Clock) -> None:
    noisy = Noisy(world, store, at)
    new = factories.make_tenant(world, "newcomer")
    for _ in range(6):
        offers(store, {new: LOUD, world.tenants["acme"]: 19_000})
        at.forward(5)
        evaluate_playbooks()
    assert noisy.world and PlaybookRun.objects.count() == 0


def test_an_unknown_signal_arms_nothing_and_holds_nothing_for_ever(
    world: World, store: Any, at: Clock
) -> None:
    noisy = Noisy(world, store, at)
    noisy.goes(LOUD, 20)
    store.flushall()  # the collector is gone
    for _ in range(13):
        at.forward(5)
        evaluate_playbooks()
    assert in_force(at) == []
    assert "unknown" in noisy.run().end_reason


def test_the_lease_is_renewed_while_somebody_evaluates_and_ends_when_nobody_does(
    world: World, store: Any, at: Clock
) -> None:
    noisy = Noisy(world, store, at)
    noisy.goes(LOUD, 200)
    assert in_force(at) == CAPS
    assert Override.objects.count() == 2  # the same two, held longer
    at.forward(121)  # console and worker are dead
    assert in_force(at) == []
    noisy.goes(LOUD)
    assert "by itself" in noisy.run().end_reason


def test_a_person_undoes_a_run_in_one_act_and_is_not_overruled(
    world: World, store: Any, at: Clock
) -> None:
    noisy = Noisy(world, store, at)
    noisy.goes(LOUD, 20)
    client = Client()
    client.force_login(world.people["ola"])
    run = noisy.run()
    path = f"/playbooks/noisy-tenant/runs/{run.pk}/"
    assert f"Undo run {run.pk}" in client.get(path).text
    assert client.post(f"{path}undo/").status_code == 302
    assert in_force(at) == []
    run.refresh_from_db()
    assert run.end_reason == "ola undid it."
    noisy.goes(LOUD, 120)
    assert in_force(at) == []
    assert undo_run(run_id=run.pk, actor=ANA)[1] is False
    at.forward(900)
    minutes_before(world.tenants["globex"], at.now, [QUIET] * 5)
    noisy.goes(LOUD, 20)
    assert in_force(at) == CAPS


@pytest.mark.parametrize("act", ["off", "dry_run", "publish"])
def test_a_playbook_that_changes_undoes_its_runs_first(
    world: World, store: Any, at: Clock, act: str
) -> None:
    noisy = Noisy(world, store, at)
    noisy.goes(LOUD, 20)
    if act == "publish":
        changed = msgspec.structs.replace(SHIPPED["noisy-tenant"], title="Noisier")
        plain = to_plain(changed)
        publish_document(name="noisy-tenant", document=plain, base=1, note="", actor=ANA)
    else:
        set_mode(name="noisy-tenant", mode=act, actor=ANA)
    assert in_force(at) == []
    assert noisy.run().ended_at is not None
    assert PlaybookWatch.objects.count() == 0


def test_a_document_needs_its_base_and_names_the_field_at_fault(world: World) -> None:
    plain = to_plain(SHIPPED["noisy-tenant"])
    same, changed = publish_document(
        name="noisy-tenant", document=plain, base=1, note="", actor=ANA
    )
    assert (same.version, changed) == (1, False)
    with pytest.raises(Conflict) as stale:
        publish_document(name="noisy-tenant", document=plain, base=7, note="", actor=ANA)
    assert stale.value.code == "stale_base"
    plain["steps"][0]["leave"] = 9
    with pytest.raises(InvalidInput) as refused:
        publish_document(name="noisy-tenant", document=plain, base=1, note="", actor=ANA)
    assert refused.value.field == "steps[0].leave"


def lose(world: World, *ordinals: int) -> None:
    """These replicas have failed and are starting again; all others are ready."""
    for row in Replica.objects.filter(pool__name="p-a"):
        is_lost = row.ordinal in ordinals
        row.lifecycle = "loading" if is_lost else "ready"
        row.handle = {"failures": 1 if is_lost else 0}
        row.save()


PAUSE = ("pause", "", "batch", "llama-8b", 0)
CAP_BATCH = ("output_cap", "", "batch", "llama-8b", 1024)
CAP_STANDARD = ("output_cap", "", "standard", "llama-8b", 1024)
SHED = ("shed", "", "standard", "llama-8b", 0)


def test_lost_capacity_pauses_caps_and_sheds_by_class_and_resumes_last_in_first_out(
    world: World, store: Any, at: Clock
) -> None:
    set_mode(name="capacity-lost", mode="armed", actor=ACTOR)
    set_mode(name="noisy-tenant", mode="off", actor=ACTOR)

    def goes(*lost: int, seconds: int = 5) -> list[Any]:
        lose(world, *lost)
        for _ in range(seconds // 5):
            at.forward(5)
            evaluate_playbooks()
        return in_force(at)

    assert goes() == []
    assert goes(0) == [PAUSE]  # a quarter: at once, without a hold
    assert goes(0, 1) == [CAP_BATCH, CAP_STANDARD, PAUSE]
    assert goes(0, 1, 2, 3) == [CAP_BATCH, CAP_STANDARD, PAUSE, SHED]
    assert goes(0, 1, 2, seconds=60) == [CAP_BATCH, CAP_STANDARD, PAUSE, SHED]  # in the band
    assert goes(0, seconds=35) == [CAP_BATCH, CAP_STANDARD, PAUSE]
    assert goes(seconds=35) == [PAUSE]
    assert goes(seconds=35) == []
    run = PlaybookRun.objects.get()
    assert (run.label, run.end_reason) == ("p-a", "The signal has ended.")
    titles = [act.title for act in selectors.run(run.pk).acts]
    assert titles == [step.title for step in SHIPPED["capacity-lost"].steps]


def test_replicas_that_start_for_the_first_time_or_drain_are_not_lost(
    world: World, store: Any, at: Clock
) -> None:
    set_mode(name="capacity-lost", mode="armed", actor=ACTOR)
    Replica.objects.update(lifecycle="loading", handle={})
    evaluate_playbooks()
    Replica.objects.update(lifecycle="draining")
    evaluate_playbooks()
    assert PlaybookRun.objects.count() == 0
    Replica.objects.update(lifecycle="ready")
    factories.scrape(store, "p-a", r0={"health": "lost"}, r1={"health": "hung"})
    evaluate_playbooks()
    assert PlaybookRun.objects.get().start_value == 0.5


@pytest.mark.django_db(transaction=True)
def test_one_evaluation_of_a_playbook_at_a_time(world: World, store: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from django.db import connection, transaction

    set_mode(name="capacity-lost", mode="armed", actor=ACTOR)
    for other_one in ("noisy-tenant", "queue-grows"):
        set_mode(name=other_one, mode="off", actor=ACTOR)
    lose(world, 0)

    def other() -> int:
        try:
            return evaluate_playbooks().playbooks
        finally:
            connection.close()

    with transaction.atomic(), ThreadPoolExecutor(1) as threads:
        Playbook.objects.select_for_update().get(name="capacity-lost")
        assert threads.submit(other).result(10) == 0
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: other(), range(4)))
    assert PlaybookRun.objects.count() == 1
    assert Override.objects.count() == 1

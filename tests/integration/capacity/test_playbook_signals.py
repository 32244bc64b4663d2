"""Queue, KV and burn as signals of playbooks, what a gateway's callers feel, and asking first."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from capacity.models import PlaybookRun
from capacity.playbooks import selectors
from capacity.playbooks.rules import SHIPPED, to_plain
from capacity.playbooks.services import (
    approve_run,
    ensure_shipped,
    evaluate_playbooks,
    publish_document,
    set_mode,
)
from console.accounts.services import issue_token
from console.audit.rules import Actor
from console.errors import Conflict
from console.models import AuditEvent
from routing.models import Override
from routing.overrides.services import push_overrides
from telemetry.models import Objective, ObjectiveMinute
from tests import factories
from tests.factories import ACTOR, World
from tests.managing import managed_gateway, managed_world
from tests.playbooking import Clock, clock
from tests.stack import wait_until
from tests.upstream import UpstreamThread, answer, json_script, usage

pytestmark = pytest.mark.django_db
ANA = Actor(user_id=None, label="ana")
CAPS = [("output_cap", "batch", 1024), ("output_cap", "standard", 1024)]
PAUSE = ("pause", "batch", 0)
BUSY = {"waiting": 40, "queue_mean_s": 3.0}
CALM = {"waiting": 0, "queue_mean_s": None}


@pytest.fixture
def world(store: Any) -> World:
    made = World()
    factories.make_tenant(made, "acme")
    factories.make_people(made)
    factories.make_fleet(made, {"p-a": 2})
    ensure_shipped()
    return made


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    with clock(monkeypatch) as moved:
        yield moved


def goes(store: Any, at: Clock, seconds: int, **by_replica: Any) -> list[tuple[str, str, int]]:
    """That is reported for so long; what is in force then."""
    for _ in range(seconds // 5):
        factories.scrape(store, "p-a", **by_replica)
        at.forward(5)
        evaluate_playbooks()
    rows = Override.objects.filter(lifted_at=None, ends_at__gt=at.now)
    return sorted((row.kind, row.work_class, row.amount) for row in rows)


def over_rest(world: World, name: str, path: str) -> Any:
    secret = issue_token(user_id=world.people[name].pk, name="t", actor=ACTOR).secret
    headers = {"Authorization": f"Bearer {secret}"}
    return Client().post(
        f"/api/v1{path}approve/", "{}", content_type="application/json", headers=headers
    )


def only(name: str, mode: str) -> None:
    for one in SHIPPED:
        set_mode(name=one, mode=mode if one == name else "off", actor=ACTOR)


def test_a_growing_queue_caps_then_pauses_and_lets_go_last_in_first_out(
    world: World, store: Any, at: Clock
) -> None:
    only("queue-grows", "armed")
    busy, middle = {"r0": BUSY, "r1": BUSY}, {"r0": {"waiting": 3, "queue_mean_s": 1.2}, "r1": CALM}
    assert goes(store, at, 10, **busy) == []
    assert goes(store, at, 5, **busy) == CAPS
    assert goes(store, at, 20, **busy) == [*CAPS, PAUSE]
    assert goes(store, at, 90, **middle) == [*CAPS, PAUSE]  # between the levels nothing changes
    assert goes(store, at, 70, r0=CALM, r1=CALM) == CAPS
    assert goes(store, at, 70, r0=CALM, r1=CALM) == []
    run = PlaybookRun.objects.get()
    assert (run.label, run.start_value, run.end_reason) == ("p-a", 3.0, "The signal has ended.")


def test_engines_that_say_nothing_neither_start_a_run_nor_keep_one(
    world: World, store: Any, at: Clock
) -> None:
    only("queue-grows", "armed")
    stuck = {"waiting": 40, "queue_mean_s": None}
    assert goes(store, at, 30, r0=stuck, r1=stuck) == []
    goes(store, at, 15, r0=BUSY, r1=BUSY)
    goes(store, at, 70, r0={**BUSY, "health": "stale"}, r1={**BUSY, "health": "lost"})
    assert "unknown" in PlaybookRun.objects.get().end_reason


def test_kv_occupancy_is_a_signal(world: World, store: Any, at: Clock) -> None:
    plain = to_plain(SHIPPED["queue-grows"])
    plain |= {"title": "KV fills", "signal": "pool_kv_ratio"}
    plain["steps"] = [{**plain["steps"][1], "enter": 0.85, "leave": 0.7}]
    publish_document(name="kv-fills", document=plain, base=None, note="", actor=ACTOR)
    set_mode(name="kv-fills", mode="armed", actor=ACTOR)
    low, high = {"kv_usage_ratio": 0.7}, {"kv_usage_ratio": 0.98}
    assert goes(store, at, 20, r0=low, r1=high) == []  # 0.84 on the mean
    assert goes(store, at, 15, r0={"kv_usage_ratio": 0.8}, r1=high) == [PAUSE]
    assert selectors.run(PlaybookRun.objects.get().pk).unit == "of its KV in use"


def test_burn_of_an_objective_is_a_signal_once_both_windows_say_so(
    world: World, store: Any, at: Clock
) -> None:
    plain = to_plain(SHIPPED["queue-grows"])
    plain |= {"title": "Budget burns", "signal": "objective_burn"}
    plain["steps"] = [{**plain["steps"][1], "enter": 14.4, "leave": 6.0}]
    publish_document(name="budget-burns", document=plain, base=None, note="", actor=ACTOR)
    set_mode(name="budget-burns", mode="armed", actor=ACTOR)
    promise = Objective.objects.create(
        work_class="interactive", model="", metric="ttft", threshold_ms=500, target_ratio=0.99
    )

    def judged(minutes_ago: int, total: int, good: int) -> None:
        minute = at.now.replace(second=0, microsecond=0) - timedelta(minutes=minutes_ago)
        ObjectiveMinute.objects.create(
            objective_id=promise.pk, minute_at=minute, total=total, good=good
        )

    judged(30, 1000, 500)
    assert goes(store, at, 20) == []  # it was bad: the last five minutes are not
    judged(2, 1000, 500)
    assert goes(store, at, 15) == [PAUSE]
    run = PlaybookRun.objects.get()
    assert (run.label, round(run.start_value, 6)) == ("any model / interactive", 50.0)
    held = selectors.run(run.pk).acts[0].overrides[0]["words"]
    assert "model" not in held.replace("any model", "")
    promise.delete()  # an objective that is gone burns nothing
    assert goes(store, at, 70) == []


def test_one_that_asks_first_touches_nothing_until_a_person_approves(
    world: World, store: Any, at: Clock
) -> None:
    only("queue-grows", "ask")
    busy = {"r0": BUSY, "r1": BUSY}
    assert goes(store, at, 15, **busy) == []
    run = PlaybookRun.objects.get()
    assert selectors.run_view(run).state == "asking"
    path = f"/playbooks/queue-grows/runs/{run.pk}/"
    client = Client()
    client.force_login(world.people["ola"])  # may act, may not arm
    assert "Needs the permission playbook_arm" in client.get(path).text
    assert client.post(f"{path}approve/").status_code == 403
    assert over_rest(world, "ola", path).status_code == 403
    client.force_login(world.people["ada"])
    assert f"Approve run {run.pk}" in client.get(path).text
    for listed, badges in (("/playbooks/", 2), ("/playbooks/queue-grows/", 2)):
        text = client.get(listed).text  # the playbook's mode and the run's state
        assert text.count("</span> asks first</span>") == badges, listed
        assert "</span> ended</span>" not in text
    assert client.post(f"{path}approve/").status_code == 302
    assert goes(store, at, 5, **busy) == CAPS
    assert goes(store, at, 20, **busy) == [*CAPS, PAUSE]  # it goes on by itself
    run.refresh_from_db()
    assert (run.is_dry_run, run.approved_by) == (False, "ada")
    repeated = over_rest(world, "ada", path)
    assert (repeated.status_code, repeated.json()["changed"]) == (200, False)
    assert repeated.json()["approved_by"] == "ada"
    assert AuditEvent.objects.filter(act="playbook.approve").count() == 1
    assert goes(store, at, 200, **busy) == [*CAPS, PAUSE]  # its lease is renewed
    assert goes(store, at, 140, r0=CALM, r1=CALM) == []


def test_one_that_nobody_answers_gives_up_and_rests(world: World, store: Any, at: Clock) -> None:
    only("queue-grows", "ask")
    busy = {"r0": BUSY, "r1": BUSY}
    goes(store, at, 15, **busy)
    run = PlaybookRun.objects.get()
    assert goes(store, at, 605, **busy) == []
    run.refresh_from_db()
    assert run.end_reason == "Nobody approved it in time."
    with pytest.raises(Conflict) as late:
        approve_run(run_id=run.pk, actor=ANA)
    assert late.value.code == "run_not_asking"
    assert goes(store, at, 60, **busy) == []
    assert PlaybookRun.objects.count() == 1
    assert Override.objects.count() == 0


@pytest.mark.django_db(transaction=True)
def test_callers_feel_a_queue_that_grows_and_then_no_more(
    store: Any, at: Clock, tmp_path: Path
) -> None:
    import httpx

    quick = json_script(answer(used=usage(10, 5)))
    with UpstreamThread(quick) as upstream:
        world = managed_world(upstream, "acme")
        ensure_shipped()
        only("queue-grows", "armed")
        with managed_gateway(world, store, tmp_path) as gateway:

            def ask(work_class: str) -> httpx.Response:
                return httpx.post(
                    f"{gateway.url}/v1/chat/completions",
                    json={
                        "model": "llama-8b",
                        "messages": [{"role": "user", "content": "hi"}],
                        "max_tokens": 3000,
                    },
                    headers={
                        "authorization": f"Bearer {world.keys['acme'].secret}",
                        "x-headrace-class": work_class,
                    },
                    trust_env=False,
                    timeout=30,
                )

            assert ask("batch").status_code == 200
            goes(store, at, 40, r0=BUSY)
            push_overrides()
            wait_until(lambda: ask("batch").status_code == 503, 5, "batch paused")
            assert ask("batch").json()["error"]["code"] == "class_paused"
            assert "engines are busy" in ask("batch").json()["error"]["message"]
            capped = ask("standard")
            assert capped.status_code == 200
            assert capped.headers["x-headrace-degraded"] == "output_cap=1024"
            goes(store, at, 200, r0=CALM)
            push_overrides()
            wait_until(lambda: ask("batch").status_code == 200, 5, "batch served again")
            assert "x-headrace-degraded" not in ask("standard").headers

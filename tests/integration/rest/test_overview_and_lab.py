"""REST: the overview and the lab say what their pages and rules say."""

import pytest
from django.utils import timezone

from capacity.lab.rules import Inputs, answer, questions
from capacity.simulation.catalogue import named
from console.pages.standing import standing
from console.web.units import parse_usd
from tests import factories
from tests.endpoints import LAB, Caller

pytestmark = pytest.mark.django_db
AHEAD_MS = -60_000  # so that a slow machine does not let a state grow old meanwhile


def test_the_overview_says_what_its_page_shows(world, store):
    states = {"queue_age_s": 2.5, "waiting": 4, "kv_usage_ratio": 0.98}
    factories.scrape(store, "p-a", age_ms=AHEAD_MS, r0=states)
    told = Caller(world, "aud").call("get", "overview/").json()
    found = standing(timezone.now())
    figures = found.headline
    for name in ("ttft_p95_ms", "queue_age_s", "waiting", "kv_max_ratio", "goodput_ratio"):
        assert told[name] == getattr(figures, name), name
    assert (told["queue_age_s"], told["kv_max_ratio"]) == (2.5, 0.98)
    assert told["age_s"] is None  # no collector has published
    assert parse_usd(told["spend_usd_per_hour"]) == figures.spend_hour_nanousd
    assert (told["tasks_succeeded"], told["tasks_failed"]) == (
        found.outcomes.succeeded,
        found.outcomes.failed,
    )
    assert parse_usd(told["cost_per_success_usd"]) == found.outcomes.success_nanousd > 0
    assert told["g_co2e_per_task"] == found.economics.task_g
    assert told["gpu_s_per_task"] == pytest.approx(found.economics.task_gpu_s, rel=0.01, abs=0.1)
    assert {one["text"] for one in told["attention"]} == {one.text for one in found.strips}
    assert any("KV 98 %" in one["text"] for one in told["attention"])
    assert [one["tone"] for one in told["attention"]] == [one.tone for one in found.strips]


def test_the_lab_answers_by_the_closed_forms(world):
    caller = Caller(world, "aud")
    told = caller.call("post", "capacity-lab/", LAB).json()
    wanted = answer(Inputs(**LAB), named(LAB["profile"]))
    for name in ("fits", "bottleneck", "replicas_left", "kv_ratio", "prefill_ratio", "shed_ratio"):
        assert told[name] == getattr(wanted, name), name
    assert told["need_now"] == wanted.plan.need.replicas
    assert told["need_domain_lost"] == wanted.plan.domain_lost
    lost = caller.call("post", "capacity-lab/", {**LAB, "lost_ratio": 1.0}).json()
    assert (lost["fits"], lost["replicas_left"], lost["kv_ratio"]) == (False, 0, None)
    known = questions()[0].inputs
    asked = {name: getattr(known, name) for name in LAB}
    assert caller.call("post", "capacity-lab/", asked).json()["replicas_left"] == known.replicas
    for change, field in (
        ({"profile": "none"}, "profile"),
        ({"replicas": 0}, "replicas"),
        ({"rate_rps": "many"}, "rate_rps"),
        ({"growht": 2}, "growht"),
    ):
        refused = caller.call("post", "capacity-lab/", {**LAB, **change})
        assert (refused.status_code, refused.json()["field"]) == (400, field)

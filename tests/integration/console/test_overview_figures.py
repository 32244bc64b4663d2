"""Every figure of the overview equals a query over rows that takes no part in making it."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction
from django.test import Client
from django.utils import timezone

from capacity.fleet.gpu_time import gpu_time
from capacity.models import Replica, ReplicaChange
from console.audit.services import record
from console.pages.figures import headline
from telemetry.economics.selectors import period
from telemetry.economics.services import state_grid, state_power
from telemetry.slices.selectors import class_minutes
from telemetry.slos.selectors import goodput, objectives, states
from telemetry.slos.services import judge_minutes, set_objective
from tests import factories
from tests.factories import ACTOR, World
from tests.overview import make_traffic, rows, words_of

pytestmark = pytest.mark.django_db
THRESHOLD_S = 0.5


@pytest.fixture
def world(store, settings) -> World:
    return make_traffic(store, settings.REDIS_URL)


GOODPUT = """
SELECT count(*) FILTER (WHERE status <> 'cancelled'),
 count(*) FILTER (WHERE status = 'ok'
  AND extract(epoch FROM first_token_at - started_at) <= %s)
FROM tenants_usage WHERE kind <> 'v' AND started_at >= %s
"""


def test_goodput_is_that_of_the_ledger_rows(world: World, store) -> None:
    set_objective(
        work_class="", model="", metric="ttft", threshold_ms=500, target_ratio=0.99, actor=ACTOR
    )
    found = goodput(class_minutes(16), objectives())
    ((ended, kept),) = rows(GOODPUT, THRESHOLD_S, timezone.now() - timedelta(minutes=15))
    shed = sum(
        counted.refused.get("no_capacity", 0)
        for minute in class_minutes(16)
        for counted in minute.sums.values()
    )
    assert found is not None
    assert 0 < kept < ended
    assert shed > 0
    assert (found.total, found.good) == (ended + shed, kept)


def test_judged_minutes_add_up_to_the_same_and_again(world: World) -> None:
    set_objective(
        work_class="", model="", metric="ttft", threshold_ms=500, target_ratio=0.9, actor=ACTOR
    )
    assert judge_minutes() > 0
    judge_minutes()
    now = timezone.now().replace(second=0, microsecond=0)
    (state,) = states(objectives())
    ((total, good),) = rows(
        "SELECT sum(total), sum(good) FROM telemetry_objectiveminute WHERE minute_at >= %s",
        now - timedelta(minutes=60),
    )
    assert (state.windows[60].total, state.windows[60].good) == (total, good)
    live = goodput(class_minutes(10, until_minute=int(now.timestamp()) // 60), objectives())
    assert live is not None
    assert (live.total, live.good) == (total, good)


def test_refusals_by_reason_and_spend_an_hour(world: World, store) -> None:
    found = headline([], [], [])
    ((spend,),) = rows("SELECT sum(spend_nanousd) FROM tenants_usage WHERE kind <> 'v'")
    assert found.spend_hour_nanousd == spend
    assert found.refusals is not None
    assert dict(found.refusals.reasons).keys() <= {"no_capacity", "rate_limited"}
    recent = timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=5)
    ((count,),) = rows(
        "SELECT count(*) FROM tenants_usage WHERE started_at >= %s AND started_at < %s",
        recent,
        recent + timedelta(minutes=5),
    )
    assert found.refusals.per_min == pytest.approx(count / 5)  # one refusal came with each
    assert sum(rate for _, rate in found.refusals.reasons) == pytest.approx(count / 5)


TASK_SPEND = """
SELECT sum(u.spend_nanousd), count(DISTINCT u.task_id) FILTER (WHERE t.outcome = 'success')
FROM tenants_usage u JOIN tenants_worktask t ON t.task = u.task_id AND t.tenant_id = u.tenant_id
WHERE t.outcome <> '' AND t.outcome_at >= now() - interval '24 hours'
"""
WORK = """
SELECT sum(u.input_tokens - u.cached_tokens + 0.1 * u.cached_tokens + 2 * u.output_tokens)
FROM tenants_usage u WHERE u.pool = 'p-a' AND u.kind <> 'v'
"""


def test_cost_gpu_time_and_carbon_of_a_task_follow_from_rows(world: World) -> None:
    factories.make_tasks(world, "acme", 3, pool="p-a")
    factories.make_tasks(world, "globex", 2, pool="p-a")
    now = timezone.now()
    for replica in Replica.objects.filter(pool__name="p-a"):
        ReplicaChange.objects.create(
            replica=replica, at=now - timedelta(hours=2), before="cold", after="ready"
        )
    found = period(now - timedelta(hours=24), now + timedelta(minutes=1))
    ((spend, succeeded),) = rows(TASK_SPEND)
    assert (found.outcomes.succeeded, found.outcomes.failed) == (2, 2)
    assert found.outcomes.spend_nanousd == spend
    assert found.outcomes.success_nanousd == -(-spend // succeeded)

    held_s = 2 * (2 * 3600 + 60)
    assert found.economics.gpu_s == pytest.approx(held_s, abs=5)
    ((own,),) = rows(
        WORK + " AND u.task_id IN (SELECT task FROM tenants_worktask WHERE outcome <> '')"
    )
    ((whole,),) = rows(WORK)
    per_task_s = held_s * float(own) / float(whole) / 4
    assert found.economics.task_gpu_s == pytest.approx(per_task_s, rel=0.001)

    assert found.economics.task_g is None  # nobody stated power or grid
    assert "power of" in found.economics.pools[0].missing
    facts = found.economics.pools[0].facts
    state_grid(
        region=facts.region, g_co2e_per_kwh=400, pue=1.2, source="utility report", actor=ACTOR
    )
    state_power(hardware=facts.hardware or "h", power_w=700, source="label", actor=ACTOR)
    again = period(now - timedelta(hours=24), now + timedelta(minutes=1)).economics
    grams = per_task_s / 3600 * 0.7 * 1.2 * 400 + 150_000 * per_task_s / (4 * 365.25 * 86_400)
    assert again.task_g == pytest.approx(grams, rel=0.001)


def test_the_page_shows_these_figures_and_says_when_they_are_old(world: World, store) -> None:
    factories.make_objective(world)
    factories.scrape(store, "p-a", r0={"kv_usage_ratio": 0.97, "queue_age_s": 1.25})
    client = Client()
    client.force_login(world.people["ola"])
    html = client.get("/").text
    text = words_of(html)
    found = headline([], objectives(), [])
    assert found.goodput is not None
    assert f"{found.goodput_ratio * 100:.1f} %" in text
    assert "97 %" in text
    assert "Queue age 1.2 s" in text
    assert "no live figures" in text  # no collector has published
    assert 'hx-trigger="every 3s"' in html
    for question in ("/why-p99/", "/tasks/", "/why-bill/", "/carbon/"):
        assert f'href="{question}"' in html
    factories.scrape(store, "p-a", age_ms=60_000, r0={"kv_usage_ratio": 0.97, "queue_age_s": 9.0})
    old = words_of(client.get("/").text)
    assert "Queue age — s" in old  # a replica that is silent is out of the figure
    assert "figures below are old" in old


def test_the_change_feed_shows_every_kind(world: World) -> None:
    factories.make_policy(world)
    with transaction.atomic():
        for kind in ("rollout", "playbook_run", "thing_of_tomorrow"):
            record(actor=ACTOR, act=f"{kind}_started", object_type=kind, object_id="7", after={})
    client = Client()
    client.force_login(world.people["ola"])
    text = client.get("/").text
    for words in ("rollout started", "playbook run started", "thing of tomorrow started"):
        assert words in text
    assert "policy" in text


def test_gpu_time_counts_loading_and_serving_within_the_period(world: World) -> None:
    now = datetime(2026, 5, 1, 12, tzinfo=UTC)
    first, second = Replica.objects.filter(pool__name="p-a").order_by("ordinal")
    for replica, hours, after in (
        (first, 30, "loading"), (first, 29, "ready"), (first, 3, "failed"),
        (second, 5, "cold"), (second, 4, "loading"), (second, 3, "ready"),
    ):  # fmt: skip
        ReplicaChange.objects.create(
            replica=replica, at=now - timedelta(hours=hours), before="", after=after
        )
    (found,) = [one for one in gpu_time(now - timedelta(hours=24), now) if one.pool == "p-a"]
    # the first from the period's start until it failed; the second from loading until now
    assert found.gpu_s == pytest.approx((21 + 4) * 3600)

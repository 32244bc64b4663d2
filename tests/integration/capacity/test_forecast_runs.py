"""A forecast run on real rows: own rollups, imported days, floors alone, and a killed worker."""

import os
import signal
import subprocess
import sys
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from capacity.fleet.services import create_domain, create_pool
from capacity.forecasts import fitted
from capacity.forecasts import tasks as forecast_tasks
from capacity.forecasts.imports import forget_source
from capacity.forecasts.rules.series import hour_of
from capacity.forecasts.services import JOB_KIND, begin_run, finish_run, forecast_next
from capacity.models import DemandHour, FailureDomain, Forecast, ForecastRun, Pool, PoolPlan
from capacity.models.forecast import MEASURES
from console.errors import InvalidInput
from console.jobs import services as jobs
from console.jobs import tasks
from console.jobs.registry import handler_of
from console.models import AuditEvent, Job
from tests import factories
from tests.forecasting import (
    DEMO_DAYS,
    M_LARGE,
    SOON,
    daily,
    import_servegen,
    roll_hours,
    roll_minutes,
)
from tests.stack import ROOT

# Fitting takes longer than a transaction may idle: each test has its rows committed.
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def world(store) -> factories.World:
    made = factories.World()
    factories.make_tenant(made, "acme")
    factories.make_tenant(made, "globex")
    factories.make_fleet(made, {"p-a": 2})
    return made


def run_whole(*, fits: bool = True) -> ForecastRun:
    run_id = begin_run(now=SOON)
    while forecast_next(run_id, lambda: fits) is not None:
        pass
    finish_run(run_id, now=SOON)
    return ForecastRun.objects.get(pk=run_id)


def test_a_run_forecasts_models_and_tenants_from_the_ledgers_own_hours(world):
    now_hour = hour_of(SOON)
    roll_hours(world, "acme", now_hour, 8 * 24)
    roll_hours(world, "globex", now_hour, 30)
    run = run_whole()
    assert run.done == len(run.series) == 3
    assert run.has_models
    rows = Forecast.objects.filter(is_latest=True)
    assert rows.count() == 3 * len(MEASURES) * 2
    day = rows.get(tenant="acme", measure="requests", horizon_h=24)
    assert day.as_of == now_hour
    assert day.history_h == 8 * 24
    assert day.error_ratio < 0.1  # the day repeats
    said = [point[1] for point in day.points]
    came = [daily(now_hour + timedelta(hours=ahead))[0] for ahead in range(24)]
    assert said == pytest.approx(came, rel=0.2)
    assert {"flat", "seasonal", "theta", "mstl", "ets"} == {row["method"] for row in day.scores}
    losses = [row["loss_ratio"] for row in day.scores]
    assert losses == sorted(losses)
    assert day.scores[0]["method"] == day.method
    both = rows.get(source="ledger", tenant="", measure="input_tokens", horizon_h=1)
    assert len(both.points) == 1
    assert both.points[0][0] <= both.points[0][1] <= both.points[0][2]


def test_too_little_history_is_said_and_nothing_is_invented(world):
    roll_hours(world, "globex", hour_of(SOON), 30)
    run_whole()
    day = Forecast.objects.get(tenant="globex", measure="requests", horizon_h=24)
    assert (day.short_h, day.points, day.method, day.error_ratio) == (66, [], "", None)
    hour = Forecast.objects.get(tenant="globex", measure="requests", horizon_h=1)
    assert hour.short_h == 0
    assert hour.points


@pytest.mark.timeout(600)  # fits of five series take a core for half a minute, if there is one
def test_real_days_are_forecast_better_than_by_the_floors_alone(world):
    """ServeGen's nine days, by client: models must earn their place on what really came."""
    first_end = hour_of(timezone.now())
    assert import_servegen() == 864
    assert import_servegen("fleet", M_LARGE, "m-large") == 216
    ends = {first_end, hour_of(timezone.now())}  # imported days end with the last whole hour
    run = run_whole()
    assert [key[0] for key in run.series].count("servegen") == 4
    rows = list(Forecast.objects.filter(is_latest=True, source__in=["servegen", "fleet"]))
    assert len(rows) == 5 * len(MEASURES) * 2
    for row in rows:
        assert row.short_h == 0
        assert row.windows == (24 if row.horizon_h == 1 else 6)
        assert len(row.points) == row.horizon_h
        assert all(0 <= p5 <= p50 <= p95 for p5, p50, p95 in row.points)
        assert row.as_of in ends
    floors = {"flat", "seasonal"}
    beaten = [row for row in rows if row.method not in floors]
    assert len(beaten) >= len(rows) // 3
    for row in beaten:
        best_floor = min(s["loss_ratio"] for s in row.scores if s["method"] in floors)
        assert row.scores[0]["loss_ratio"] < best_floor
    # 90 % bands, judged on hours that they had not seen
    inside = sum(row.coverage_ratio * row.windows * row.horizon_h for row in rows)
    assert 0.75 <= inside / sum(row.windows * row.horizon_h for row in rows) <= 0.99


def test_without_the_package_the_floors_serve_and_say_so(world, monkeypatch):
    roll_hours(world, "acme", hour_of(SOON), 5 * 24)
    monkeypatch.setitem(sys.modules, "statsforecast", None)
    monkeypatch.setattr(fitted.importlib.util, "find_spec", lambda name: None)
    run = run_whole()
    assert not run.has_models
    row = Forecast.objects.get(tenant="acme", measure="requests", horizon_h=24)
    assert row.method == "seasonal"
    assert row.note == "Floors only: statsforecast is not installed."
    monkeypatch.undo()
    run_whole()  # installed meanwhile: the same hour is forecast anew
    again = Forecast.objects.get(tenant="acme", measure="requests", horizon_h=24)
    assert again.note == ""
    assert len(again.scores) == 5


def test_once_the_time_is_used_up_the_floors_serve(world):
    roll_hours(world, "acme", hour_of(SOON), 5 * 24)
    run_whole(fits=False)
    row = Forecast.objects.get(tenant="acme", measure="requests", horizon_h=24)
    assert {score["method"] for score in row.scores} <= {"flat", "seasonal"}
    assert row.note == "Floors only: the run's time for fitting was used up."


def test_one_word_is_the_latest_and_imported_days_are_not_computed_twice(world):
    import_servegen()
    first = run_whole(fits=False)
    Forecast.objects.update(note="")
    second = run_whole(fits=False)
    assert second.pk != first.pk
    assert set(Forecast.objects.values_list("run_id", flat=True)) == {first.pk}
    assert Forecast.objects.filter(is_latest=True).count() == 4 * 6
    forget_source(source="servegen")
    run_whole(fits=False)
    assert not Forecast.objects.filter(is_latest=True).exists()
    assert not DemandHour.objects.exists()


def test_the_plan_of_a_pool_follows_from_the_forecast(world):
    now_hour = hour_of(SOON)
    roll_hours(world, "acme", now_hour, 5 * 24, amounts=lambda at: tuple(
        200 * amount for amount in daily(at)))  # fmt: skip
    run = run_whole(fits=False)
    plan = PoolPlan.objects.get(run=run, pool="p-a")
    peaks = {
        row.measure: max(point[2] for point in row.points)
        for row in Forecast.objects.filter(tenant="", model="llama-8b", horizon_h=24)
    }
    assert plan.basis == "p95, next 24 h"
    assert plan.rate_rps == pytest.approx(peaks["requests"] / 3600)
    assert plan.input_tokens_per_s == pytest.approx(peaks["input_tokens"] / 3600)
    assert (plan.domains, plan.ready_replicas, plan.profile) == (1, 2, "demo")
    assert plan.need_domain_lost is None  # nothing is left of one domain
    assert plan.need_quarter_lost >= plan.need_now > 2
    assert plan.binds in {"compute", "kv"}


def test_a_pool_without_profile_or_demand_says_why(world):
    create_pool(
        name="p-static", model="llama-8b", driver="static", region="eu", domain="eu-a",
        spec={"addresses": ["10.0.0.7:1"]}, actor=factories.ACTOR,
    )  # fmt: skip
    run = run_whole()
    assert "No engine profile" in PoolPlan.objects.get(run=run, pool="p-static").trouble
    plan = PoolPlan.objects.get(run=run, pool="p-a")
    assert "No request" in plan.trouble
    assert (plan.need_now, plan.rate_rps) == (None, None)


def test_what_was_just_served_is_planned_for_before_any_forecast_can_be(world):
    roll_minutes(world, "acme", minutes=4, requests=240)
    run_id = begin_run(now=SOON)
    finish_run(run_id, now=SOON)
    plan = PoolPlan.objects.get(run=run_id, pool="p-a")
    # the first minute began somewhere inside: three whole ones are left, none of them averaged
    # away with the eleven before
    assert (plan.basis, plan.rate_rps) == ("last 3 min, all so far", pytest.approx(4.0))


def test_a_first_hour_that_was_mostly_empty_does_not_hide_what_comes_now(world):
    roll_minutes(world, "acme", minutes=4, requests=240)
    hour = hour_of(SOON)
    roll_hours(world, "acme", hour, 1, amounts=lambda _: (200, 180_000, 30_000))
    run_id = begin_run(now=SOON)
    finish_run(run_id, now=SOON)
    plan = PoolPlan.objects.get(run=run_id, pool="p-a")
    assert (plan.basis, plan.rate_rps) == ("last 15 min", pytest.approx(960 / 900))


def test_traffic_of_less_than_a_whole_minute_is_no_measure(world):
    roll_minutes(world, "acme", minutes=1, requests=56)
    run_id = begin_run(now=SOON)
    finish_run(run_id, now=SOON)
    plan = PoolPlan.objects.get(run=run_id, pool="p-a")
    assert "less than two minutes" in plan.trouble
    assert plan.rate_rps is None


def test_pools_of_two_revisions_share_their_models_demand_and_domains(world):
    create_domain(region="eu", slug="eu-b", actor=factories.ACTOR)
    factories.make_pools(world, {"p-b": 3})
    Pool.objects.filter(name="p-b").update(
        domain=FailureDomain.objects.get(slug="eu-b"), spec={"profile": "demo", "time_scale": 2.0}
    )
    roll_hours(world, "acme", hour_of(SOON), 5 * 24)
    run_id = begin_run(now=SOON)
    finish_run(run_id, now=SOON)
    plans = PoolPlan.objects.filter(run=run_id, pool__in=["p-a", "p-b"])
    assert {(plan.ready_replicas, plan.domains) for plan in plans} == {(5, 2)}
    assert all(plan.need_domain_lost for plan in plans)


def test_the_command_imports_and_forgets_and_refuses_with_the_field(world, tmp_path):
    call_command("import_demand", str(DEMO_DAYS), source="days", start="2025-11-01T00:00:00+00:00")
    assert DemandHour.objects.filter(source="days").count() == 864
    call_command("import_demand", str(DEMO_DAYS), source="days", start="2025-11-01T00:00:00+00:00")
    assert DemandHour.objects.filter(source="days").count() == 864
    assert AuditEvent.objects.filter(act="demand.import", object_id="days").count() == 2
    call_command("import_demand", source="days", forget=True)
    assert not DemandHour.objects.exists()
    bad = tmp_path / "bad.csv"
    bad.write_text("t_s,model,requests\n0,m,1\n")
    with pytest.raises(CommandError, match=r"file: .*needs the columns"):
        call_command("import_demand", str(bad), source="days")
    with pytest.raises(CommandError, match="source: "):
        call_command("import_demand", str(DEMO_DAYS), source="ledger")
    with pytest.raises(CommandError, match="cannot read"):
        call_command("import_demand", str(tmp_path / "none.csv"), source="days")
    with pytest.raises(InvalidInput):
        import_servegen("no spaces")


KILLED = """
import django, os, signal
django.setup()
from console.jobs import services as jobs, tasks
from console.project.celery import app
import capacity.forecasts.tasks
from capacity.forecasts import services
real = services.forecast_next
calls = []
def then_killed(run_id, may_fit, models):
    calls.append(1)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(run_id, lambda: False)
capacity.forecasts.tasks.forecast_next = then_killed
tasks.run({job_id})
"""


def test_a_killed_worker_leaves_a_run_that_the_next_one_finishes(world, monkeypatch):
    """R35 for forecasts: the run goes on at its checkpoint, and each series is written once.

    By the floors: which method forecasts does not matter here, and fits take half a minute.
    """
    monkeypatch.setattr(fitted, "is_installed", lambda: False)
    import_servegen()
    assert handler_of(JOB_KIND) is forecast_tasks.forecast_demand
    job_id = jobs.enqueue(JOB_KIND, dedupe_key=JOB_KIND)
    base, _, _ = os.environ["DATABASE_URL"].rpartition("/")
    environment = {
        **os.environ,
        "DATABASE_URL": f"{base}/{connection.settings_dict['NAME']}",
        "DJANGO_SETTINGS_MODULE": "console.project.settings",
    }
    died = subprocess.run(
        [sys.executable, "-c", KILLED.replace("{job_id}", str(job_id))],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert died.returncode == -signal.SIGKILL, died.stderr
    run = ForecastRun.objects.get()
    assert run.done == 2
    assert run.finished_at is None
    before = set(Forecast.objects.values_list("pk", flat=True))
    Job.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=1))
    assert jobs.requeue_stale() == 1
    tasks.run(job_id)
    run.refresh_from_db()
    assert run.done == len(run.series) == 4
    assert run.finished_at is not None
    assert ForecastRun.objects.count() == 1
    assert before <= set(Forecast.objects.values_list("pk", flat=True))
    assert Forecast.objects.count() == 4 * 6
    assert Job.objects.get(pk=job_id).state == "done"

"""Longer history from a real Prometheus: three days of engines' counters, backfilled."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from capacity.forecasts.imports import PROMETHEUS
from capacity.forecasts.rules.series import hour_of
from capacity.forecasts.services import begin_run, forecast_next
from capacity.models import DemandHour, Forecast, ForecastRun
from capacity.reports.figures import gather
from capacity.reports.rules.due import Period
from telemetry.exporters.prometheus import HistoryAwayError, query_range
from tests.conftest import free_ports
from tests.contract.test_prometheus import answers, until

pytestmark = pytest.mark.django_db(transaction=True)
HOURS = 72
PER_HOUR = {"request_success": 120, "prompt_tokens": 60_000, "generation_tokens": 12_000}


def openmetrics(end_s: int) -> str:
    """Counters of one engine, a sample every five minutes, and a gauge that is NaN while idle."""
    lines = []
    steps = range(end_s - HOURS * 3600, end_s + 1, 300)
    for name, amount in PER_HOUR.items():
        lines.append(f"# TYPE vllm:{name} counter")
        lines += [
            f'vllm:{name}_total{{model_name="old-model"}} {amount * step // 12} {at}'
            for step, at in enumerate(steps)
        ]
    lines.append("# TYPE vllm:kv_cache_usage_perc gauge")
    lines += [
        f'vllm:kv_cache_usage_perc{{model_name="old-model"}} '
        f"{'NaN' if step % 2 else (step % 10) / 10} {at}"
        for step, at in enumerate(steps)
    ]
    return "\n".join([*lines, "# EOF", ""])


@pytest.fixture
def prometheus(tmp_path: Path, settings) -> Iterator[int]:
    """The hour that its history ends with; settings name its address."""
    binary = shutil.which("prometheus")
    promtool = shutil.which("promtool")
    assert binary and promtool, "no Prometheus: `python3 manage.py test` brings it"
    end_s = int(hour_of(timezone.now()).timestamp())
    (tmp_path / "old.txt").write_text(openmetrics(end_s))
    subprocess.run(
        [promtool, "tsdb", "create-blocks-from", "openmetrics", tmp_path / "old.txt",
         tmp_path / "data"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    (tmp_path / "p.yml").write_text(json.dumps({"global": {"scrape_interval": "1m"}}))
    (port,) = free_ports(1)
    running = subprocess.Popen(
        [binary, f"--config.file={tmp_path}/p.yml", f"--storage.tsdb.path={tmp_path}/data",
         f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=30d"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    settings.PROMETHEUS_URL = f"http://127.0.0.1:{port}"
    try:
        until(lambda: answers(f"{settings.PROMETHEUS_URL}/-/ready"), "Prometheus ready", 30)
        yield end_s
    finally:
        running.terminate()
        running.wait(20)


def test_a_run_forecasts_what_engines_served_before_there_was_a_ledger(prometheus, store):
    run_id = begin_run()
    rows = list(DemandHour.objects.filter(source=PROMETHEUS).order_by("hour_at"))
    assert len(rows) >= HOURS - 1
    for row in rows[1:-1]:
        assert row.model == "old-model"
        assert row.requests == pytest.approx(120, rel=0.02)
        assert row.input_tokens == pytest.approx(60_000, rel=0.02)
        assert row.output_tokens == pytest.approx(12_000, rel=0.02)
    assert rows[-1].hour_at == hour_of(timezone.now()) - timedelta(hours=1)
    while forecast_next(run_id, lambda: False) is not None:
        pass
    ahead = Forecast.objects.get(source=PROMETHEUS, measure="requests", horizon_h=1)
    assert ahead.points[0][1] == pytest.approx(120, rel=0.02)


def test_a_report_reaches_back_to_engines_that_we_never_sampled(prometheus, store):
    end = hour_of(timezone.now())
    figures = gather(Period(end - timedelta(hours=24), end), "UTC")
    (engine,) = figures["engines"]
    assert engine["model"] == "old-model"
    known = [hour["kv_max_ratio"] for hour in engine["hours"] if hour["kv_max_ratio"] is not None]
    assert len(known) >= 23
    assert set(known) == {0.8}


def test_idle_stretches_are_left_out_and_never_zero(prometheus, store):
    end = hour_of(timezone.now())
    (series,) = query_range(
        '{__name__="vllm:kv_cache_usage_perc"}',
        since=end - timedelta(hours=1), until=end - timedelta(minutes=5), step_s=300,
    )  # fmt: skip
    assert 0 < len(series.points) < 12
    with pytest.raises(HistoryAwayError, match="did not answer"):
        query_range("not a query{", since=end - timedelta(hours=1), until=end, step_s=300)
    with pytest.raises(ValueError, match="steps"):
        query_range("up", since=end - timedelta(days=365), until=end, step_s=60)


def test_a_prometheus_that_is_away_is_said_and_holds_nothing_back(settings, store):
    settings.PROMETHEUS_URL = "http://user:secret@127.0.0.1:9"
    run = ForecastRun.objects.get(pk=begin_run())
    assert "Prometheus did not answer" in run.trouble
    assert "secret" not in run.trouble
    end = hour_of(timezone.now())
    assert gather(Period(end - timedelta(hours=2), end), "UTC")["engines_trouble"]

"""A real Prometheus reads what gateways and engines of a running demo expose."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from routing.store.state import read_gateway_statuses
from tests.conftest import free_ports

READY_S = 30.0
SEEN_S = 60.0


@pytest.fixture
def prometheus(tmp_path: Path, stack: Any) -> Iterator[str]:
    """Base URL of a Prometheus that scrapes the demo's gateway and replicas each second."""
    binary = os.environ.get("HEADRACE_PROMETHEUS") or shutil.which("prometheus")
    if not binary:
        pytest.fail("no Prometheus: `python3 manage.py test` brings it")
    client = redis.Redis.from_url(stack.settings["REDIS_URL"])
    gateways = [
        f"127.0.0.1:{row.admin_port}"
        for row in read_gateway_statuses(client, int(time.time() * 1000))
    ]
    replicas = [
        f"127.0.0.1:{json.loads(path.read_text())['port']}"
        for path in (stack.state / "replicas").glob("*.json")
    ]
    assert gateways and replicas
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [
            {"job_name": name, "static_configs": [{"targets": targets}]}
            for name, targets in (("gateway", gateways), ("engine", replicas))
        ],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    (port,) = free_ports(1)
    running = subprocess.Popen(
        [
            binary, f"--config.file={tmp_path}/prometheus.yml",
            f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: answers(f"{url}/-/ready"), "Prometheus ready", READY_S)
        yield url
    finally:
        running.terminate()
        running.wait(20)


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def until(condition: Any, what: str, timeout_s: float) -> Any:
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < end, f"no {what} within {timeout_s} s"
        time.sleep(0.2)
    return value


def values(url: str, query: str) -> list[float]:
    answer = httpx.get(f"{url}/api/v1/query", params={"query": query}, timeout=5).json()
    assert answer["status"] == "success", answer
    return [float(row["value"][1]) for row in answer["data"]["result"]]


def test_prometheus_scrapes_gateway_and_engines_and_can_compute_percentiles(
    prometheus: str, stack: Any
) -> None:
    until(
        lambda: len(found := values(prometheus, "up")) >= 5 and set(found) == {1.0},
        "every target up",
        SEEN_S,
    )
    for query in (
        'sum(rate(headrace_requests_total{tenant=~"acme|globex"}[20s])) > 0',
        "sum(rate(vllm:generation_tokens_total[20s])) > 0",
        "histogram_quantile(0.95, sum by (le) "
        '(rate({__name__="vllm:time_to_first_token_seconds_bucket"}[30s]))) > 0',
    ):
        until(lambda query=query: values(prometheus, query), query, SEEN_S)

"""`manage.py bench NAME --quick` measures against a baseline in one call; no speed is asserted."""

import json
import subprocess
import sys
from typing import Any

from tests.conftest import ROOT, clean_environment

FIGURES = {
    "gateway_cpu_per_request",
    "gateway_cpu_per_long_request",
    "gateway_requests_per_s",
    "gateway_cpu_per_chunk",
}


def measured(name: str, names: set[str], timeout_s: float) -> dict[str, Any]:
    """The figures of a quick run, each a ratio against a baseline of the same call."""
    done = subprocess.run(
        [sys.executable, "manage.py", "bench", name, "--quick", "--json"],
        cwd=ROOT,
        env=clean_environment(),  # as in a bare clone: no state, no settings
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.strip().splitlines()[-1])
    assert set(figures) == names
    for figure in figures.values():
        assert figure["rounds"] == 3
        assert figure["baseline"] > 0
        assert figure["ratio_min"] <= figure["ratio"] <= figure["ratio_max"]
    return figures


def test_the_gateway_benchmark_prints_ratios_against_nginx_of_the_same_run() -> None:
    figures = measured("gateway", FIGURES, timeout_s=150)
    for figure in figures.values():
        print(f"{figure['name']}: {figure['ratio']:.2f}x of nginx")


ADMISSION_FIGURES = {
    "admission_store_cpu_per_request",
    "admission_store_cpu_per_reserve",
    "admission_store_cpu_per_settle",
    "admission_requests_per_store_core",
    "admission_gateway_cpu_per_request",
    "admission_requests_per_gateway_core",
    "admission_cost_at_10000_tenants",
} | {
    f"admission_requests_per_store_core_{whose}_by_{size}"
    for whose in ("one_tenant", "10000_tenants")
    for size in (1, 4, 16, 64)
}


def test_the_admission_benchmark_prints_ratios_against_plain_counting_of_the_same_run() -> None:
    figures = measured("admission", ADMISSION_FIGURES, timeout_s=250)
    # The one bound that no machine excuses: what admission does must not grow with the tenants.
    assert figures["admission_cost_at_10000_tenants"]["ratio"] < 2

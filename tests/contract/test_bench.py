"""`manage.py bench gateway --quick` measures against nginx in one call; no speed is asserted."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIGURES = {"gateway_cpu_per_request", "gateway_requests_per_s", "gateway_cpu_per_chunk"}


def test_the_gateway_benchmark_prints_ratios_against_nginx_of_the_same_run() -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", "bench", "gateway", "--quick", "--json"],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.strip().splitlines()[-1])
    assert set(figures) == FIGURES
    for figure in figures.values():
        assert figure["rounds"] == 3
        assert figure["baseline"] > 0
        assert figure["ratio_min"] <= figure["ratio"] <= figure["ratio_max"]
        print(f"{figure['name']}: {figure['ratio']:.2f}x of nginx")

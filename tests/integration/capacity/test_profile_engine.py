"""`manage.py profile` and the live fidelity against a real process of the bundled engine."""

import asyncio
import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from django.core.management import CommandError, call_command

from capacity.simulation.catalogue import named
from capacity.simulation.probing import Ask, Found
from capacity.simulation.profile_document import read_profile
from capacity.simulation.profiles import EngineProfile
from console.benchmarks.live_fidelity import Served, judged, predicted
from console.benchmarks.probe import Endpoint, Prober
from console.demo.client import GatewayAddress
from tests.engines import MODEL, ROOT, EngineProcess, engine, wait_for


@pytest.fixture(scope="module")
def demo() -> Iterator[EngineProcess]:
    with engine("--profile", "demo") as running:
        yield running


@pytest.fixture(scope="module")
def found(demo: EngineProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "found.json"
    call_command(
        "profile", demo.url, "--requests", "60", "--batch", "8", "--out", str(path), "--quiet"
    )
    return path


def test_the_profile_found_is_the_engines_own(found: Path) -> None:
    measured, truth = read_profile(found.read_bytes()), named("demo")
    assert (measured.kv_blocks, measured.block_tokens) == (truth.kv_blocks, truth.block_tokens)
    assert measured.context_tokens == truth.context_tokens
    # A decode step, and the step of a prompt of 2,000 tokens; a busy machine only adds to them.
    for step in ((0, 8, 4000, 0.0), (2000, 0, 0, 2e6)):
        assert measured.times.seconds(*step) == pytest.approx(truth.times.seconds(*step), rel=0.2)


def test_a_second_run_finds_none_of_the_firsts_prompts_cached(demo: EngineProcess) -> None:
    """Both have the same seed: prompts that began alike were measured out of the prefix cache."""

    async def asked() -> None:
        prober = Prober(Endpoint(GatewayAddress.from_url(demo.url), "tiny"), seed=1)
        await prober.learn()
        await prober.ask(Ask(2, 512, 1))

    def hits() -> float:
        page = httpx.get(f"{demo.url}/metrics", trust_env=False).text
        name = "vllm:prefix_cache_hits_total{"
        (line,) = [one for one in page.splitlines() if one.startswith(name)]
        return float(line.rsplit(" ", 1)[1])

    asyncio.run(asked())
    before = hits()
    asyncio.run(asked())
    assert hits() == before


def test_simulate_takes_the_file(found: Path) -> None:
    scenario = found.parent / "scenario.json"
    document = {
        "until_s": 20,
        "fleet": [{"profile": found.name, "replicas": 1}],
        "workload": [{"rate_per_s": 2, "input": {"mean": 100}, "output": {"mean": 20}}],
    }
    scenario.write_text(json.dumps(document))
    out = io.StringIO()
    call_command("simulate", str(scenario), "--quiet", stdout=out)
    report = json.loads(out.getvalue())
    assert report["total"]["ok"] > 20
    assert len(report["inputs"][found.name]) == 64


def test_bounds_and_refusals_name_what_is_wrong(demo: EngineProcess) -> None:
    with pytest.raises(CommandError, match="--batch: from 1 to 1024"):
        call_command("profile", demo.url, "--batch", "0")
    with pytest.raises(CommandError, match="must look like http"):
        call_command("profile", "ftp://127.0.0.1")
    with pytest.raises(CommandError, match="it serves tiny, not other"):
        call_command("profile", demo.url, "--model", "other")
    with pytest.raises(CommandError, match="kinds of measurement"):
        call_command("profile", demo.url, "--requests", "3", "--quiet")


def test_a_cancelled_profile_tells_what_it_measured_and_writes_no_file(
    demo: EngineProcess, tmp_path: Path
) -> None:
    path = tmp_path / "never.json"
    command = [sys.executable, "manage.py", "profile", demo.url, "--out", str(path)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr is not None
        assert wait_for(running.stderr.readline, 60).startswith("1/")
        running.send_signal(signal.SIGINT)
        out, _err = running.communicate(timeout=30)
    assert running.returncode == 130
    assert not path.exists()
    told = json.loads(out)
    assert told["is_whole"] is False
    assert told["requests"] >= len(told["samples"]) >= 1
    assert told["samples"][0]["ttft_s"] > 0


def test_a_stopped_replay_tells_what_it_sent(demo: EngineProcess, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    rows = [f"{at},20,3" for at in range(600)]
    trace.write_text("\n".join(["t_s,input_tokens,output_tokens", *rows]))
    command = [sys.executable, "manage.py", "replay", str(trace), "--gateway", demo.url]
    with subprocess.Popen(
        [*command, "--key", "none", "--model", MODEL],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        assert running.stderr is not None
        assert "sent" in wait_for(running.stderr.readline, 60)
        running.send_signal(signal.SIGINT)
        out, _err = running.communicate(timeout=60)
    assert running.returncode == 130
    told = json.loads(out)
    assert told["is_whole"] is False
    assert sum(told["answers"].values()) == told["sent"] >= 1
    assert len(told["inputs"]["trace.csv"]) == 64


def test_a_wrong_profile_is_judged_wrong() -> None:
    # Served by an engine with 20 ms a step; the profile says 25 ms: E2E and throughput are off.
    slow = EngineProfile("slow", named("demo").times, kv_blocks=2048)
    served = [Served(5.0 * n, 10, 51, 0.020, 51 * 0.020) for n in range(20)]
    report = judged([served] * 3, slow, Found(slow.times, 0.0, 0.0, 9))
    assert not report["holds"]
    assert not report["figures"]["e2e_p50_s"]["holds"]
    assert report["figures"]["e2e_p50_s"]["error"] == pytest.approx(0.25, abs=0.05)
    assert predicted(served, slow, 0.1)["ttft_p50_s"] == pytest.approx(0.1256, rel=0.02)

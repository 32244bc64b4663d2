"""`manage.py simulate`: JSON out, the same for the same inputs, one line for a bad document."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

STREAM = {"rate_per_s": 5, "input": {"mean": 300, "cv": 1}, "output": {"mean": 20}}
DOCUMENT: dict[str, Any] = {
    "until_s": 20,
    "seed": 7,
    "fleet": [{"profile": "reference", "replicas": 2}],
    "tenants": [{"id": "t", "limits": [], "output_nanousd": 10**9}],
    "policy": {"route": "predicted", "order": "vtc"},
    "clients": {"patience_s": 5, "retries": 1},
    "faults": [{"at_s": 5, "replica": "pool-1", "fault": "lost"}],
    "workload": [STREAM],
}


def written(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "scenario.json"
    path.write_text(json.dumps({**DOCUMENT, **changes}))
    return path


def simulated(path: Path, *args: str) -> dict[str, Any]:
    out = io.StringIO()
    call_command("simulate", str(path), "--quiet", *args, stdout=out)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def test_same_document_same_output(tmp_path: Path) -> None:
    path = written(tmp_path)
    first, second = simulated(path), simulated(path)
    assert first.pop("cpu_s") >= 0
    assert second.pop("cpu_s") >= 0
    assert first == second
    assert first["is_whole"] is True
    assert first["total"]["ok"] > 50
    assert simulated(path, "--seed", "8")["digest"] != first["digest"]


def test_trace_file_is_read_and_named_by_its_digest(tmp_path: Path) -> None:
    trace = tmp_path / "arena.csv"
    trace.write_text("t_s,tenant,input_tokens,output_tokens\n0,a,10,3\n1.5,b,20,4\n")
    path = written(tmp_path, workload=[], traces=[{"form": "arena", "file": "arena.csv"}])
    found = simulated(path)
    assert found["total"]["ok"] == 2
    assert len(found["inputs"]["arena.csv"]) == 64
    assert set(found["slices"]) == {"a/standard", "b/standard"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"until_s": 0}, "until_s"),
        ({"fleet": [{"profile": "nothing", "replicas": 1}]}, "fleet: no engine profile"),
        ({"fleet": []}, "fleet"),
        ({"workload": []}, "workload"),
        (
            {"workload": [{**STREAM, "rate_per_s": 1e308}]},
            "scenario.json: workload: rate_per_s .* at most",
        ),
        (
            {"workload": [{**STREAM, "rate_per_s": 0}]},
            "scenario.json: workload: rate_per_s above 0",
        ),
        ({"policy": {"rout": "core"}}, "policy: no field 'rout'"),
        ({"policy": {"route": "magic"}}, "policy: .*magic"),
        ({"clients": {"patience": 1}}, "clients: no field 'patience'"),
        ({"surprise": 1}, "surprise"),
        ({"faults": [{"at_s": 1, "replica": "x", "fault": "lost"}]}, "faults: no replica 'x'"),
        ({"traces": [{"form": "tea", "file": "leaves"}]}, "traces: no form 'tea'"),
        ({"traces": [{"form": "arena", "file": "absent.csv"}]}, "absent.csv cannot be read"),
    ],
)
def test_bad_document_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(CommandError, match=words):
        simulated(written(tmp_path, **changes))


def test_a_broken_document_is_refused_with_its_file_and_where(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    for text, words in (("", "truncated"), ('{"until_s": 20,', "truncated"), ("{]", r"\(byte 1\)")):
        path.write_text(text)
        with pytest.raises(CommandError, match=rf"cut\.json: .*{words}"):
            simulated(path)


def test_a_stopped_run_prints_what_it_saw(tmp_path: Path) -> None:
    path = written(tmp_path, until_s=2_000_000)
    command = [sys.executable, "manage.py", "simulate", str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ, text=True
    ) as process:
        assert process.stderr is not None
        assert "requests" in process.stderr.readline()  # progress: it runs
        process.send_signal(signal.SIGINT)
        out, _err = process.communicate(timeout=60)
    found = json.loads(out)
    assert process.returncode == 130
    assert found["is_whole"] is False
    assert found["total"]["ok"] > 0


def test_a_trace_is_replayed_in_virtual_time(tmp_path: Path) -> None:
    trace = tmp_path / "arena.csv"
    trace.write_text("t_s,tenant,input_tokens,output_tokens\n0,a,10,3\n1.5,b,20,4\n")

    def replayed() -> dict[str, Any]:
        out = io.StringIO()
        options = ("--form", "arena", "--profile", "demo", "--until-s", "60", "--quiet")
        call_command("replay", str(trace), *options, stdout=out)
        found: dict[str, Any] = json.loads(out.getvalue())
        return found

    first, second = replayed(), replayed()
    assert first["total"]["ok"] == 2
    assert len(first["inputs"]["arena.csv"]) == 64
    assert first["report_digest"] == second["report_digest"]

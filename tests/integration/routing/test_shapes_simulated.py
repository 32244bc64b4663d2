"""Calls that a real gateway served come again in the simulator, with the reuse that they had."""

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import redis
from django.core.management import call_command

from tests.engines import engine
from tests.gatewaying import serving
from tests.stack import ACME_KEY, GLOBEX_KEY, shape_rows, wait_until

TURNS = 5
SHARED = "A long document that every call of the tenant begins with, in parts. " * 60


def test_recorded_shapes_are_simulated_with_the_reuse_of_their_salted_hashes(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    with engine("--profile", "demo", "--time-scale", "20", model="alpha-8b") as served:
        upstream: Any = SimpleNamespace(address=("127.0.0.1", served.port))
        with serving(tmp_path, upstream) as gateway:
            for turn in range(TURNS):
                for secret in (ACME_KEY, GLOBEX_KEY):
                    text = f"{SHARED} Question {turn} of this tenant."
                    answer = gateway.chat(
                        secret, messages=[{"role": "user", "content": text}], max_tokens=8
                    )
                    assert answer.status_code == 200, answer.text
            calls = 2 * TURNS
            found = wait_until(lambda: len(r := shape_rows(store)) == calls and r, 10, "shapes")
    by_tenant = {
        name: [row for row in found if row.tenant_id == name] for name in ("acme", "globex")
    }
    hashes = {
        name: {one for row in rows for one in row.prefix_hashes} for name, rows in by_tenant.items()
    }
    assert hashes["acme"]
    assert not hashes["acme"] & hashes["globex"]  # the same text, each tenant's own salt
    report = simulated(tmp_path, [msgspec.json.encode(row) for row in found])
    assert report["total"]["ok"] == calls
    for name, rows in by_tenant.items():
        slice_ = report["slices"][f"{name}/standard"]
        assert slice_["input_tokens"] == sum(row.input_tokens for row in rows)
        assert slice_["output_tokens"] == sum(row.output_tokens for row in rows)
        # The engine that served them found as much: all but the first call's prefix, whole blocks.
        had = sum(row.cached_tokens for row in rows)
        assert had > 0
        assert slice_["cached_tokens"] == pytest.approx(had, rel=0.1)
    # Without their hashes nothing is found again: it is the hashes that carry the reuse.
    bare = [msgspec.json.encode(msgspec.structs.replace(row, prefix_hashes=[])) for row in found]
    assert simulated(tmp_path, bare)["total"]["cached_tokens"] == 0


def simulated(folder: Path, lines: list[bytes]) -> dict[str, Any]:
    """The shapes against one replica in virtual time."""
    (folder / "shapes.jsonl").write_bytes(b"\n".join(lines))
    document = {
        "until_s": 600,
        "fleet": [{"profile": "demo", "replicas": 1}],
        "traces": [{"form": "shapes", "file": "shapes.jsonl"}],
    }
    (folder / "scenario.json").write_text(json.dumps(document))
    out = io.StringIO()
    call_command("simulate", str(folder / "scenario.json"), "--quiet", stdout=out)
    report: dict[str, Any] = json.loads(out.getvalue())
    return report

"""The gateway process: snapshots, start without the store, drain, status, frames, metrics."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import httpx
import pytest
import redis

from routing.contracts.process import GatewayStatus, decode_gateway_status
from routing.contracts.slices import SliceDelta, decode_frame
from routing.contracts.snapshot import encode_snapshot
from routing.gateway import lifetime
from routing.gateway.config import from_environment
from routing.gateway.process import Gateway
from routing.store import keys
from telemetry.slos.rules import ObjectiveView, judge, whole
from telemetry.stats.windows import SliceSum
from tests.gatewaying import body_of, row, serving, stream, streaming, text_of
from tests.stack import (
    ACME_KEY,
    PEPPER,
    GatewayProcess,
    free_port,
    launch_gateway,
    make_snapshot,
    pool,
    publish,
    shape_rows,
    start_gateway,
    store_server,
    wait_until,
)
from tests.upstream import Script, Seen, UpstreamThread, json_script, stream_script


def status_of(store: "redis.Redis[bytes]", name: str = "g0") -> GatewayStatus | None:
    raw = store.hget(keys.GATEWAYS, name)
    return decode_gateway_status(raw) if raw else None


def test_ready_means_that_the_port_is_open(tmp_path: Path) -> None:
    """It said ready with its snapshot: a caller that believed it was refused a connection."""
    port = free_port()
    config = from_environment(
        {
            "REDIS_URL": f"redis://127.0.0.1:{free_port()}/0",
            "HEADRACE_STATE": str(tmp_path),
            "HEADRACE_KEY_PEPPER": PEPPER,
            "HEADRACE_GATEWAY_PORT": str(port),
        }
    )

    async def said() -> list[str]:
        gateway = Gateway(config, make_snapshot([("127.0.0.1", 1)]))
        before = gateway.why_not_ready
        server = await lifetime._serve_when_ready(gateway)
        assert server is not None
        after = gateway.why_not_ready
        server.close()
        return [before, after]

    before, after = asyncio.run(said())
    assert before == "the port is not open yet"
    assert after != before


def test_a_published_snapshot_is_in_force_and_acknowledged_within_a_second(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    with UpstreamThread() as u1, UpstreamThread() as u2, serving(tmp_path, u1) as gateway:
        assert gateway.chat().status_code == 200
        moved = make_snapshot([u2.address], number=2)
        since = time.monotonic()
        publish(store, moved)
        wait_until(lambda: (s := status_of(store)) is not None and s.snapshot_number == 2, 2, "ack")
        assert time.monotonic() - since < 1
        assert gateway.chat().status_code == 200
        assert (len(u1.completions), len(u2.completions)) == (1, 1)


def test_a_running_stream_keeps_the_snapshot_it_began_with(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    script = stream_script([f"t{i} " for i in range(20)], gap_s=0.05)
    with UpstreamThread(script) as upstream, serving(tmp_path, upstream) as gateway:
        with streaming(gateway) as response:
            lines = response.iter_lines()
            next(lines)
            publish(store, make_snapshot([], number=2))  # its endpoint is gone, too
            wait_until(lambda: (s := status_of(store)) and s.snapshot_number == 2, 2, "ack")
            assert list(lines)[-2] == "data: [DONE]"
        assert row(store).policy == "main@1"
        assert gateway.chat().status_code == 503


def test_damaged_or_newer_snapshots_leave_the_last_good_one(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    with UpstreamThread() as upstream, serving(tmp_path, upstream) as gateway:
        newer = encode_snapshot(make_snapshot([], number=3, schema_version=99))
        for number, raw in ((2, b"junk" * 20), (3, newer)):
            store.set(keys.SNAPSHOT, raw)
            store.set(keys.SNAPSHOT_NUMBER, number)
            wait_until(partial(_has_logged, gateway, f"snapshot {number} is refused"), 3, "refusal")
        assert gateway.chat().status_code == 200
        status = status_of(store)
        assert status is not None
        assert status.snapshot_number == 1


def _has_logged(gateway: GatewayProcess, text: str) -> bool:
    return text in gateway.log.read_text()


def test_it_starts_and_serves_from_disk_while_the_store_is_away(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with UpstreamThread() as upstream:
        snapshot = make_snapshot([upstream.address])
        with (
            store_server(tmp_path / "store") as url,
            start_gateway(snapshot, url, state) as gateway,
        ):
            assert gateway.chat().status_code == 200
            wait_until((state / "snapshot.g0.bin").exists, 3, "snapshot on disk")
        assert (state / "snapshot.g0.bin").stat().st_mode & 0o077 == 0
        nowhere = f"redis://127.0.0.1:{free_port()}/0"
        with start_gateway(None, nowhere, state) as gateway:
            response = gateway.chat()
            assert response.status_code == 200, response.text
            metrics = httpx.get(f"{gateway.admin_url}/metrics", trust_env=False).text
            assert 'headrace_store_mode{mode="degraded"} 1' in metrics
            gateway.process.kill()


def test_without_any_snapshot_it_waits_and_says_so(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    gateway = launch_gateway(os.environ["REDIS_URL"], tmp_path / "state")
    try:
        url = f"{gateway.admin_url}/readyz"

        def answer() -> httpx.Response | None:
            try:
                return httpx.get(url, trust_env=False)
            except httpx.HTTPError:
                return None

        found = wait_until(answer, 10, "admin port up")
        assert found.status_code == 503
        assert found.json()["reason"] == "no snapshot yet"
        publish(store, make_snapshot([]))
        wait_until(gateway.is_ready, 5, "ready once there is one")
    finally:
        assert gateway.stop() == 0


def test_sigterm_finishes_what_runs_then_exits_clean(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    """R23 (c): readiness turns 503 at once, all streams complete, then exit 0."""
    texts = [f"t{i} " for i in range(20)]
    with (
        UpstreamThread(stream_script(texts, gap_s=0.1)) as upstream,
        serving(tmp_path, upstream) as gateway,
    ):
        done: list[str] = []
        threads = [
            threading.Thread(target=lambda: done.append(text_of(stream(gateway))))
            for _ in range(10)
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(upstream.completions) == 10, 5, "all streams running")
        gateway.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not gateway.is_ready(), 1, "not ready at once")
        assert gateway.process.poll() is None
        with pytest.raises(OSError, match="refused"), socket.create_connection(
            ("127.0.0.1", gateway.port), 1
        ):  # fmt: skip
            pass
        for thread in threads:
            thread.join(10)
        assert done == ["".join(texts)] * 10
        assert gateway.process.wait(10) == 0


def test_at_the_drain_limit_streams_are_cut_with_a_typed_event_and_billed(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    script = stream_script([f"t{i} " for i in range(200)], gap_s=0.1)
    env = {"HEADRACE_GATEWAY_DRAIN_S": "1"}
    with (
        UpstreamThread(script) as upstream,
        serving(tmp_path, upstream, env=env) as gateway,
        streaming(gateway) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        gateway.process.send_signal(signal.SIGTERM)
        last = [line for line in lines if line][-1]
        assert '"shutting_down"' in last
        assert gateway.process.wait(10) == 0
        found = row(store)
        assert found.status == "incomplete"
        assert found.output_tokens > 5


def test_drain_over_the_admin_port(tmp_path: Path, store: object) -> None:
    with UpstreamThread() as upstream, serving(tmp_path, upstream) as gateway:
        assert httpx.get(f"{gateway.admin_url}/drain", trust_env=False).status_code == 405
        assert httpx.post(f"{gateway.admin_url}/drain", trust_env=False).status_code == 200
        assert gateway.process.wait(10) == 0


def test_each_second_a_frame_and_a_status(tmp_path: Path, store: "redis.Redis[bytes]") -> None:
    script = stream_script(["a", "b", "c"], gap_s=0.02)
    with UpstreamThread(script) as upstream, serving(tmp_path, upstream) as gateway:
        stream(gateway)
        gateway.chat(model="nope")

        def rows() -> list[object]:
            frames = [decode_frame(f[b"f"]) for _, f in store.xrange(keys.SLICE_FRAMES)]
            assert [f.seq for f in frames] == list(range(1, len(frames) + 1))
            return [r for f in frames for r in f.rows]

        found = wait_until(lambda: len(rows()) >= 2 and rows(), 4, "slices")
        served = next(r for r in found if r.requests)
        assert (served.tenant_id, served.model, served.pool) == ("acme", "alpha-8b", "p1")
        assert (served.output_tokens, sum(n for _, n in served.itl_s)) == (3, 2)
        assert sum(n for _, n in served.ttft_s) == sum(n for _, n in served.e2e_s) == 1
        refused = next(r for r in found if r.refused)
        assert refused.refused == {"not_found": 1}
        assert refused.model == "other"
        status = status_of(store)
        assert status is not None
        assert (status.state, status.store_mode, status.in_flight) == ("ready", "shared", 0)


def test_every_request_leaves_a_shape_without_text(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    headers = {
        "authorization": f"Bearer {ACME_KEY}", "x-headrace-session-id": "s-1",
        "x-headrace-task-kind": "research", "x-headrace-step": "2/5",
        "x-stainless-retry-count": "1",
    }  # fmt: skip
    secret = "the quick brown secret " * 40
    with UpstreamThread() as upstream, serving(tmp_path, upstream) as gateway:
        body = body_of(messages=[{"role": "user", "content": secret}])
        for model in ("alpha-8b", "nope"):
            httpx.post(
                f"{gateway.url}/v1/chat/completions", json=body | {"model": model},
                headers=headers, trust_env=False,
            )  # fmt: skip
        found = wait_until(lambda: len(r := shape_rows(store)) == 2 and r, 4, "two shapes")
        assert [r.outcome for r in found] == ["ok", "refused:not_found"]
        refused = found[1]
        assert (refused.refused_code, refused.refused_status) == ("not_found", 404)
        shape = found[0]
        assert (shape.refused_code, shape.key_id) == ("", "")
        assert (shape.session, shape.task_kind, shape.step) == ("s-1", "research", "2/5")
        assert (shape.resend_count, shape.max_tokens, shape.pool) == (1, 100, "p1")
        assert len(shape.prefix_hashes) == len(str(body["messages"])) // 256
        assert "secret" not in str(store.xrange(keys.SHAPES))


def test_a_taken_port_is_one_clear_line(tmp_path: Path, store: "redis.Redis[bytes]") -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        publish(store, make_snapshot([]))
        gateway = launch_gateway(
            os.environ["REDIS_URL"], tmp_path / "state", HEADRACE_GATEWAY_ADMIN_PORT=str(port)
        )
        assert gateway.process.wait(10) == 2
        assert f"cannot listen on 127.0.0.1:{port}" in gateway.log.read_text()
        assert "Traceback" not in gateway.log.read_text()


def test_a_missing_variable_is_one_clear_line() -> None:
    found = subprocess.run(
        [sys.executable, "-m", "routing.gateway"], env={"HEADRACE_KEY_PEPPER": PEPPER},
        capture_output=True, text=True, check=False, timeout=20,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert found.returncode == 2
    assert "REDIS_URL is not set" in found.stderr
    assert "Traceback" not in found.stderr


def test_served_model_is_spliced_in(tmp_path: Path, store: object) -> None:
    with UpstreamThread() as upstream:
        served = pool("p1", [upstream.address], served_model="org/Alpha-8B")
        with serving(tmp_path, upstream, pools={"p1": served}) as gateway:
            assert gateway.chat().status_code == 200
            assert upstream.completions[0].json["model"] == "org/Alpha-8B"


def test_an_upstreams_400_is_a_refusal_everywhere_and_its_500_a_failure(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    def script_of(seen: Seen) -> Script:
        wish = json.loads(seen.body)["messages"][0]["content"]
        return json_script({"error": {"message": "bad"}}, 400 if wish == "picture" else 500)

    with UpstreamThread() as upstream, serving(tmp_path, upstream) as gateway:
        upstream.choose = script_of
        for wish, status in (("picture", 400), ("boom", 502)):
            messages = [{"role": "user", "content": wish}]
            assert gateway.chat(messages=messages).status_code == status

        def sums() -> list[SliceDelta]:
            frames = [decode_frame(f[b"f"]) for _, f in store.xrange(keys.SLICE_FRAMES)]
            return [r for f in frames for r in f.rows]

        def ended() -> bool:
            return sum(r.requests + sum(r.refused.values()) for r in sums()) == 2

        wait_until(ended, 4, "both counted, each once")
        assert sum(r.requests for r in sums()) == sum(r.failed for r in sums()) == 1
        assert [r.refused for r in sums() if r.refused] == [{"invalid_request": 1}]
        found = wait_until(lambda: len(r := shape_rows(store)) == 2 and r, 4, "two shapes")
        assert [r.outcome for r in found] == ["refused:invalid_request", "failed"]
        page = httpx.get(f"{gateway.admin_url}/metrics", trust_env=False).text
        assert 'model_requests_total{model="alpha-8b",outcome="refused"} 1' in page
        counted = [
            SliceSum(requests=r.requests, failed=r.failed, refused=r.refused) for r in sums()
        ]
        judged = whole(judge(one, ObjectiveView(1, "", "", "ttft", 500, 0.99)) for one in counted)
        assert (judged.total, judged.good) == (1, 0)  # the caller's fault is not judged

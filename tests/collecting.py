"""Real collector processes and engines whose pages a test scripts."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from routing.contracts.endpoint_state import EndpointState, decode_pool_state
from routing.contracts.live import LivePool, LiveSlices, decode_live_pool, decode_live_slices
from routing.contracts.slices import ReplicaDelta, SliceDelta, SliceFrame, encode_frame
from routing.store import keys
from telemetry.collector.publish import Round, live_fields
from telemetry.stats import sketch
from telemetry.stats.figures import Spend, Trailing
from telemetry.stats.windows import key_of, minute_of
from tests.forking import Forked, forker
from tests.stack import free_port, wait_until

ROOT = Path(__file__).resolve().parent.parent


@dataclass
class ScriptedEngine:
    """An HTTP server whose answers a test sets: `pages` path -> (status, body)."""

    port: int = 0
    pages: dict[str, tuple[int, str]] = field(
        default_factory=lambda: {
            "/health": (200, ""),
            "/metrics": (200, "vllm:num_requests_running 0\n"),
            "/version": (200, '{"version":"0.32.0"}'),
        }
    )
    is_stuck: bool = False
    asked: int = 0
    server: ThreadingHTTPServer | None = None

    def metrics(self, **values: float) -> None:
        """Set the metrics page: `num_requests_running=2` is `vllm:num_requests_running` 2."""
        lines = [f'vllm:{name}{{engine="0"}} {value}' for name, value in values.items()]
        self.pages["/metrics"] = (200, "\n".join([*lines, ""]))

    def start(self) -> None:
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                engine.asked += 1
                release = time.monotonic() + 30
                while engine.is_stuck and time.monotonic() < release:
                    time.sleep(0.02)
                status, body = engine.pages.get(self.path, (404, ""))
                self.send_response(status)
                self.send_header("content-length", str(len(body.encode())))
                self.end_headers()
                try:
                    self.wfile.write(body.encode())
                except OSError:
                    self.close_connection = True

            def log_message(self, *_: Any) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        if self.server:
            self.server.shutdown()
            self.server.server_close()
            self.server = None


@contextmanager
def engines(count: int) -> Iterator[list[ScriptedEngine]]:
    """Started engines."""
    made = [ScriptedEngine() for _ in range(count)]
    for engine in made:
        engine.start()
    try:
        yield made
    finally:
        for engine in made:
            engine.stop()


@dataclass
class CollectorProcess:
    """A running collector."""

    process: Forked
    log: Path

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Signal and wait; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
            if number != signal.SIGKILL:
                self.process.send_signal(signal.SIGCONT)
        return self.process.wait(10)


def launch_collector(redis_url: str, directory: Path, **env: str) -> CollectorProcess:
    """Start one without waiting."""
    log = directory / "collector.log"
    with log.open("ab") as out:
        environment = {"PATH": os.environ["PATH"], "REDIS_URL": redis_url, **env}
        process = forker("telemetry.collector").start(env=environment, out=out)
    return CollectorProcess(process, log)


@contextmanager
def start_collector(redis_url: str, directory: Path, **env: str) -> Iterator[CollectorProcess]:
    """A collector process; ended with SIGTERM."""
    collector = launch_collector(redis_url, directory, **env)
    try:
        yield collector
    finally:
        collector.stop()


def live_slices(store: Any, name: str = "slices") -> LiveSlices | None:
    """What the collector published last."""
    raw = store.hget(keys.LIVE, name)
    return decode_live_slices(raw) if raw else None


def live_pool(store: Any) -> LivePool | None:
    """What the collector published last."""
    raw = store.hget(keys.LIVE, "pool")
    return decode_live_pool(raw) if raw else None


def endpoint(store: Any, pool: str, position: int = 0) -> EndpointState | None:
    """A replica as gateways see it."""
    raw = store.get(keys.pool_state(pool))
    states = decode_pool_state(raw).endpoints if raw else []
    return states[position] if position < len(states) else None


@dataclass
class FakeGateway:
    """Writes slice frames the way a gateway does."""

    store: Any
    gateway_id: str = "g0"
    incarnation: str = "i1"
    seq: int = 0

    def report(
        self,
        *rows: SliceDelta,
        at_ms: int | None = None,
        times: int = 1,
        replicas: tuple[ReplicaDelta, ...] = (),
    ) -> int:
        """Append one frame (`times` > 1: as if its answer had been lost); its instant."""
        at_ms = at_ms or time.time_ns() // 1_000_000
        frame = SliceFrame(
            self.gateway_id, self.incarnation, self.seq, at_ms, list(rows), list(replicas)
        )
        self.seq += 1
        for _ in range(times):
            self.store.xadd(keys.SLICE_FRAMES, {"f": encode_frame(frame)})
        return at_ms


def traffic(
    tenant: str = "1",
    ttfts_s: tuple[float, ...] = (),
    *,
    model: str = "m",
    pool: str = "p1",
    work_class: str = "standard",
    **more: Any,
) -> SliceDelta:
    """A slice's second with these times to first token."""
    pairs: dict[int, int] = {}
    sketch.add(pairs, ((sketch.index_of(value), 1) for value in ttfts_s))
    fields = {"requests": len(ttfts_s), "ttft_s": list(pairs.items())} | more
    return SliceDelta(tenant, model, pool, work_class, **fields)


@dataclass
class FakeCollector:
    """Publishes live states the way the collector does, when a test says so."""

    store: Any
    epoch: str = field(default_factory=lambda: uuid.uuid4().hex)  # a start of the collector
    seq: int = 0
    slugs: dict[str, str] = field(default_factory=dict)
    frames_at_ms: int | None = None

    def publish(
        self,
        deltas: list[SliceDelta],
        replicas: list[EndpointState] | None = None,
        now_ms: int | None = None,
    ) -> int:
        """Publish rows of these deltas and replicas; the sequence number."""
        now_ms = now_ms or time.time_ns() // 1_000_000
        self.seq += 1
        trailing, spend = Trailing(), Spend()
        trailing.add(now_ms // 1000, deltas)
        for delta in deltas:
            spend.add(minute_of(now_ms), key_of(delta), delta.spend_nanousd)
        found = Round(
            epoch=self.epoch,
            seq=self.seq,
            now_ms=now_ms,
            pools={"p1": replicas or []},
            trailing=trailing,
            spend=spend,
            frames_at_ms=self.frames_at_ms or now_ms,
            slugs=self.slugs,
        )
        fields = live_fields(found, replicas or [])
        self.store.hset(keys.LIVE, mapping=fields)
        self.store.publish(keys.NUDGES, "live")
        return self.seq


@dataclass
class ConsoleProcess:
    """A running console over the test database."""

    process: "subprocess.Popen[bytes]"
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def socket_url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/ws/live/?v=1"

    def rss_bytes(self) -> int:
        """Resident memory."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")


@contextmanager
def start_console(
    redis_url: str, database_url: str, directory: Path, **env: str
) -> Iterator[ConsoleProcess]:
    """The real server of the console: uvicorn with the ASGI application."""
    port = free_port()
    log = directory / "console.log"
    environment = {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "REDIS_URL": redis_url,
        "DATABASE_URL": database_url, "HEADRACE_STATE": str(directory),
        "HEADRACE_SECRET_KEY": os.environ["HEADRACE_SECRET_KEY"],
        "HEADRACE_KEY_PEPPER": os.environ["HEADRACE_KEY_PEPPER"],
    } | env  # fmt: skip
    command = [
        sys.executable, "-m", "uvicorn", "console.project.asgi:application", "--host", "127.0.0.1",
        "--port", str(port), "--no-access-log",
    ]  # fmt: skip
    with log.open("ab") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, cwd=ROOT)

    def is_up() -> bool:
        if process.poll() is not None:
            raise AssertionError(f"console exited:\n{log.read_text()}")
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(is_up, 30, "console up")
        yield ConsoleProcess(process, port, log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)

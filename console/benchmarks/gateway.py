"""What the gateway costs beside nginx, in one run: CPU per request, long prompt, streamed chunk.

nginx relays to the same upstream after comparing one static key; the gateway does its whole
admission (key, estimate, reservation in a real store, routing, settlement, journal). CPU is read
from the kernel for the measured process alone, so the figure holds while the load generator or the
store is the bottleneck.
"""

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from django.core.management.base import CommandError

from console.benchmarks.fixture import (
    BENCH_KEY,
    BENCH_PEPPER,
    bench_store,
    publish_bench_snapshot,
)
from console.benchmarks.harness import Figure, cpu_s, figure_of, free_port

MEASURED_CORE = {0}
OTHER_CORE = {1}
CONNECTIONS = 32
STREAM_CHUNKS = 128
SHORT_BYTES = 216  # of a prompt
LONG_BYTES = 100_000  # as agents send that read files
READY_TIMEOUT_S = 20.0
NGINX_CONF = """
worker_processes 1; daemon off; pid {dir}/nginx.pid; error_log {dir}/nginx.err warn;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_buffer_size 1m; keepalive_requests 1000000;
  client_body_temp_path {dir}/b; proxy_temp_path {dir}/p; fastcgi_temp_path {dir}/f;
  uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s;
  upstream up {{ server 127.0.0.1:{upstream}; keepalive 512; keepalive_requests 1000000; }}
  map $http_authorization $is_known {{ default 0; "Bearer {key}" 1; }}
  server {{
    listen 127.0.0.1:{port} backlog=1024;
    location / {{
      if ($is_known = 0) {{ return 401; }}
      proxy_pass http://up; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A running router: its process and where it listens."""

    name: str
    pid: int
    port: int


@dataclass(frozen=True, slots=True)
class Round:
    """One measured load: CPU microseconds of the router per unit, and requests a second."""

    cpu_us_per_request: float
    cpu_us_per_chunk: float
    requests_per_s: float


def run(*, is_quick: bool) -> list[Figure]:
    """Measure; `is_quick` is three rounds of a second, half a minute in all."""
    seconds = 1.0 if is_quick else 6.0
    rounds = 3 if is_quick else 7
    nginx_binary = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/sbin")
    if nginx_binary is None:
        raise CommandError("nginx is not installed: install the package nginx-light and run again")
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-")))
        upstream_port = free_port()
        upstream = [
            sys.executable,
            "-m",
            "console.benchmarks.stand",
            "upstream",
            str(upstream_port),
        ]
        stack.enter_context(_process(upstream, OTHER_CORE))
        nginx = stack.enter_context(_nginx(nginx_binary, directory, upstream_port))
        gateway = stack.enter_context(_gateway(directory, upstream_port))
        for candidate in (nginx, gateway):
            _measure(candidate, 1.0, 0)  # warm: connections made, code paths taken
        plain = [
            (_measure(nginx, seconds, 0), _measure(gateway, seconds, 0)) for _ in range(rounds)
        ]
        streams = [
            (_measure(nginx, seconds, STREAM_CHUNKS), _measure(gateway, seconds, STREAM_CHUNKS))
            for _ in range(rounds)
        ]
        long = [
            (
                _measure(nginx, seconds / 2, 0, LONG_BYTES),
                _measure(gateway, seconds / 2, 0, LONG_BYTES),
            )
            for _ in range(rounds)
        ]
    return [
        figure_of(
            "gateway_cpu_per_request",
            "us",
            [(old.cpu_us_per_request, new.cpu_us_per_request) for old, new in plain],
        ),
        figure_of(
            "gateway_requests_per_s",
            "1/s",
            [(old.requests_per_s, new.requests_per_s) for old, new in plain],
        ),
        figure_of(
            "gateway_cpu_per_chunk",
            "us",
            [(old.cpu_us_per_chunk, new.cpu_us_per_chunk) for old, new in streams],
        ),
        figure_of(
            "gateway_cpu_per_long_request",
            "us",
            [(old.cpu_us_per_request, new.cpu_us_per_request) for old, new in long],
        ),
    ]


def _measure(
    candidate: Candidate, seconds: float, chunks: int, prompt_bytes: int = SHORT_BYTES
) -> Round:
    command = [
        sys.executable, "-m", "console.benchmarks.stand", "load",
        str(candidate.port), BENCH_KEY, str(CONNECTIONS), str(seconds), str(chunks),
        str(prompt_bytes),
    ]  # fmt: skip
    before = cpu_s(candidate.pid)
    with _process(command, OTHER_CORE, output=subprocess.PIPE) as generator:
        output, _ = generator.communicate(timeout=seconds + READY_TIMEOUT_S)
    used_s = cpu_s(candidate.pid) - before
    result = json.loads(output)
    if result["errors"] or not result["requests"]:
        counts = f"{result['errors']} errors, {result['requests']} answers"
        raise CommandError(f"{candidate.name} did not answer everything: {counts}")
    return Round(
        cpu_us_per_request=used_s * 1e6 / result["requests"],
        cpu_us_per_chunk=used_s * 1e6 / max(1, result["chunks"]),
        requests_per_s=result["requests"] / result["seconds"],
    )


@contextlib.contextmanager
def _nginx(binary: str, directory: Path, upstream_port: int) -> Iterator[Candidate]:
    port = free_port()
    conf = directory / "nginx.conf"
    conf.write_text(
        NGINX_CONF.format(dir=directory, upstream=upstream_port, port=port, key=BENCH_KEY)
    )
    command = [binary, "-c", str(conf), "-p", str(directory), "-e", "stderr"]
    with _process(command, MEASURED_CORE) as running:
        _wait_for_port(port)
        yield Candidate("nginx", running.pid, port)


@contextlib.contextmanager
def _gateway(directory: Path, upstream_port: int) -> Iterator[Candidate]:
    port = free_port()
    with bench_store(directory) as (redis_url, store_pid):
        _pin(store_pid, OTHER_CORE)
        publish_bench_snapshot(redis_url, upstream_port)
        environment = {
            **os.environ,
            "REDIS_URL": redis_url,
            "HEADRACE_STATE": str(directory),
            "HEADRACE_KEY_PEPPER": BENCH_PEPPER,
            "HEADRACE_GATEWAY_ID": "bench",
            "HEADRACE_GATEWAY_HOST": "127.0.0.1",
            "HEADRACE_GATEWAY_PORT": str(port),
            "HEADRACE_GATEWAY_ADMIN_PORT": str(free_port()),
        }
        command = [sys.executable, "-m", "routing.gateway"]
        with _process(command, MEASURED_CORE, environment) as running:
            _wait_for_port(port)
            yield Candidate("gateway", running.pid, port)


@contextlib.contextmanager
def _process(
    command: list[str],
    cores: set[int],
    environment: dict[str, str] | None = None,
    output: int = subprocess.DEVNULL,
) -> Iterator["subprocess.Popen[bytes]"]:
    running = subprocess.Popen(  # noqa: S603 - fixed commands
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.DEVNULL,
    )
    _pin(running.pid, cores)
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def _pin(pid: int, cores: set[int]) -> None:
    usable = os.sched_getaffinity(0) & cores
    if usable:  # a machine of one core measures unpinned
        os.sched_setaffinity(pid, usable)


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        select.select([], [], [], 0.05)
    raise CommandError(f"nothing listens on port {port} after {READY_TIMEOUT_S:.0f} s")

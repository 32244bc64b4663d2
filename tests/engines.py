"""Real processes of the bundled engine, for tests."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parent.parent
START_WAIT_S = 30
MODEL = "tiny"


def wait_for(condition: Callable[[], Any], timeout_s: float = 20, every_s: float = 0.02) -> Any:
    """The condition's first true value; fails the test after the time."""
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        if value := condition():
            return value
        time.sleep(every_s)
    raise AssertionError(f"not true within {timeout_s} s")


@dataclass
class EngineProcess:
    """A running engine."""

    process: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, timeout_s: float = 5) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=timeout_s) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def post(
        self, path: str, body: dict[str, Any], timeout_s: float = 30, **headers: str
    ) -> tuple[int, dict[str, Any], dict[str, str]]:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        for name, value in headers.items():
            request.add_header(name.replace("_", "-"), value)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return answer.status, json.load(answer), dict(answer.headers)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error), dict(error.headers)

    def chat(self, text: str, **fields: Any) -> dict[str, Any]:
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}
        status, answer, _headers = self.post("/v1/chat/completions", body)
        assert status == 200, answer
        return answer

    def metrics(self) -> dict[str, float]:
        """Samples that have no labels beyond engine and model, by name."""
        status, text = self.get("/metrics")
        assert status == 200
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(text.decode())
            for sample in family.samples
            if not set(sample.labels) - {"engine", "model_name"}
        }

    def stop(self, signum: int = signal.SIGTERM, timeout_s: float = 15) -> int:
        self.process.send_signal(signum)
        return self.process.wait(timeout_s)


@contextmanager
def engine(*flags: str, model: str = MODEL, **popen: Any) -> Iterator[EngineProcess]:
    """An engine on a free port, ready; ended afterwards whatever happened."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        port = listener.getsockname()[1]
        command = [sys.executable, "-m", "capacity.engine", "--model", model]
        process = subprocess.Popen(
            [*command, "--fd", str(listener.fileno()), *flags],
            cwd=ROOT,
            pass_fds=(listener.fileno(),),
            **popen,
        )
    running = EngineProcess(process, port)
    try:
        assert running.get("/health", timeout_s=START_WAIT_S)[0] == 200
        yield running
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)

"""Real processes of the bundled engine, for tests."""

import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.forking import Forked, forker
from tests.stack import pause

ROOT = Path(__file__).resolve().parent.parent
START_WAIT_S = 30
MODEL = "tiny"


def wait_for(condition: Callable[[], Any], timeout_s: float = 20, every_s: float = 0.0) -> Any:
    """The condition's first true value; fails the test after the time.

    It is looked at all `every_s` seconds; 0: less often the longer it takes.
    """
    began_s = time.monotonic()
    while time.monotonic() < began_s + timeout_s:
        if value := condition():
            return value
        time.sleep(every_s) if every_s else pause(began_s)
    raise AssertionError(f"not true within {timeout_s} s")


@dataclass
class EngineProcess:
    """A running engine."""

    process: Forked
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
def engine(*flags: str, model: str = MODEL) -> Iterator[EngineProcess]:
    """An engine on a free port, ready; ended afterwards whatever happened."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        port = listener.getsockname()[1]
        words = ["--model", model, "--fd", str(listener.fileno()), *flags]
        process = forker("capacity.engine").start(
            words, env=os.environ, pass_fds=(listener.fileno(),)
        )
    running = EngineProcess(process, port)
    try:
        assert running.get("/health", timeout_s=START_WAIT_S)[0] == 200
        yield running
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)

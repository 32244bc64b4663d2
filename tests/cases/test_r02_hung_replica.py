"""R02: a replica that answers health checks but not requests is taken out."""

import threading
import time
from pathlib import Path

import redis

from routing.contracts.process import decode_gateway_status
from routing.store import keys
from tests.gatewaying import serving, streaming
from tests.stack import GatewayProcess, policy, wait_until
from tests.upstream import Hang, UpstreamThread, stream_script

LIMITS = policy(deadlines=(2.0, 2.0, 60.0))
GOOD = stream_script(["fine"])


class Load:
    """Two streamed requests a second, each on a thread of its own; the statuses that came back."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.gateway = gateway
        self.statuses: list[int] = []
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._clock = threading.Thread(target=self._run)

    def __enter__(self) -> "Load":
        self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._clock.join()
        for thread in self._threads:
            thread.join(10)

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            thread = threading.Thread(target=self._one)
            thread.start()
            self._threads.append(thread)

    def _one(self) -> None:
        with streaming(self.gateway) as response:
            response.read()
            self.statuses.append(response.status_code)


def breakers(store: "redis.Redis[bytes]") -> dict[str, str]:
    raw = store.hget(keys.GATEWAYS, "g0")
    return decode_gateway_status(raw).open_breakers if raw else {}


def test_few_are_affected_and_it_returns_only_after_a_real_completion(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    with (
        UpstreamThread([Hang()]) as u1,
        UpstreamThread(GOOD) as u2,
        serving(tmp_path, u1, u2, policy=LIMITS) as gateway,
        Load(gateway) as load,
    ):
        begun = time.monotonic()
        wait_until(lambda: breakers(store).get("p1-u1") == "hung", 30, "seen as hung")
        taken = len(u1.completions)
        wait_until(lambda: time.monotonic() - begun > 12, 20, "a while later")
        others = [r for r in u1.completions[taken:] if r.json["max_tokens"] != 1]
        assert not others, "only probes still reach it"
        affected = sum(status != 200 for status in load.statuses)
        assert 1 <= affected <= 6
        assert len(u2.completions) > 10
        u1.plan(GOOD)
        recovered = len(u1.completions)
        wait_until(lambda: len(u1.completions) > recovered + 1, 60, "traffic again")
        first = u1.completions[recovered]
        if first.json["messages"][0]["content"] != "ping":
            first = u1.completions[recovered - 1]
        assert first.json["max_tokens"] == 1, "a probe came before any client's request"
        wait_until(lambda: "p1-u1" not in breakers(store), 10, "breaker closed")

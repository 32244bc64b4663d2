"""R23: rollouts and scale-downs finish the streams that they meet, and no caller sees an error.

A real gateway over simulated replicas; the test does what the worker does, pass by pass.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from capacity.fleet import services as fleet
from capacity.models import Replica, ReplicaChange, Rollout
from console.audit.rules import SYSTEM
from console.models import Job
from routing.contracts.snapshot import bucket_of
from routing.policies.services import push_snapshot
from tenants.directory.services import create_tenant
from tenants.keys.services import issue_key
from tests import factories, rolling
from tests.factories import ACTOR, World
from tests.gatewaying import payloads
from tests.managing import managed_gateway
from tests.stack import GatewayProcess, usage_events, wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]
MODEL = "llama-8b"
STREAMS = 10
STREAM_TOKENS = 400
NEW_PER_S = 5


@dataclass
class Traffic:
    """New short calls at a steady rate, and what became of every call."""

    gateway: GatewayProcess
    secret: str
    statuses: list[int] = field(default_factory=list)
    streams: list[list[Any]] = field(default_factory=list)
    opened: int = 0
    _over: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def ask(self, tokens: int, *, stream: bool) -> None:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "say something long"}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": stream,
            "stream_options": {"include_usage": True} if stream else None,
        }
        with (
            httpx.Client(timeout=90, trust_env=False) as client,
            client.stream(
                "POST",
                f"{self.gateway.url}/v1/chat/completions",
                json={name: value for name, value in body.items() if value is not None},
                headers={"authorization": f"Bearer {self.secret}"},
            ) as answer,
        ):
            self.opened += stream
            raw = answer.read()
            self.statuses.append(answer.status_code)
            if stream:
                self.streams.append(payloads(raw))

    def begin(self, tokens: int, *, stream: bool) -> None:
        thread = threading.Thread(target=self.ask, args=(tokens,), kwargs={"stream": stream})
        thread.start()
        self._threads.append(thread)

    def steadily(self) -> None:
        while not self._over.wait(1 / NEW_PER_S):
            self.begin(4, stream=False)

    @contextmanager
    def flowing(self) -> Iterator[None]:
        clock = threading.Thread(target=self.steadily)
        clock.start()
        try:
            yield
        finally:
            self._over.set()
            clock.join()
            for thread in self._threads:
                thread.join(90)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store) -> Iterator[World]:
    made = World()
    made.tenants["acme"] = create_tenant(slug="acme", name="Acme", actor=ACTOR)
    made.keys["acme"] = issue_key(tenant_id=made.tenants["acme"], name="bot", actor=ACTOR)
    factories.make_fleet(made, {})
    with rolling.own_drivers(tmp_path / "engines", monkeypatch):
        fleet.create_pool(
            name="p",
            model=MODEL,
            driver="simulated",
            region="eu",
            domain="eu-a",
            spec={"profile": "demo", "drain_s": 60},
            desired_replicas=2,
            actor=ACTOR,
        )
        made.pools.append("p")
        factories.make_policy(made)
        rolling.settle(lambda: rolling.ready() == 2)
        yield made


def work() -> None:
    """The worker's passes, and the push that they ask for; then the time until the next."""
    rolling.work()
    if Job.objects.filter(kind="push_snapshot", state="queued").delete()[0]:
        push_snapshot()
    time.sleep(rolling.PASS_S)


def changed_at_ms(replica: str, to: str) -> int:
    change = ReplicaChange.objects.filter(replica__name=replica, after=to).latest("id")
    return int(change.at.timestamp() * 1000)


def check_nobody_noticed(world: World, store, traffic: Traffic, drained: list[str]) -> None:
    assert set(traffic.statuses) == {200}
    assert len(traffic.statuses) > STREAMS + 20
    assert len(traffic.streams) == STREAMS
    for stream in traffic.streams:
        assert stream[-1] == "[DONE]"
        assert stream[-2]["usage"]["completion_tokens"] == STREAM_TOKENS
    bucket = bucket_of(str(world.tenants["acme"]))
    wait_until(lambda: len(usage_events(store, bucket)) == len(traffic.statuses), 20, "all settled")
    events = [event for _, event in usage_events(store, bucket)]
    assert {event.status for event in events} == {"ok"}
    for name in drained:
        told_ms = changed_at_ms(name, "draining")
        served = [event for event in events if event.replica == name]
        assert served, name
        late = [event for event in served if event.started_at_ms > told_ms + 1000]
        assert not late, f"{name} was given work after it began to drain"
        assert max(event.ended_at_ms for event in served) <= changed_at_ms(name, "cold")


def test_a_rollout_loses_no_answer(world: World, store, tmp_path: Path) -> None:
    with managed_gateway(world, store, tmp_path / "gateway") as gateway:
        traffic = Traffic(gateway, world.keys["acme"].secret)
        with traffic.flowing():
            for _ in range(STREAMS):
                traffic.begin(STREAM_TOKENS, stream=True)
            wait_until(lambda: traffic.opened == STREAMS, 20, "streams open")
            rollout_id = rolling.begin(spec={"profile": "demo", "drain_s": 60, "max_num_seqs": 64})
            end_s = time.monotonic() + 120
            while Rollout.objects.get(pk=rollout_id).state == "running":
                assert time.monotonic() < end_s
                work()
        assert Rollout.objects.get(pk=rollout_id).state == "done"
        assert {one.name for one in rolling.live()} == {"p-2", "p-3"}
        check_nobody_noticed(world, store, traffic, ["p-0", "p-1"])


def test_a_scale_down_loses_no_answer(world: World, store, tmp_path: Path) -> None:
    with managed_gateway(world, store, tmp_path / "gateway") as gateway:
        traffic = Traffic(gateway, world.keys["acme"].secret)
        with traffic.flowing():
            for _ in range(STREAMS):
                traffic.begin(STREAM_TOKENS, stream=True)
            wait_until(lambda: traffic.opened == STREAMS, 20, "streams open")
            fleet.set_desired_replicas(pool="p", replicas=1, actor=SYSTEM)
            end_s = time.monotonic() + 90
            while len(rolling.live()) > 1:
                assert time.monotonic() < end_s
                work()
        check_nobody_noticed(world, store, traffic, ["p-1"])


def test_streams_longer_than_the_drain_limit_are_cut_and_counted(
    world: World, store, tmp_path: Path
) -> None:
    with managed_gateway(world, store, tmp_path / "gateway") as gateway:
        traffic = Traffic(gateway, world.keys["acme"].secret)
        with traffic.flowing():
            for _ in range(4):
                traffic.begin(4000, stream=True)
            wait_until(lambda: traffic.opened == 4, 20, "streams open")
            rollout_id = rolling.begin(drain_limit_s=5)
            end_s = time.monotonic() + 90
            while Rollout.objects.get(pk=rollout_id).state == "running":
                assert time.monotonic() < end_s
                work()
        cut = [stream for stream in traffic.streams if stream[-1] != "[DONE]" or _has_error(stream)]
        assert cut
        told = [Replica.objects.get(name=name).cause for name in ("p-0", "p-1")]
        counts = [int(text.split(": ")[1].split()[0]) for text in told if "calls cut" in text]
        assert sum(counts) == len(cut)
        bucket = bucket_of(str(world.tenants["acme"]))
        wait_until(
            lambda: len(usage_events(store, bucket)) == len(traffic.statuses), 20, "all settled"
        )
        billed = [event for _, event in usage_events(store, bucket) if event.status != "ok"]
        assert len(billed) == len(cut)
        assert all(event.output_tokens > 0 for event in billed)


def _has_error(stream: list[Any]) -> bool:
    return any(isinstance(item, dict) and "error" in item for item in stream)

"""Reserved shares of a pool between classes: two gateways, the real store, a bundled engine."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import redis

from routing.contracts.capacity import CapacityLimit, CapacityScope
from routing.contracts.enums import Dimension, WorkClass
from routing.contracts.snapshot import ClassPolicy, PoolEntry, Snapshot
from routing.decision.classes import CLAW_BACK_MS
from routing.store import keys
from tests.engines import EngineProcess, engine
from tests.stack import (
    ACME_KEY,
    GatewayProcess,
    api_key,
    make_snapshot,
    open_buckets,
    policy,
    pool,
    start_gateway,
    wait_for_room_in_the_minute,
)

pytestmark = pytest.mark.anyio
logging.getLogger("httpx").setLevel(logging.WARNING)  # a line a call would drown a failure

POOL = keys.credits_of(CapacityScope.POOL, "p1")
LIMIT, FULL, FLOOR = 24, 12, 2  # at once: interactive's half, and its tenth that is never lent
CLASSES = {
    "interactive": ClassPolicy(20, 5, 30, None, 0.5, 0.1),
    "standard": ClassPolicy(20, 5, 30, None, 0.0, 0.01),
    "batch": ClassPolicy(20, 5, 30, None, 0.0, 0.01),
}
INTERACTIVE_CALLERS, BATCH_CALLERS = 8, 30
LONG = {"max_tokens": 100, "ignore_eos": True}
PAUSE_S = 0.1  # after a refusal: these callers obey no hint, which is the harder case


@dataclass(frozen=True, slots=True)
class Call:
    """One call and what came of it; instants are monotonic seconds."""

    name: str
    began_s: float
    ended_s: float
    status: int
    headers: httpx.Headers
    body: str


def sharing(limited: CapacityLimit, process: EngineProcess) -> Snapshot:
    entry = pool("p1", [("127.0.0.1", process.port)])
    fields = {name: getattr(entry, name) for name in entry.__struct_fields__}
    return make_snapshot(
        [],
        pools={"p1": PoolEntry(**{**fields, "limits": (limited,)})},
        policy=policy(classes=CLASSES),
        keys=dict([api_key("acme", ACME_KEY, work_class=WorkClass.INTERACTIVE)]),
    )


@contextlib.contextmanager
def gateways(snapshot: Snapshot, url: str, tmp_path: Path) -> Iterator[list[GatewayProcess]]:
    with contextlib.ExitStack() as stack:
        found = [
            stack.enter_context(
                start_gateway(snapshot, url, tmp_path / f"g{n}", HEADRACE_GATEWAY_ID=f"g{n}")
            )
            for n in range(2)
        ]
        yield found
        for one in found:
            one.process.kill()
            one.process.wait(10)


async def call(client: httpx.AsyncClient, url: str, name: str, **fields: object) -> Call:
    began_s = time.monotonic()
    body = {"model": "alpha-8b", "messages": [{"role": "user", "content": "hi"}], **fields}
    headers = {"authorization": f"Bearer {ACME_KEY}", "x-headrace-class": name}
    found = await client.post(f"{url}/v1/chat/completions", json=body, headers=headers)
    return Call(name, began_s, time.monotonic(), found.status_code, found.headers, found.text)


async def keep_calling(
    client: httpx.AsyncClient, url: str, name: str, calls: list[Call], stop: asyncio.Event
) -> None:
    while not stop.is_set():
        calls.append(await call(client, url, name, user=str(len(calls)), **LONG))
        if calls[-1].status != 200:
            await asyncio.sleep(PAUSE_S)


@dataclass(frozen=True, slots=True)
class Seen:
    """What gateways owned of the pool by class, and what the engine ran."""

    at_s: float
    owned: dict[str, int]
    running: float


async def watch(
    store: "redis.Redis[bytes]", process: EngineProcess, seen: list[Seen], stop: asyncio.Event
) -> None:
    while not stop.is_set():
        at_s = time.monotonic()
        fields = await asyncio.to_thread(store.hgetall, POOL)
        metrics = await asyncio.to_thread(process.metrics)
        owned = dict.fromkeys(CLASSES, 0)
        for field, value in fields.items():
            kind, _, name, *_ = field.decode().split(":")
            owned[name] += int(value.split()[0]) if kind == "g" else 0
        running = metrics["vllm:num_requests_running"] + metrics["vllm:num_requests_waiting"]
        seen.append(Seen(at_s, owned, running))
        await asyncio.sleep(0.05)


@pytest.mark.timeout(120)
async def test_an_idle_share_is_lent_and_comes_back_within_its_bound(
    store: "redis.Redis[bytes]", tmp_path: Path
) -> None:  # one story: lent, wanted back, whole again
    limits = httpx.Limits(max_connections=100)
    with engine(model="alpha-8b") as process:
        snapshot = sharing(CapacityLimit(Dimension.CONCURRENCY, LIMIT), process)
        open_buckets(store, [tenant.bucket for tenant in snapshot.tenants.values()])
        with gateways(snapshot, os.environ["REDIS_URL"], tmp_path) as running:
            calls: list[Call] = []
            seen: list[Seen] = []
            stop = asyncio.Event()
            async with (
                httpx.AsyncClient(timeout=60, trust_env=False, limits=limits) as client,
                asyncio.TaskGroup() as group,
            ):
                group.create_task(watch(store, process, seen, stop))
                for n in range(BATCH_CALLERS):
                    url = running[n % 2].url
                    group.create_task(keep_calling(client, url, "batch", calls, stop))
                await asyncio.sleep(6)
                back_s = time.monotonic()
                for n in range(INTERACTIVE_CALLERS):
                    url = running[n % 2].url
                    group.create_task(keep_calling(client, url, "interactive", calls, stop))
                longest_s = max(c.ended_s - c.began_s for c in calls)
                whole_s = back_s + CLAW_BACK_MS / 1000 + longest_s
                await asyncio.sleep(whole_s - time.monotonic() + 5)
                stop.set()
    assert {c.status for c in calls} == {200, 503}
    assert 0 < max(one.running for one in seen) <= LIMIT
    lent = max(one.owned["batch"] for one in seen if one.at_s < back_s)
    assert lent == LIMIT - FLOOR, "the idle share is lent, its floor is not"
    running = max(one.running for one in seen if one.at_s < back_s)
    assert running > FULL, "and used"
    returned_s = min(
        one.at_s for one in seen if one.at_s > back_s and one.owned["batch"] <= LIMIT - FULL
    )
    first = min(c.ended_s for c in calls if c.name == "interactive" and c.status == 200)
    assert first < whole_s
    later = [c for c in calls if c.name == "interactive" and c.began_s >= whole_s]
    assert len(later) > INTERACTIVE_CALLERS
    assert {c.status for c in later} == {200}, "under its share nobody is refused for another"
    kept = [one.owned["batch"] for one in seen if one.at_s >= whole_s]
    assert min(kept) >= 1
    assert max(kept) <= LIMIT - FULL, "batch goes on with what is nobody's"
    _assert_refusals_say_why(
        [c for c in calls if c.name == "batch" and c.status == 503 and c.began_s >= whole_s]
    )
    print(
        f"of {LIMIT}: {lent} lent to batch ({running:.0f} ran), {max(kept)} kept; first interactive"
        f" answer after {first - back_s:.2f} s, all lent back after {returned_s - back_s:.2f} s"
    )


def _assert_refusals_say_why(refused: list[Call]) -> None:
    scopes = {(c.headers["x-headrace-scope"], c.headers["x-headrace-limit"]) for c in refused}
    assert ("pool_class", "concurrency") in scopes
    assert scopes <= {("pool_class", "concurrency"), ("pool", "concurrency")}
    assert any("keeps what is left" in c.body for c in refused)
    assert all(0 < int(c.headers["retry-after-ms"]) <= 125_000 for c in refused)


@pytest.mark.timeout(120)
async def test_a_minutes_share_is_there_for_its_class_however_many_others_ask(
    store: "redis.Redis[bytes]", tmp_path: Path
) -> None:
    """Interactive has asked in this minute: batch may not have its requests."""
    with engine(model="alpha-8b") as process:
        snapshot = sharing(CapacityLimit(Dimension.REQUESTS, 40), process)
        open_buckets(store, [tenant.bucket for tenant in snapshot.tenants.values()])
        with gateways(snapshot, os.environ["REDIS_URL"], tmp_path) as (one, two):
            wait_for_room_in_the_minute(store, need_s=20)
            async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
                first = await call(client, one.url, "interactive", max_tokens=1)
                assert first.status == 200
                found = await asyncio.gather(
                    *[call(client, [one, two][n % 2].url, "batch", max_tokens=1) for n in range(60)]
                )
                served = sum(c.status == 200 for c in found)
                assert 20 - 2 <= served <= 20  # a gateway may keep one ahead
                refused = next(c for c in found if c.status == 503)
                assert refused.headers["x-headrace-scope"] == "pool_class"
                left_ms = 60_000 - store.time()[0] % 60 * 1000
                assert abs(int(refused.headers["retry-after-ms"]) - left_ms) < 30_000
                mine = [await call(client, one.url, "interactive", max_tokens=1) for _ in range(17)]
                assert [c.status for c in mine] == [200] * 17

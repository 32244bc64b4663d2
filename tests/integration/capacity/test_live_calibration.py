"""Real scrapes of the bundled engine, by the collector's code, and what a pool learns of them."""

import asyncio
import itertools
import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from capacity.fleet.services import create_domain, create_model, create_pool, create_region
from capacity.profiles.selectors import profile_detail
from capacity.profiles.services import calibrate_pools
from routing.contracts.snapshot import EndpointEntry
from routing.store.pooled import async_client
from telemetry.collector.scrape import read_replica
from telemetry.collector.windows import Closed, Filling, fold, keep
from tests.engines import MODEL, EngineProcess, engine
from tests.factories import ACTOR

pytestmark = pytest.mark.django_db
REPLICAS = 3
SLOW_REPLICAS = 6
SLOW = 0.25  # times as fast: what a busy machine adds to a step of 100 ms is little of it
SCRAPE_S = 0.25
WINDOWS = 24
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults") / "faults.json"


@pytest.fixture
def slow_replicas() -> Iterator[list[EngineProcess]]:
    """Engines four times slower than the profile `demo`."""
    flags = ("--profile", "demo", "--time-scale", str(SLOW))
    with ExitStack() as stack:
        yield [stack.enter_context(engine(*flags)) for _ in range(SLOW_REPLICAS)]


@pytest.fixture(scope="module")
def replicas(faults: Path) -> Iterator[list[EngineProcess]]:
    """Engines that run as the profile `demo` says: 25 ms a step and more."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(engine("--profile", "demo", "--faults", str(faults)))
            for _ in range(REPLICAS)
        ]


def make_pool(name: str, time_scale: float) -> None:
    """A pool whose settings say that its engines are `time_scale` times as fast as `demo`."""
    create_model(name=MODEL, context_tokens=16_384, actor=ACTOR)
    create_region(slug="eu", name="Europe", actor=ACTOR)
    create_domain(region="eu", slug="a", actor=ACTOR)
    create_pool(
        name=name, model=MODEL, driver="simulated", region="eu", domain="a",
        spec={"profile": "demo", "time_scale": time_scale}, actor=ACTOR,
    )  # fmt: skip


async def ask(port: int, words: int, tokens: int, number: int) -> None:
    """One completion, read to its end."""
    body = {"model": MODEL, "prompt": f"{number} " + "word " * words, "max_tokens": tokens}
    raw = json.dumps({**body, "ignore_eos": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(raw)}\r\n"
    head += "connection: close\r\ncontent-type: application/json\r\n\r\n"
    writer.write(head.encode() + raw)
    await reader.read()
    writer.close()


async def load(port: int, stop: asyncio.Event) -> None:
    """Between 1 and 24 requests at once, prompts of 20 to 1,200 words: it drifts all the time."""
    running: set[asyncio.Task[None]] = set()
    for number in itertools.count():
        if stop.is_set():
            break
        most = 1 + (number // 6 * 7) % 24
        words = 20 + (number * 397) % 1200
        while len(running) >= most:
            _done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        running.add(asyncio.create_task(ask(port, words, 20 + number % 40, number)))
    await asyncio.gather(*running, return_exceptions=True)


async def scraped(redis_url: str, pool: str, ports: list[int], window_s: float) -> int:
    """Scrape under load until enough windows told something, and keep them as the collector.

    The collector's own windows take five seconds: here shorter ones, of more replicas.
    """
    entries = [EndpointEntry(f"{pool}-{at}", "127.0.0.1", port) for at, port in enumerate(ports)]
    filling: dict[str, Filling] = {}
    closed: list[tuple[str, Closed]] = []
    stop = asyncio.Event()
    loads = [asyncio.create_task(load(port, stop)) for port in ports]
    loop = asyncio.get_running_loop()
    end_s = loop.time() + LIMIT_S
    while loop.time() < end_s and sum(one.window is not None for _, one in closed) < WINDOWS:
        outcomes = await asyncio.gather(*(read_replica(e, wants_version=False) for e in entries))
        for entry, outcome in zip(entries, outcomes, strict=True):
            if outcome.sample is None:
                continue
            name, at_ms = entry.replica_id, time.time_ns() // 1_000_000
            filling[name], one = fold(filling.get(name), outcome.sample, name, at_ms, window_s)
            if one is not None:
                closed.append((pool, one))
        await asyncio.sleep(SCRAPE_S)
    stop.set()
    store = async_client(redis_url, timeout_s=5.0)
    await keep(store, closed)
    await store.aclose()
    await asyncio.gather(*loads)
    return sum(one.window is not None for _, one in closed)


def test_a_misstated_prior_is_corrected_from_real_scrapes(
    slow_replicas: list[EngineProcess], store
) -> None:
    make_pool("p", time_scale=3.0 * SLOW)
    ports = [one.port for one in slow_replicas]
    assert asyncio.run(scraped(os.environ["REDIS_URL"], "p", ports, 3.0)) >= WINDOWS
    assert calibrate_pools(is_cancelled=lambda: False) == 1
    row = profile_detail("p").row
    assert row.is_accepted, row.verdict
    assert row.version == 1
    assert row.error_ratio is not None
    assert row.prior_error_ratio is not None
    assert row.error_ratio <= 0.15
    assert row.prior_error_ratio >= 0.5  # three times too fast
    t0 = profile_detail("p").terms[0]
    # 100 ms; the prior of 33 ms draws it, and so few windows share the rest out between the terms.
    assert t0.prior == pytest.approx(100 / 3)
    assert t0.fitted is not None
    assert t0.fitted >= 1.5 * t0.prior


def test_an_engine_whose_steps_take_now_this_now_that_is_refused(
    replicas: list[EngineProcess], store, faults: Path
) -> None:
    make_pool("p", time_scale=1.0)
    ports = [one.port for one in replicas]

    async def tossed() -> int:
        """The engines slow down and come back, whatever their load."""

        async def toss() -> None:
            for number in itertools.count():
                script = json.dumps({"slow_factor": 1.0 if number % 2 else 3.0})
                await asyncio.to_thread(faults.write_text, script)
                await asyncio.sleep(2.5)

        tossing = asyncio.create_task(toss())
        try:
            return await scraped(os.environ["REDIS_URL"], "p", ports, 2.5)
        finally:
            tossing.cancel()

    assert asyncio.run(tossed()) >= WINDOWS
    faults.unlink()
    calibrate_pools(is_cancelled=lambda: False)
    detail = profile_detail("p")
    assert not detail.row.is_accepted
    assert detail.row.version is None
    assert "is above 15%: the prior stays." in detail.row.verdict

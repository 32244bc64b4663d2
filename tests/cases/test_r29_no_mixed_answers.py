"""R29: cancelled requests never mix up answers from the shared store."""

import asyncio
import contextlib
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import redis

from routing.contracts.snapshot import bucket_of
from tests.gatewaying import body_of
from tests.proxying import end_tasks
from tests.stack import (
    ACME_KEY,
    GLOBEX_KEY,
    GatewayProcess,
    make_snapshot,
    start_gateway,
    usage_events,
)
from tests.upstream import UpstreamThread, answer, json_script, usage

DELAY_S = 0.02
SECRETS = {"acme": ACME_KEY, "globex": GLOBEX_KEY}


class Relay:
    """A TCP relay in a thread of its own: every byte is 20 ms late, both ways."""

    def __init__(self, host: str, port: int) -> None:
        self.target, self.port, self.connections = (host, port), 0, 0
        self.ready = threading.Event()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        server = self.loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self.ready.set()
        self.loop.run_forever()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        up_reader, up_writer = await asyncio.open_connection(*self.target)
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.gather(self._pump(reader, up_writer), self._pump(up_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            self.loop.call_later(DELAY_S, writer.write, data)
        writer.close()


@contextlib.contextmanager
def relayed(url: str) -> Iterator[Relay]:
    parts = urlsplit(url)
    relay = Relay(parts.hostname or "127.0.0.1", parts.port or 6379)
    relay.thread.start()
    relay.ready.wait(5)
    try:
        yield relay
    finally:
        asyncio.run_coroutine_threadsafe(end_tasks(), relay.loop).result(5)
        relay.loop.call_soon_threadsafe(relay.loop.stop)
        relay.thread.join(5)


async def load(gateway: GatewayProcess) -> list[httpx.Response]:
    """1000 requests, half of them dropped at 0-60 ms; then 200 undisturbed ones."""
    draw = random.Random(29)
    limits = httpx.Limits(max_connections=200)
    async with httpx.AsyncClient(timeout=30, trust_env=False, limits=limits) as client:

        async def one(number: int) -> httpx.Response:
            slug = ("acme", "globex")[number % 2]
            return await client.post(
                f"{gateway.url}/v1/chat/completions",
                json=body_of(user=slug),
                headers={"authorization": f"Bearer {SECRETS[slug]}"},
            )

        async def maybe_dropped(number: int) -> None:
            task = asyncio.ensure_future(one(number))
            if draw.random() < 0.5:
                await asyncio.wait([task], timeout=draw.uniform(0, 0.06))
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                response = await task
                assert response.status_code != 401

        for start in range(0, 1000, 50):
            await asyncio.gather(*(maybe_dropped(n) for n in range(start, start + 50)))
        found: list[httpx.Response] = []
        for start in range(0, 200, 50):
            found += await asyncio.gather(*(one(n) for n in range(start, start + 50)))
        return found


def test_every_answer_and_row_belongs_to_the_tenant_of_its_key(
    store: "redis.Redis", tmp_path: Path
):
    url = os.environ["REDIS_URL"]
    with UpstreamThread() as upstream, relayed(url) as relay:
        upstream.choose = lambda seen: json_script(answer(seen.json["user"], usage(10, 5)))
        slow = f"redis://127.0.0.1:{relay.port}{urlsplit(url).path}"
        if password := urlsplit(url).password:
            slow = slow.replace("redis://", f"redis://:{password}@")
        snapshot = make_snapshot([upstream.address])
        with start_gateway(snapshot, slow, tmp_path / "state") as gateway:
            before = relay.connections
            answers = asyncio.run(load(gateway))
            after = relay.connections
            gateway.process.kill()
            gateway.process.wait(10)
    assert after == before, "no connection to the store was lost or added"
    assert [r.status_code for r in answers] == [200] * 200
    for number, response in enumerate(answers):
        said = response.json()["choices"][0]["message"]["content"]
        assert said == ("acme", "globex")[number % 2]
    for slug in SECRETS:
        events = [event for _, event in usage_events(store, bucket_of(slug))]
        assert len(events) >= 100
        assert {event.tenant_id for event in events} == {slug}
        assert {event.key_id for event in events} == {f"k-{slug}"}

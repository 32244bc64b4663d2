"""Connections to the store for tests, straight or through a relay that delays or goes silent."""

import asyncio
import time
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from routing.store.client import StoreConnection
from routing.store.clock import StoreClock
from tests.accounting import redis_url


@asynccontextmanager
async def connected(url: str, **options):
    clock = StoreClock(time.monotonic, 0)
    connection = StoreConnection(url, name="t", clock=clock, **options)
    connection.start()
    try:
        assert await connection.wait_ready(5)
        yield connection
    finally:
        await connection.close()


def through(relay: "Relay") -> str:
    """The store's URL, credentials included, by way of the relay."""
    parts = urlsplit(redis_url())
    who = f":{parts.password}@" if parts.password else ""
    return f"redis://{who}127.0.0.1:{relay.port}/0"


class Relay:
    """A TCP relay before the store: delays both ways, or goes silent."""

    def __init__(self, target: int, delay_s: float = 0.0) -> None:
        self.target, self.delay_s, self.is_silent, self.port = target, delay_s, False, 0
        self.connections = 0

    async def __aenter__(self) -> "Relay":
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()

    async def _serve(self, reader, writer) -> None:
        self.connections += 1
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target)
        await asyncio.gather(self._pump(reader, up_writer), self._pump(up_reader, writer))

    async def _pump(self, reader, writer) -> None:
        loop = asyncio.get_running_loop()
        while data := await reader.read(65536):
            if not self.is_silent:
                loop.call_later(self.delay_s, writer.write, data)
        writer.close()

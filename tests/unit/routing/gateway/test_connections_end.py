"""Connections that have ended leave nothing behind that only a search for cycles would find."""

import asyncio
import gc
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httptools
import uvloop

from routing.gateway.admin import AdminListener
from routing.gateway.config import from_environment
from routing.gateway.http1 import Request, RequestReader, ResponseReader
from routing.gateway.process import Gateway
from routing.gateway.server import Listener
from routing.gateway.upstream import ConnectionPool
from tests.stack import make_snapshot
from tests.upstream import Upstream

GET = b"GET /healthz HTTP/1.1\r\nhost: h\r\n%b\r\n"
CUT = b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\n{"
KINDS = (
    RequestReader, ResponseReader, Request,
    httptools.HttpRequestParser, httptools.HttpResponseParser,
)  # fmt: skip
CALLERS = 5


@contextmanager
def left_for_the_collector() -> Iterator[list[str]]:
    """Fills with the kinds of what it finds, of all that was made and dropped in between."""
    found: list[str] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found += [type(one).__name__ for one in gc.garbage if isinstance(one, KINDS)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def call(address: tuple[str, int], raw: bytes, *, reads: bool = True) -> bytes:
    """Send, read what comes (to the end), hang up."""
    with socket.create_connection(address, 10) as sock:
        sock.sendall(raw)
        return b"".join(iter(lambda: sock.recv(65_536), b"")) if reads else b""


async def ended(loop: asyncio.AbstractEventLoop, gateway: Gateway, upstream: Upstream) -> None:
    """Callers, the admin port's and connections to a replica; each kind ends by either side."""
    assert gateway.walk is not None
    listener, admin = Listener(gateway.walk, gateway), AdminListener(gateway)
    for made in (listener, admin):
        server = await loop.create_server(made, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        for raw in (GET % b"connection: close\r\n", b"NONSENSE\r\n\r\n"):
            for _ in range(CALLERS):
                assert await asyncio.to_thread(call, address, raw) or made is admin
        for _ in range(CALLERS):
            await asyncio.to_thread(call, address, CUT, reads=False)
        while listener.connections or admin.open_count:
            await asyncio.sleep(0.01)
        server.close()
    pool = ConnectionPool(*upstream.address)
    for close in ("abort", "close"):
        connections = [await pool.dial() for _ in range(CALLERS)]
        for one in connections:
            getattr(one.transport, close)()
    while pool.open_count:
        await asyncio.sleep(0.01)
    with socket.socket() as deaf:  # bound, but nobody listens
        deaf.bind(("127.0.0.1", 0))
        for _ in range(CALLERS):
            with suppress(OSError):
                await ConnectionPool(*deaf.getsockname()).dial()
                raise AssertionError("somebody listens")


def test_an_ended_connection_is_freed_at_once(tmp_path: Path) -> None:
    config = from_environment(
        {
            "HEADRACE_STATE": str(tmp_path),
            "HEADRACE_KEY_PEPPER": "p" * 32,
            "REDIS_URL": "redis://127.0.0.1:1/0",
        }
    )

    async def run() -> None:
        upstream = Upstream()
        await upstream.start()
        gateway = Gateway(config, make_snapshot([upstream.address]))
        await ended(asyncio.get_running_loop(), gateway, upstream)
        await upstream.stop()

    with left_for_the_collector() as found:
        uvloop.run(run())
    assert not found

"""A gateway process from its start to its end: listens once it can serve, drains, lets go."""

import asyncio
import contextlib
import gc
import logging
import resource
import signal
import socket
import time
from collections.abc import Callable, Coroutine

import hiredis

from routing.gateway.admin import AdminListener
from routing.gateway.config import GatewayConfig
from routing.gateway.process import STATUS_EVERY_S, Gateway
from routing.gateway.server import Listener
from routing.gateway.snapshot import read_disk
from routing.gateway.tls import HANDSHAKE_S, SHUTDOWN_S, FrontTls
from routing.store import keys
from routing.store.client import StoreAwayError

log = logging.getLogger(__name__)

START_WAIT_S = 2.0  # for the store; then serve from disk, or wait on without being ready
SHUTDOWN_FLUSH_S = 5.0
BACKLOG = 4096
# Requests and connections leave no cycles behind: they die by count. Look for others rarely.
GC_THRESHOLDS = (20_000, 20, 50)
_RESERVED_FDS = 4096


class NotReadyError(Exception):
    """The process cannot start; the message says why in one line."""


async def run(config: GatewayConfig) -> int:
    """Serve until told to stop; the exit code. Raises `NotReadyError` when it cannot start."""
    _raise_fd_limit()
    config.state_dir.mkdir(parents=True, exist_ok=True)
    gateway = Gateway(config, read_disk(config.snapshot_path))
    loop = asyncio.get_running_loop()
    for sig in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sig, gateway.drain)
    recovered = gateway.journal.open()
    gateway.store.start()
    for listener in gateway.nudges:
        listener.start()
    await gateway.store.wait_ready(START_WAIT_S)
    gateway.accountant.start(recovered)
    gateway.sweeper.start()
    loops = [
        _forever(work)
        for work in (
            gateway.watch_snapshot,
            gateway.watch_deadlines,
            gateway.credits.keep,
            gateway.report,
            gateway.share_estimates,
            gateway.watch_certificate,
        )
    ]
    admin = await _listen(AdminListener(gateway), config.admin_host, config.admin_port)
    server = await _serve_when_ready(gateway)
    await gateway.stopping.wait()
    await _drain(gateway, server)
    for task in loops:
        task.cancel()
    await _close(gateway)
    admin.close()
    return 0


def _forever(work: Callable[[], Coroutine[object, object, None]]) -> "asyncio.Task[None]":
    """A loop that nothing ends: an unforeseen fault is logged, then it goes on."""

    async def keep_going() -> None:
        while True:
            try:
                await work()
            except Exception:
                log.exception("a loop of the gateway failed; it starts again")
                await asyncio.sleep(STATUS_EVERY_S)

    return asyncio.get_running_loop().create_task(keep_going())


async def _serve_when_ready(gateway: Gateway) -> asyncio.Server | None:
    """Open the callers' port once there is a snapshot to serve by; None when stopped before."""
    waits = [
        asyncio.ensure_future(event.wait()) for event in (gateway.has_snapshot, gateway.stopping)
    ]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if gateway.walk is None:
        return None
    listener = Listener(gateway.walk, gateway)
    config, tls = gateway.config, gateway.tls
    server = await _listen(listener, config.host, config.port, tls, reuse_port=True)
    gateway.listener = listener
    gc.collect()
    gc.freeze()  # what the start made is never garbage: do not look at it again
    gc.set_threshold(*GC_THRESHOLDS)
    log.info("serving on %s:%d", config.host, config.port)
    return server


async def _listen(
    factory: Callable[[], asyncio.Protocol],
    host: str,
    port: int,
    tls: FrontTls | None = None,
    *,
    reuse_port: bool = False,
) -> asyncio.Server:
    loop = asyncio.get_running_loop()
    try:
        return await loop.create_server(
            factory,
            host,
            port,
            backlog=BACKLOG,
            reuse_port=reuse_port or None,
            ssl=tls.context if tls is not None else None,
            ssl_handshake_timeout=HANDSHAKE_S if tls is not None else None,
            ssl_shutdown_timeout=SHUTDOWN_S if tls is not None else None,
        )
    except (OSError, socket.gaierror) as error:
        raise NotReadyError(f"cannot listen on {host}:{port}: {error}") from error


async def _drain(gateway: Gateway, server: asyncio.Server | None) -> None:
    """Take nothing new; let what runs finish; cut what is left at the limit."""
    gateway.send_status()
    if server is not None:
        server.close()
    walk, listener = gateway.walk, gateway.listener
    if walk is None or listener is None:
        return
    end_s = time.monotonic() + gateway.config.drain_s
    while time.monotonic() < end_s:
        listener.close_idle()
        if not walk.live and not listener.connections:
            return
        await asyncio.sleep(0.02)
    if walk.live:
        log.warning("cutting %d requests at the drain limit", len(walk.live))
        walk.cut_all()


async def _close(gateway: Gateway) -> None:
    """Settle, flush and let go, in the order in which things depend on each other."""
    gateway.prober.stop()
    gateway.adapters.stop()
    gateway.hooks.close()
    gateway.fleet.close()
    spans = gateway.spans
    flush = asyncio.ensure_future(spans.close(SHUTDOWN_FLUSH_S)) if spans is not None else None
    left = await gateway.accountant.drain(SHUTDOWN_FLUSH_S)
    if left:
        log.info("%d requests wait in the journal for the ledger", left)
    gateway.send_frame()
    gateway.sweeper.stop()
    gateway.accountant.stop()
    await gateway.credits.give_back()
    if gateway.store.is_ready:
        with contextlib.suppress(StoreAwayError, hiredis.ReplyError):
            await gateway.store.call("HDEL", keys.GATEWAYS, gateway.config.gateway_id)
    if gateway.disk is not None:
        await gateway.disk
    for listener in gateway.nudges:
        await listener.close()
    await gateway.store.close()
    gateway.journal.close()
    if flush is not None:
        await flush


def _raise_fd_limit() -> None:
    """Two sockets a request: ask for as many as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else max(soft, 1 << 16)
    if soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

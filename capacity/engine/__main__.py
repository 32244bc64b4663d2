"""`python -m capacity.engine`: serve one simulated vLLM replica until SIGTERM."""

import asyncio
import logging
import socket
import sys
from types import FrameType

import uvicorn
import uvloop

from capacity.engine.config import EngineConfig, parse
from capacity.engine.faults import POLL_S, read
from capacity.engine.loop import Engine
from capacity.engine.server import EngineApp, EngineProtocol

log = logging.getLogger("capacity.engine")
CLOSE_S = 2  # for answers already written to reach their clients


class _Server(uvicorn.Server):
    """Ends as vLLM does: the listener stays open, and healthy, while live requests drain."""

    def __init__(self, config: uvicorn.Config, engine: Engine) -> None:
        super().__init__(config)
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._drain: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain and leave. Second: leave now."""
        self._loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        if self._drain is not None:
            self.force_exit = self.should_exit = True
            return
        self._drain = asyncio.create_task(self._drain_and_exit())

    async def _drain_and_exit(self) -> None:
        await self._engine.drain()
        self.should_exit = True


async def _follow_faults(app: EngineApp, path: str) -> None:
    while True:
        faults = read(path, app.faults)
        if faults != app.faults:
            app.set_faults(faults)
            log.info("faults: %s", faults)
        await asyncio.sleep(POLL_S)


def _listener(config: EngineConfig) -> socket.socket:
    if config.fd is not None:
        return socket.socket(fileno=config.fd)
    return socket.create_server((config.host, config.port), backlog=2048)


async def serve(config: EngineConfig) -> None:
    """Serve until a signal. Raises `OSError` when the address is taken."""
    await asyncio.sleep(config.load_s)
    engine = Engine(config)
    app = EngineApp(engine)
    server = _Server(
        uvicorn.Config(
            app,
            http=EngineProtocol,
            loop="none",
            lifespan="off",
            access_log=False,
            log_level="warning",
            timeout_keep_alive=config.keep_alive_s,
            timeout_graceful_shutdown=CLOSE_S,
        ),
        engine,
    )
    tasks = [asyncio.create_task(engine.run())]
    if config.faults_path:
        tasks.append(asyncio.create_task(_follow_faults(app, config.faults_path)))
    listener = _listener(config)
    log.info("%s on port %d", config.model, listener.getsockname()[1])
    try:
        await server.serve(sockets=[listener])
    finally:
        for task in tasks:
            task.cancel()


def main() -> int:
    """Entry point; the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    config = parse(sys.argv[1:])
    try:
        uvloop.run(serve(config))
    except OSError as error:
        log.error("cannot serve: %s", error)  # noqa: TRY400 - one clear line, no traceback
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A TCP proxy in front of a server, to break the way and not the server."""

import asyncio
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self


async def end_tasks() -> None:
    """Cancel every other task of the loop, and wait until it has ended."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Proxy:
    """Forwards bytes, `delay_s` late in each direction.

    `mode`: `pass`; `silent` (accepts, and neither answers nor closes: a black hole); `refuse` (a
    new connection is reset at once). Setting a mode takes effect on open connections too.
    """

    def __init__(self, port: int) -> None:
        """`port` is the server's, on this machine."""
        self._target = port
        self.mode = "pass"
        self.delay_s = 0.0
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(5)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def cut(self) -> None:
        """Reset every open connection."""

        def abort() -> None:
            for writer in list(self._writers):
                writer.transport.abort()

        self._loop.call_soon_threadsafe(abort)

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _end(self) -> None:
        """No connection and no task of one is left."""
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await end_tasks()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            if self.mode == "refuse":
                writer.transport.abort()
                return
            with suppress(OSError, asyncio.CancelledError):
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
                self._writers.add(far_writer)
                await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(65536):
                while self.mode == "silent":
                    await asyncio.sleep(0.05)
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(piece)
                await writer.drain()
        self._writers.discard(writer)
        writer.close()

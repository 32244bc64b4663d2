"""A hook as a Python function of an installed package, found by its entry point's name.

A plain function runs in threads of its hook's own, so many and no more: one that hangs keeps its
thread, the next ones wait behind it until their deadlines. A coroutine function runs in the
gateway's loop, which it must never block.
"""

import asyncio
import contextlib
import inspect
import json
import queue
import threading
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

from routing.contracts.hooks import ENTRY_POINTS
from routing.gateway.hooks.asked import HookError

THREADS = 8  # of a hook
MAX_WAITING = 128  # calls of a hook that wait for one of them
_INLINE_BYTES = 64 << 10  # larger calls are decoded in a thread

Function = Callable[[Any], Any]
_Job = tuple["asyncio.Future[Any]", Callable[[], Any]]


class PythonHook:
    """One function and its threads. It takes the call as JSON's values; see `reason_of`."""

    def __init__(self, entry_point: str) -> None:
        self._name = entry_point
        self._function: Function | None = None
        self._is_async = False
        self._loading: asyncio.Future[Any] | None = None
        self._jobs: queue.Queue[_Job | None] = queue.Queue(MAX_WAITING)
        self._threads: list[threading.Thread] = []
        self.problem = ""

    def load(self) -> None:
        """Import it, here and now. What prevents that is `problem`, and a failure of each call."""
        try:
            (found,) = entry_points(group=ENTRY_POINTS, name=self._name)
            function = found.load()
        except ValueError:
            self.problem = f"no installed package has the entry point {self._name}"
        except Exception as error:  # noqa: BLE001 - whatever an import of somebody else's may raise
            self.problem = f"cannot be loaded: {type(error).__name__}"
        else:
            self._is_async = inspect.iscoroutinefunction(function)
            self._function = function if callable(function) else None
            self.problem = "" if callable(function) else "is no function"

    def load_soon(self) -> None:
        """Import it in a thread; calls wait for that within their deadlines."""
        self._loading = self._submit(self.load)

    async def ask(self, payload: bytes) -> str | None:
        """None to pass, a reason to refuse. The caller bounds the time. Raises `HookError`."""
        if self._loading is not None and not self._loading.done():
            await asyncio.shield(self._loading)
        if self._function is None:
            raise HookError(self.problem)
        try:
            if self._is_async:
                said = await self._function(await self._decoded(payload))
            else:
                said = await self._submit(self._called(self._function, payload))
        except HookError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever somebody else's code may raise
            # Its words may hold the prompt: only its kind is told.
            raise HookError(f"raised {type(error).__name__}") from None
        return reason_of(said)

    async def _decoded(self, payload: bytes) -> Any:
        if len(payload) <= _INLINE_BYTES:
            return json.loads(payload)
        return await self._submit(lambda: json.loads(payload))

    @staticmethod
    def _called(function: Function, payload: bytes) -> Callable[[], Any]:
        return lambda: function(json.loads(payload))

    # -- threads: daemons, so that one that hangs does not keep the process from its end

    def _submit(self, work: Callable[[], Any]) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            self._jobs.put_nowait((future, work))
        except queue.Full:
            raise HookError("all its threads are busy, and enough calls wait") from None
        if len(self._threads) < THREADS:
            name = f"hook-{self._name}-{len(self._threads)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return future

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            future, work = job
            if future.cancelled():
                continue  # its deadline passed while it waited
            try:
                value, error = work(), None
            except BaseException as raised:  # noqa: BLE001 - handed to the caller
                value, error = None, raised
            with contextlib.suppress(RuntimeError):  # the loop has ended
                future.get_loop().call_soon_threadsafe(_settle, future, value, error)

    def close_idle(self, now_s: float) -> None:
        """Nothing is kept open."""

    def close(self) -> None:
        """Let idle threads go; one that hangs is left to itself."""
        for _ in self._threads:
            with contextlib.suppress(queue.Full):
                self._jobs.put_nowait(None)


def _settle(future: "asyncio.Future[Any]", value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    elif isinstance(error, Exception) and not isinstance(error, StopIteration | TimeoutError):
        future.set_exception(error)
    else:  # what a future cannot hold, ends more than a call, or would read as our own deadline
        future.set_exception(HookError(f"raised {type(error).__name__}"))


def reason_of(said: object) -> str | None:
    """What a function returned: None passes, a text refuses with it as the reason.

    Raises `HookError` for everything else: True or False would be a guess.
    """
    if said is None or isinstance(said, str):
        return said
    raise HookError(f"returned {type(said).__name__}, not None or a reason")

"""A viewer of the live socket, for tests."""

import contextlib
import json
import time
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.collecting import ConsoleProcess


class Viewer:
    """One socket and what it received; `rows` holds each subscription's copy, kept by ticks."""

    def __init__(
        self,
        console: ConsoleProcess,
        cookie: str,
        origin: str | None = "own",
        version: str = "1",
    ) -> None:
        headers = {"Cookie": cookie} if cookie else {}
        self.context = connect(
            console.socket_url.replace("v=1", f"v={version}"),
            origin=console.url if origin == "own" else origin,  # type: ignore[arg-type]
            additional_headers=headers,
            proxy=None,
            ping_interval=None,
        )
        self.socket: ClientConnection = self.context.__enter__()
        self.frames: list[dict[str, Any]] = []
        self.rows: dict[int, list[list[Any]]] = {}
        self.fields: dict[int, list[str]] = {}
        self.close_code: int | None = None

    def send(self, **message: Any) -> None:
        self.socket.send(json.dumps(message))

    def subscribe(self, number: int, channel: str, query: str = "", **more: Any) -> None:
        self.send(t="sub", id=number, ch=channel, q=query, **more)

    def next(self, timeout_s: float = 10.0) -> dict[str, Any] | None:
        """The next frame, or None when the socket was closed."""
        try:
            frame = json.loads(self.socket.recv(timeout=timeout_s))
        except ConnectionClosed as closed:
            self.close_code = closed.rcvd.code if closed.rcvd else 1006
            return None
        self.frames.append(frame)
        if frame["t"] == "beat":
            with contextlib.suppress(ConnectionClosed):
                self.send(t="beat")
        if frame["t"] == "snap":
            self.rows[frame["id"]] = frame["rows"]
            self.fields[frame["id"]] = frame["f"]
        elif frame["t"] == "tick":
            for position, *values in frame["d"]:
                row = self.rows[frame["id"]][position]
                self.rows[frame["id"]][position] = [row[0], *values]
        return frame

    def until(self, kind: str, timeout_s: float = 10.0) -> dict[str, Any]:
        """The next frame of a kind."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            frame = self.next(timeout_s)
            assert frame is not None, f"closed with {self.close_code} while waiting for {kind}"
            if frame["t"] == kind:
                return frame
        raise AssertionError(f"no {kind} within {timeout_s} s, but {self.frames[-3:]}")

    def until_closed(self, timeout_s: float = 15.0) -> int:
        """Read to the end; the close code."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if self.next(timeout_s) is None:
                assert self.close_code is not None
                return self.close_code
        raise AssertionError(f"not closed within {timeout_s} s")

    def column(self, number: int, field: str) -> list[Any]:
        """One field of every row of a subscription's copy."""
        position = self.fields[number].index(field)
        return [row[position] for row in self.rows[number]]

    def close(self) -> None:
        self.context.__exit__(None, None, None)

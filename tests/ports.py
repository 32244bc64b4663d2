"""A port between a process and its server, which can be made to hang or to refuse.

What a stopped server, a lost network or a dead machine looks like from outside, without touching
the servers that other tests use.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import httpx

from tests.collecting import ConsoleProcess

CHUNK_BYTES = 65_536


class FaultyPort:
    """Forwards to `target` while it is well."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._flows = threading.Event()
        self._flows.set()
        self._refuses = False
        self._over = False
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def hang(self) -> None:
        """Accept connections and pass nothing on, in both directions."""
        self._flows.clear()

    def refuse(self) -> None:
        """Drop every connection, old and new."""
        self._refuses = True
        self._drop()

    def mend(self) -> None:
        """Pass everything on, also what waited."""
        self._refuses = False
        self._flows.set()

    def close(self) -> None:
        """End."""
        self._over = True
        self.mend()
        self._listener.close()
        self._drop()

    def _drop(self) -> None:
        with self._lock:
            ends, self._open = self._open, set()
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        while not self._over:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            if self._refuses:
                here.close()
                continue
            try:
                there = socket.create_connection(self._target, timeout=10)
            except OSError:
                here.close()
                continue
            there.settimeout(None)
            with self._lock:
                self._open |= {here, there}
            for source, sink in ((here, there), (there, here)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                self._flows.wait()
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def through(url: str) -> Iterator[tuple[FaultyPort, str]]:
    """A port in front of the server that a URL names, and the URL that goes through it."""
    parts = urlsplit(url)
    port = FaultyPort((parts.hostname or "127.0.0.1", parts.port or 0))
    user = parts.netloc.rpartition("@")[0]
    try:
        yield port, urlunsplit(parts._replace(netloc=f"{user}@127.0.0.1:{port.port}"))
    finally:
        port.close()


@dataclass
class BreakableConsole:
    """A console behind two ports that can be broken, and somebody signed in."""

    process: ConsoleProcess
    database: FaultyPort
    store: FaultyPort
    cookie: str
    token: str

    def get(
        self, path: str, *, cookie: bool = True, **headers: str
    ) -> tuple[httpx.Response, float]:
        """The answer and how long it took."""
        if cookie and not path.startswith("/api/"):
            headers["Cookie"] = f"headrace_session={self.cookie}"
        if path.startswith("/api/"):
            headers["Authorization"] = f"Bearer {self.token}"
        began_s = time.monotonic()
        answer = httpx.get(self.process.url + path, headers=headers, timeout=15, trust_env=False)
        return answer, time.monotonic() - began_s

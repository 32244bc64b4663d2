"""Does a process still answer: against real sockets, and beats by their changes alone."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from console.supervisor import liveness
from console.supervisor.liveness import Beats, HeartbeatAnswers, HttpAnswers, PostgresAnswers
from routing.contracts.process import ProcessStatus, encode_status


@pytest.fixture
def served() -> Iterator[Callable[[bytes], int]]:
    """A listener of this process that says one thing to each connection; its port."""
    listeners = []

    def serve(answer: bytes) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def loop() -> None:
            while True:
                try:
                    link = listener.accept()[0]
                except OSError:
                    return
                with link:
                    link.recv(1024)
                    link.sendall(answer)

        threading.Thread(target=loop, daemon=True).start()
        return int(listener.getsockname()[1])

    yield serve
    for listener in listeners:
        listener.close()


def test_any_answer_is_an_answer(served: Callable[[bytes], int]) -> None:
    port = served(b"HTTP/1.1 503 no\r\ncontent-length: 0\r\n\r\n")
    assert HttpAnswers("127.0.0.1", port)(os.getpid()) is True
    assert PostgresAnswers("127.0.0.1", served(b"N"))(0) is True


def test_somebody_else_on_its_port_does_not_answer_for_it(served: Callable[[bytes], int]) -> None:
    port = served(b"HTTP/1.1 200 ok\r\ncontent-length: 0\r\n\r\n")
    assert HttpAnswers("127.0.0.1", port)(os.getppid()) is False


def test_connection_without_an_answer_is_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "PROBE_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        assert HttpAnswers("127.0.0.1", port)(os.getpid()) is False
        assert PostgresAnswers("127.0.0.1", port)(0) is False
    assert PostgresAnswers("127.0.0.1", port)(0) is False


class FakeStore:
    """The two commands that are asked, without a server: time is the test's."""

    def __init__(self) -> None:
        self.beats: dict[bytes, bytes] = {}
        self.is_full = False

    def __enter__(self) -> "FakeStore":
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def set(self, *args: Any, **kwargs: Any) -> None:
        if self.is_full:
            raise redis.ResponseError("MISCONF Errors writing to the AOF file")

    def hgetall(self, key: str) -> dict[bytes, bytes]:
        return self.beats


@pytest.fixture
def beating(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeStore, list[float], HeartbeatAnswers]:
    store, now = FakeStore(), [1000.0]
    monkeypatch.setattr(liveness, "store_client", lambda url: store)
    monkeypatch.setattr(liveness.time, "monotonic", lambda: now[0])
    return store, now, HeartbeatAnswers(Beats("redis://x"), "worker")


def beat(store: FakeStore, at_ms: int) -> None:
    status = ProcessStatus(name="worker", pid=7, started_at_ms=0, at_ms=at_ms)
    store.beats[b"worker:7"] = encode_status(status)


def test_beats_count_by_their_changes_whatever_their_clock_says(
    beating: tuple[FakeStore, list[float], HeartbeatAnswers],
) -> None:
    store, now, answers = beating
    for at_ms in (10_000_000, 9_000_000, 9_001_000, 1):  # set back twice on the way
        beat(store, at_ms)
        assert answers(7) is True
        now[0] += 5
    assert answers(7) is True
    now[0] += 11
    assert answers(7) is False


def test_store_that_takes_no_writes_says_nothing_about_anybody(
    beating: tuple[FakeStore, list[float], HeartbeatAnswers],
) -> None:
    store, now, answers = beating
    beat(store, 1)
    assert answers(7) is True
    store.is_full = True
    now[0] += 600
    assert answers(7) is None
    store.is_full = False
    now[0] += 5
    assert answers(7) is True, "nobody could report meanwhile"
    now[0] += 11
    assert answers(7) is False

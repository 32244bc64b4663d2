"""A server that does not answer is known to be away; one that answers again is back at once."""

import threading
import time
from collections.abc import Iterator

import pytest

from console.outage.watch import Watch
from tests.stack import wait_until

SILENT_AFTER_S = 0.2


class Server:
    """Answers, hangs or refuses as told."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.refuses = False

    def __call__(self) -> None:
        self.answers.wait(20)
        if self.refuses:
            raise ConnectionRefusedError


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def watch(server: Server) -> Iterator[Watch]:
    watch = Watch("it", server, (OSError,), SILENT_AFTER_S)
    watch.start()
    yield watch
    watch.stop()
    server.answers.set()


def test_nobody_is_away_who_is_not_watched(server: Server) -> None:
    server.refuses = True
    assert Watch("it", server, (OSError,), SILENT_AFTER_S).why_away == ""


def test_a_server_that_refuses_is_away_until_it_answers(server: Server, watch: Watch) -> None:
    assert watch.why_away == ""
    server.refuses = True
    wait_until(lambda: "ConnectionRefusedError" in watch.why_away, what="away")
    server.refuses = False
    wait_until(lambda: watch.why_away == "", what="back")


def test_a_server_that_hangs_is_away_until_it_answers(server: Server, watch: Watch) -> None:
    server.answers.clear()
    wait_until(lambda: "has not answered" in watch.why_away, timeout_s=2, what="away")
    began_s = time.monotonic()
    assert watch.why_away
    assert time.monotonic() - began_s < 0.05, "only the first to notice waits for a late answer"
    server.answers.set()
    wait_until(lambda: watch.why_away == "", timeout_s=2, what="back")


def test_a_watch_that_is_stopped_says_nothing(server: Server, watch: Watch) -> None:
    server.refuses = True
    wait_until(lambda: watch.why_away, what="away")
    watch.stop()
    assert watch.why_away == ""

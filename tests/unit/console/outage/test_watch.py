"""A server that does not answer is known to be away; one that answers again is back at once."""

import threading
import time
from collections.abc import Iterator

import pytest
from django.db import OperationalError
from psycopg_pool import PoolTimeout

from console.outage import lost
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
    assert not watch.is_returning
    server.refuses = False
    wait_until(lambda: watch.why_away == "", what="back")
    assert watch.is_returning, "pools may still wait before they connect again"
    wait_until(lambda: not watch.is_returning, timeout_s=10, what="pools have connected")


def test_a_server_that_hangs_is_away_until_it_answers(server: Server, watch: Watch) -> None:
    server.answers.clear()
    wait_until(lambda: "has not answered" in watch.why_away, timeout_s=2, what="away")
    began_s = time.monotonic()
    assert watch.why_away
    assert time.monotonic() - began_s < 0.05, "only the first to notice waits for a late answer"
    server.answers.set()
    wait_until(lambda: watch.why_away == "", timeout_s=2, what="back")
    assert watch.is_returning


def test_a_watch_that_is_stopped_says_nothing(server: Server, watch: Watch) -> None:
    server.refuses = True
    wait_until(lambda: watch.why_away, what="away")
    watch.stop()
    assert watch.why_away == ""


def test_a_pool_without_connections_is_full_only_if_the_server_was_not_away(
    server: Server, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost, "database_watch", watch)
    error = OperationalError("couldn't get a connection")
    error.__cause__ = PoolTimeout()
    assert lost.lost_by(error) is lost.BUSY
    server.refuses = True
    wait_until(lambda: lost.lost_by(error) is lost.DATABASE, what="away")
    server.refuses = False
    wait_until(lambda: lost.lost_by(error) is not lost.DATABASE, what="back")
    assert lost.lost_by(error) is lost.RETURNING

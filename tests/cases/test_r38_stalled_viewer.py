"""R38: a stalled live-view tab harms nobody else."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.collecting import ConsoleProcess, FakeCollector, traffic
from tests.stack import wait_until
from tests.viewing import Viewer

pytest_plugins = ("tests.live_fixtures",)
UPDATES = 300  # 30 s at ten a second; the case's 3,000 only repeat them
PER_S = 10
DROPPED = 200
BACKLOG_MAX = 20  # frames: a beat is unanswered after 5 s at most, and 10 s later it is over
GROWTH_BYTES_MAX = 30 * 1024 * 1024
# Rows so many and so long that a stalled socket's buffers are full after a few frames.
MODELS = [f"model-{number:04}-{'x' * 120}" for number in range(200)]


def rows(tenant: str, number: int = 0) -> list:
    """A state in which every row differs from the one before."""
    return [
        traffic(tenant, (0.1,) * (1 + (number + n) % 7), model=model)
        for n, model in enumerate(MODELS)
    ]


@contextmanager
def publishing(collector: FakeCollector, tenant: str) -> Iterator[dict[int, float]]:
    """Publishes ten states a second meanwhile; `seq -> instant` of each. Ends after `UPDATES`."""
    sent_at: dict[int, float] = {}
    stop = threading.Event()

    def publish_all() -> None:
        for number in range(UPDATES):
            sent_at[collector.seq + 1] = time.monotonic()
            collector.publish(rows(tenant, number))
            if stop.wait(1 / PER_S):
                return

    publisher = threading.Thread(target=publish_all)
    publisher.start()
    try:
        yield sent_at
    finally:
        stop.set()
        publisher.join()


def freeze(viewer: Viewer) -> threading.Lock:
    """Stop the client from reading, as a frozen tab does, until the lock is released."""
    hold = threading.Lock()
    hold.acquire()
    original = viewer.socket.protocol.receive_data

    def held_back(data: bytes) -> None:
        with hold:
            original(data)

    viewer.socket.protocol.receive_data = held_back  # type: ignore[method-assign]
    return hold


def test_r38_a_viewer_that_stops_reading_costs_nothing_and_catches_up(
    console: ConsoleProcess, collector: FakeCollector, person, tenants
) -> None:
    _, cookie = person("ops", "operator")
    acme = str(tenants["acme"].pk)
    collector.publish(rows(acme))
    stalled, reading = Viewer(console, cookie), Viewer(console, cookie)
    for viewer in (stalled, reading):
        viewer.subscribe(1, "slices", "limit=200")
        viewer.until("snap")
    stalled.until("beat")
    hold = freeze(stalled)
    before = console.rss_bytes()
    lags: list[float] = []
    with publishing(collector, acme) as sent_at:
        while len(lags) < UPDATES / PER_S - 2:
            frame = reading.next()
            assert frame is not None
            if frame["t"] in ("tick", "snap"):
                lags.append(time.monotonic() - sent_at[frame["seq"]])
    assert max(lags) < 2.0
    assert console.rss_bytes() - before < GROWTH_BYTES_MAX

    hold.release()
    received = 0
    while stalled.next(timeout_s=30) is not None:
        received += 1
    assert received < BACKLOG_MAX
    assert stalled.close_code in (4408, 1006)  # the reason, or a connection that is gone
    back = Viewer(console, cookie)
    back.subscribe(1, "slices", "limit=200")
    shown = back.until("snap")["seq"]
    while shown != collector.seq:  # the hub reads at most once a second
        frame = back.next()
        assert frame is not None, f"stayed at {shown}"
        shown = frame.get("seq", shown)


def test_r38_viewers_that_vanish_leave_nothing_behind(
    console: ConsoleProcess, collector: FakeCollector, person, tenants
) -> None:
    collector.publish(rows(str(tenants["acme"].pk)))
    cookies = [person(f"ops{number}", "operator")[1] for number in range(DROPPED // 5)]

    def wave() -> None:
        viewers = [Viewer(console, cookie) for cookie in cookies for _ in range(5)]
        for viewer in viewers:
            viewer.subscribe(1, "slices", "limit=20")
        for viewer in viewers:
            viewer.until("snap", 30)
        for viewer in viewers:
            viewer.socket.socket.shutdown(socket.SHUT_RDWR)

    def are_all_let_in() -> bool:
        """Whether the places of the vanished are free: six sockets of each person."""
        viewers = [Viewer(console, cookies[0]) for _ in range(6)]
        frames = [viewer.next() for viewer in viewers]
        for viewer in viewers:
            viewer.close()
        return all(frames)

    wave()
    wait_until(are_all_let_in, 60, "places free")
    before = console.rss_bytes()
    wave()
    wait_until(are_all_let_in, 60, "places free again")
    assert console.rss_bytes() - before < GROWTH_BYTES_MAX

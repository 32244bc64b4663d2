"""Subscriptions over real sockets, against a publisher that says what the test wants."""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
import zmq

from routing.contracts.snapshot import EndpointEntry
from telemetry.collector import kv_events
from telemetry.collector.kv_events import KvEvents
from tests.collecting import endpoint, engines, start_collector
from tests.stack import make_snapshot, publish, wait_until

END = b"\xff" * 8


def batch(*events: dict[str, Any], at_s: float | None = None) -> bytes:
    return msgspec.msgpack.encode([time.time() if at_s is None else at_s, list(events), 0])


def stored(*hashes: int) -> dict[str, Any]:
    return {"type": "BlockStored", "block_hashes": list(hashes), "token_ids": [1, 2, 3]}


class Publisher:
    """An engine's two sockets. `kept` is what a replay tells."""

    def __init__(self, directory: Path, *, has_replay: bool = True) -> None:
        self.context = zmq.Context()
        self.events = f"ipc://{directory}/kv"
        self.replay = f"ipc://{directory}/kvr" if has_replay else ""
        self.kept: list[tuple[int, bytes]] = []
        self.asked: list[int] = []
        self.next = 0
        self.is_silent = False
        self.start()

    def start(self) -> None:
        self.pub = self.context.socket(zmq.XPUB)
        # Each subscription is told, also one that comes before its last connection was seen to end.
        self.pub.setsockopt(zmq.XPUB_VERBOSE, 1)
        self.pub.bind(self.events)
        self.router = self.context.socket(zmq.ROUTER)
        if self.replay:
            self.router.bind(self.replay)
        self.kept.clear()
        self.next = 0

    def stop(self) -> None:
        self.pub.close(linger=0)
        self.router.close(linger=0)

    def is_heard(self) -> bool:
        """Whether a subscription has come (asked once; the end of one is passed over)."""
        return bool(self.pub.poll(0)) and self.pub.recv().startswith(b"\1")

    def send(self, *events: dict[str, Any], is_lost: bool = False) -> None:
        body = batch(*events)
        self.kept.append((self.next, body))
        if not is_lost:
            self.pub.send_multipart([b"kv", self.next.to_bytes(8, "big"), body])
        self.next += 1

    def serve(self) -> None:
        """Answer the replay requests that have come, as vLLM does."""
        while self.replay and not self.is_silent and self.router.poll(0):
            client, _, start = self.router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            for sequence, body in self.kept:
                if sequence >= self.asked[-1]:
                    head = [client, b"", b"kv", sequence.to_bytes(8, "big")]
                    self.router.send_multipart([*head, body])
            self.router.send_multipart([client, b"", b"", END, b""])


@contextmanager
def publisher(directory: Path, **options: Any) -> Iterator[Publisher]:
    made = Publisher(directory, **options)
    try:
        yield made
    finally:
        made.stop()
        made.context.destroy(linger=0)


class Listener:
    """The collector's part, one round at a time."""

    def __init__(self, source: Publisher) -> None:
        self.source = source
        self.entry = EndpointEntry("r1", "h", 1, kv_events=source.events, kv_replay=source.replay)
        self.events = KvEvents()
        self.run: float | None = 1.0

    def count(self) -> int | None:
        self.source.serve()
        return self.events.turn([self.entry], {"r1": self.run}, time.monotonic()).get("r1")

    def wait_heard(self) -> None:
        """Until the publisher has the subscription (again): it is sent from inside a round."""
        wait_until(lambda: self.source.is_heard() or (self.count() and False), 10, "heard")

    def until(self, wanted: int | None) -> None:
        wait_until(lambda: self.count() == wanted, 10, f"{wanted} blocks")


@contextmanager
def listening(source: Publisher) -> Iterator[Listener]:
    made = Listener(source)
    try:
        made.wait_heard()
        yield made
    finally:
        made.events.close()


def test_blocks_are_counted_from_the_engines_first_event_on(tmp_path: Path) -> None:
    with publisher(tmp_path) as source, listening(source) as listener:
        listener.until(0)  # the replay said: nothing yet
        source.send(stored(1, 2, 3))
        source.send({"type": "BlockRemoved", "block_hashes": [2]})
        listener.until(2)


def test_a_collector_that_starts_later_asks_for_what_came_before(tmp_path: Path) -> None:
    with publisher(tmp_path) as source:
        source.send(stored(1, 2))
        with listening(source) as listener:
            listener.until(2)
            assert source.asked == [0]


def test_a_gap_is_filled_from_where_it_began(tmp_path: Path) -> None:
    with publisher(tmp_path) as source, listening(source) as listener:
        source.send(stored(1))
        listener.until(1)
        source.send(stored(2), is_lost=True)
        source.send(stored(3))
        listener.until(3)
        assert source.asked[-1] == 1


def test_a_gap_that_cannot_be_filled_makes_the_count_unknown(tmp_path: Path) -> None:
    with publisher(tmp_path) as source, listening(source) as listener:
        source.send(stored(1))
        listener.until(1)
        source.send(stored(2), is_lost=True)
        source.kept.clear()
        source.send(stored(3))
        listener.until(None)
        source.send({"type": "AllBlocksCleared"}, stored(4))
        listener.until(1)


def test_without_a_replay_address_a_gap_makes_the_count_unknown(tmp_path: Path) -> None:
    with publisher(tmp_path, has_replay=False) as source, listening(source) as listener:
        assert listener.count() is None
        source.send(stored(1))
        listener.until(1)
        source.send(stored(2), is_lost=True)
        source.send(stored(3))
        listener.until(None)


def test_a_replay_that_is_not_answered_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_events, "REPLAY_WAIT_S", 0.2)
    with publisher(tmp_path) as source:
        source.is_silent = True
        with listening(source) as listener:
            time_out_s = time.monotonic() + 0.2
            wait_until(lambda: listener.count() is None and time.monotonic() > time_out_s, 5)
            source.send(stored(1))  # from the first event on it knows again
            listener.until(1)


@pytest.mark.parametrize("has_replay", [True, False])
def test_an_engine_that_starts_again_is_counted_from_nothing(
    tmp_path: Path, has_replay: bool
) -> None:
    with publisher(tmp_path, has_replay=has_replay) as source, listening(source) as listener:
        source.send(stored(1, 2))
        source.send(stored(3))
        listener.until(3)
        source.stop()
        source.start()
        listener.wait_heard()
        source.send(stored(9))
        listener.until(1)


def test_a_new_run_without_events_does_not_keep_the_old_runs_blocks(tmp_path: Path) -> None:
    with publisher(tmp_path) as source, listening(source) as listener:
        source.send(stored(1, 2))
        listener.until(2)
        source.stop()
        source.start()
        listener.run = 2.0  # seen on the metrics page
        listener.until(0)


def test_malformed_frames_are_passed_over_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with publisher(tmp_path) as source, listening(source) as listener:
        source.send(stored(1))
        listener.until(1)
        with caplog.at_level(logging.WARNING):
            for bad in ([b"x"], [b"kv", b"12345678", b"\xc1"], [b"a", b"b", b"c", b"d"]):
                source.pub.send_multipart(bad)
            listener.until(None)
            source.send({"type": "AllBlocksCleared"}, stored(5, 6))
            listener.until(2)
        assert len(caplog.records) == 1


def test_a_frame_that_is_too_large_is_not_taken_in(tmp_path: Path) -> None:
    with publisher(tmp_path) as source, listening(source) as listener:
        source.send(stored(1))
        listener.until(1)
        huge = {"type": "BlockStored", "block_hashes": [2], "token_ids": list(range(400_000))}
        source.send(huge)
        listener.wait_heard()
        listener.until(None)
        source.kept.clear()
        source.send({"type": "AllBlocksCleared"}, stored(3, 4))
        listener.until(2)


def test_only_local_sockets_are_listened_to(caplog: pytest.LogCaptureFixture) -> None:
    events = KvEvents()
    entry = EndpointEntry("r1", "h", 1, kv_events="tcp://10.0.0.1:5557")
    with caplog.at_level(logging.WARNING):
        for now_s in (1.0, 2.0):
            assert events.turn([entry], {}, now_s) == {}
    assert [record.getMessage() for record in caplog.records] == [
        "KV events of r1: only ipc:// addresses are read"
    ]


def test_the_collector_tells_resident_blocks_and_outlives_bad_frames(
    tmp_path: Path, store: "redis.Redis[bytes]"
) -> None:
    url = os.environ["REDIS_URL"]
    with (
        publisher(tmp_path) as source,
        engines(1) as (u1,),
        closing(redis.Redis.from_url(url)) as client,
        start_collector(url, tmp_path),
    ):
        source.send(stored(1, 2))
        snapshot = make_snapshot([("127.0.0.1", u1.port)])
        pool = snapshot.pools["p1"]
        entry = msgspec.structs.replace(
            pool.endpoints[0], kv_events=source.events, kv_replay=source.replay
        )
        pools = {"p1": msgspec.structs.replace(pool, endpoints=(entry,))}
        publish(client, msgspec.structs.replace(snapshot, pools=pools))

        def told() -> Any:
            source.serve()
            state = endpoint(client, "p1")
            return state.resident_kv_blocks if state else None

        wait_until(lambda: told() == 2, 10, "2 blocks")
        source.pub.send_multipart([b"kv", b"12345678", b"\xc1"])
        wait_until(lambda: told() is None, 10, "unknown")
        source.send({"type": "AllBlocksCleared"}, stored(5))
        wait_until(lambda: told() == 1, 10, "1 block")
        u1.stop()
        wait_until(lambda: told() is None, 10, "unknown once the engine is gone")

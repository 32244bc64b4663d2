"""Subscriptions to engines' KV events over ZeroMQ: how many prefix blocks each replica holds.

Read once a round, without waiting, so that no engine can hold the collector up. A gap in the
sequence numbers is filled from the engine's replay address; without one, or when the engine no
longer has what was missed, the count is unknown until the engine starts again or clears its cache.

Only `ipc://` addresses are accepted: the events carry the token ids of tenants' prompts, and
ZeroMQ's TCP has no authentication. The token ids end in the decoder (`kv_blocks`).
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import zmq

from routing.contracts.snapshot import EndpointEntry
from telemetry.collector.kv_blocks import (
    SEQUENCE_BYTES,
    BadFrameError,
    BlockTable,
    read_message,
)

log = logging.getLogger(__name__)

READERS_MAX = 256  # replicas listened to; the first ones in order of the snapshot
ROUND_MESSAGES = 4000  # of all replicas together: about 0.1 s; the rest waits in the sockets
QUEUE_MESSAGES = 1000  # kept unread by a socket; then the engine drops, and the gap is replayed
MESSAGE_BYTES_MAX = 1 << 20  # a step of 32k tokens is 200 kB; a larger frame ends the connection
REPLAY_WAIT_S = 3.0  # vLLM answers between two steps
REPLAY_PAUSE_S = 30.0  # after a replay that did not help
_END = b"\xff" * SEQUENCE_BYTES
_RECONNECT_MS = (200, 2000)
_SCHEME = "ipc://"


class KvReader:
    """One replica's events. `turn` once a round; `resident` in between."""

    def __init__(self, context: "zmq.Context[Any]", events: str, replay: str) -> None:
        """Raises `zmq.ZMQError` for an address that cannot be used."""
        self.addresses = (events, replay)
        self.table = BlockTable()
        self.run: float | None = None
        self._context = context
        self._replay: zmq.Socket[bytes] | None = None
        self._replay_ends_s = 0.0
        self._asked_from = 0
        self._replay_allowed_s = 0.0
        self._has_gap = False
        self._is_told = False
        self._socket, self._ended = self._subscribe()

    @property
    def resident(self) -> int | None:
        """Prefix blocks in the engine's cache, None when not known (also while asking)."""
        return None if self._replay is not None else self.table.resident

    def turn(self, now_s: float, most: int) -> int:
        """Take over at most `most` messages; how many there were. Never waits, never raises."""
        try:
            if self._ended.poll(0):
                self._renew()
            if self._replay is None and not self.table.is_whole:
                self._ask(now_s)  # a collector that starts later than the engine
            taken = self._read_replay(now_s, most)
            if self._replay is None:
                taken += self._read_events(now_s, most - taken)
        except zmq.ZMQError as error:
            self._fault(f"socket: {error}")
            self._end_replay()
            self.table.lose()
            return most
        return taken

    def begin_again(self, now_s: float) -> None:
        """The engine has started anew: nothing that was seen holds any longer."""
        self._end_replay()
        self._replay_allowed_s = now_s
        self.table.lose(0)

    def close(self) -> None:
        """Let go of the sockets."""
        self._unsubscribe()
        if self._replay is not None:
            self._replay.close(linger=0)

    # -- the connection

    def _subscribe(self) -> "tuple[zmq.Socket[bytes], zmq.Socket[bytes]]":
        """The subscription, and a socket that tells when its connection has ended."""
        socket = self._connect(zmq.SUB, self.addresses[0])
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        return socket, socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)

    def _unsubscribe(self) -> None:
        self._socket.disable_monitor()
        self._socket.close(linger=0)

    def _renew(self) -> None:
        """The engine has gone, or sent a frame beyond the limit, after which ZeroMQ does not come
        back by itself: subscribe anew, and know nothing until it says.
        """
        self._unsubscribe()
        self._socket, self._ended = self._subscribe()
        self._end_replay()
        self.table.lose(0)

    # -- live events

    def _read_events(self, now_s: float, most: int) -> int:
        for count in range(most):
            frames = _receive(self._socket)
            if frames is None:
                return count
            self._take(frames, now_s)
            if self._replay is not None:
                return count + 1
        return max(0, most)

    def _take(self, frames: list[bytes], now_s: float) -> None:
        try:
            message = read_message(frames)
        except BadFrameError as error:
            self._fault(str(error))
            self.table.lose()  # what it said is missing, and a replay would say the same
            self._replay_allowed_s = now_s + REPLAY_PAUSE_S
            return
        table = self.table
        if table.is_old(message):
            return
        if message.sequence == 0:
            table.restart()
        elif not table.is_next(message):
            is_new_run = message.sequence < table.next
            if is_new_run:
                table.lose(0)
            if self._ask(now_s):
                return  # the replay brings this message too
            table.lose(message.sequence)
        table.apply(message)

    # -- replay

    def _ask(self, now_s: float) -> bool:
        """Ask for everything from the next number on; False when there is nobody to ask now."""
        address = self.addresses[1]
        if not address or now_s < self._replay_allowed_s:
            return False
        if not self.table.is_whole:
            self.table.lose(0)
        self._replay = self._connect(zmq.DEALER, address)
        self._replay.send_multipart(
            [b"", self.table.next.to_bytes(SEQUENCE_BYTES, "big")], zmq.DONTWAIT
        )
        self._replay_ends_s = now_s + REPLAY_WAIT_S
        self._asked_from, self._has_gap = self.table.next, False
        return True

    def _read_replay(self, now_s: float, most: int) -> int:
        if self._replay is None:
            return 0
        for count in range(most):
            frames = _receive(self._replay)
            if frames is None:
                if now_s >= self._replay_ends_s:
                    self._finish_replay(now_s, is_answered=False)
                return count
            if len(frames) > 2 and frames[2] == _END:
                self._finish_replay(now_s, is_answered=True)
                return count + 1
            self._take_replayed(frames[1:])
        return most

    def _take_replayed(self, frames: list[bytes]) -> None:
        try:
            message = read_message(frames)
        except BadFrameError as error:
            self._fault(str(error))
            self._has_gap = True
            return
        table = self.table
        if table.is_next(message) and not self._has_gap:
            if message.sequence == 0:
                table.restart()
            table.apply(message)
        elif message.sequence > table.next:
            self._has_gap = True  # more than its queue holds, or no longer kept

    def _finish_replay(self, now_s: float, *, is_answered: bool) -> None:
        has_moved = self.table.next > self._asked_from
        has_gap = self._has_gap
        self._end_replay()
        if has_gap and has_moved:
            self._ask(now_s)  # the engine's queue overflowed: go on where it broke off
        elif is_answered and not has_gap:
            if self.table.next == 0:
                self.table.restart()  # it has published nothing yet
        else:
            self.table.lose()
            self._replay_allowed_s = now_s + REPLAY_PAUSE_S

    def _end_replay(self) -> None:
        if self._replay is not None:
            self._replay.close(linger=0)
            self._replay = None

    def _connect(self, kind: int, address: str) -> "zmq.Socket[bytes]":
        socket: zmq.Socket[bytes] = self._context.socket(kind)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVHWM, QUEUE_MESSAGES)
            socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
            socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS[0])
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MS[1])
            socket.connect(address)
        except zmq.ZMQError:
            socket.close(linger=0)
            raise
        return socket

    def _fault(self, words: str) -> None:
        """Say it once a replica: an engine that goes on must not fill the log."""
        if not self._is_told:
            self._is_told = True
            log.warning("KV events of %s: %s", self.addresses[0], words)


@dataclass(slots=True)
class KvEvents:
    """The readers of all replicas that tell where they publish."""

    _readers: dict[str, KvReader] = field(default_factory=dict)
    _refused: set[str] = field(default_factory=set)
    _context: "zmq.Context[Any] | None" = None

    def turn(
        self, endpoints: Iterable[EndpointEntry], runs: Mapping[str, float | None], now_s: float
    ) -> dict[str, int]:
        """Read what has come; resident blocks of each replica of which they are known.

        `runs` tells runs of an engine apart (its start time), where known.
        """
        wanted = [entry for entry in endpoints if entry.kv_events][:READERS_MAX]
        self._follow(wanted)
        left = ROUND_MESSAGES
        for replica_id, reader in self._readers.items():
            run = runs.get(replica_id)
            if run is not None and run != reader.run:
                if reader.run is not None:
                    reader.begin_again(now_s)
                reader.run = run
            left -= reader.turn(now_s, left)
        # Whoever was read first is read last next time, so that none is left out under load.
        for replica_id in list(self._readers)[:1]:
            self._readers[replica_id] = self._readers.pop(replica_id)
        return {
            replica_id: reader.resident
            for replica_id, reader in self._readers.items()
            if reader.resident is not None
        }

    def close(self) -> None:
        """End every subscription."""
        self._follow([])
        if self._context is not None:
            self._context.destroy(linger=0)
            self._context = None

    def _follow(self, wanted: list[EndpointEntry]) -> None:
        addresses = {entry.replica_id: (entry.kv_events, entry.kv_replay) for entry in wanted}
        for replica_id, reader in list(self._readers.items()):
            if addresses.get(replica_id) != reader.addresses:
                self._readers.pop(replica_id).close()
        self._refused &= addresses.keys()
        for replica_id, (events, replay) in addresses.items():
            if replica_id not in self._readers and replica_id not in self._refused:
                self._open(replica_id, events, replay)

    def _open(self, replica_id: str, events: str, replay: str) -> None:
        if not all(address.startswith(_SCHEME) for address in (events, replay) if address):
            self._refused.add(replica_id)
            log.warning("KV events of %s: only ipc:// addresses are read", replica_id)
            return
        if self._context is None:
            self._context = zmq.Context()
        try:
            self._readers[replica_id] = KvReader(self._context, events, replay)
        except zmq.ZMQError as error:
            self._refused.add(replica_id)
            log.warning("KV events of %s: %s", replica_id, error)


def _receive(socket: "zmq.Socket[bytes]") -> list[bytes] | None:
    try:
        return socket.recv_multipart(zmq.DONTWAIT)
    except zmq.Again:
        return None

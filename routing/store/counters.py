"""The ledger writer's line to the store: the verbs of `counters.lua`, and reads of the streams.

A session is one TCP connection, so its `run_id` names the very process that answers; of a cluster
it holds one master's buckets, and `masters` gives an address for each. Redis clients
reconnect behind their caller's back; here a broken session stays broken, because `begin` sent to
another process than the one whose `run_id` it carries opens an epoch that nobody can trust.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import msgspec
from redis.connection import ConnectionInterface, ConnectionPool
from redis.exceptions import RedisError, ResponseError

from routing.store import keys
from routing.store.address import BUCKET_SLOTS, cluster_of, masters_in, slot_of
from routing.store.scripts import COUNTERS, LEASE, loading

CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 5.0  # a store that takes longer is away: every caller can start again
PIPELINE_COMMANDS = 256  # commands in one write: bounds the bytes that wait in either socket
FILL_ROWS = 500  # counters in one `fill`: bounds how long a script holds the server (about 1 ms)
LEASE_MS = 15_000  # as gateways take them
REGISTER_WITHIN_MS = 60_000  # a late registration harms nobody: it only counts what is held

_pack = msgspec.msgpack.Encoder().encode


class StoreLost(Exception):  # noqa: N818 - says what happened
    """The connection broke, or the server no longer knows our scripts. Open a new session."""


class Answer(StrEnum):
    """What `counters.lua` says: done, done before, or no longer our epoch or server."""

    OK = "OK"
    TWICE = "TWICE"
    OLD = "OLD"


@dataclass(frozen=True, slots=True)
class Meta:
    """A bucket's meta hash, as its last writer left it."""

    epoch: int
    run_id: str
    state: str
    pos: str
    seq: int


@dataclass(frozen=True, slots=True)
class CounterRow:
    """One counter: key suffix, dimension, amount (absolute or a difference), window end in ms."""

    suffix: str
    dimension: str
    amount: int
    end_ms: int

    def packed(self) -> list[object]:
        """As the script reads it."""
        return [self.suffix, self.dimension, self.amount, self.end_ms]


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """One entry of a stream: its id and its fields."""

    id: str
    fields: dict[bytes, bytes]


class StoreSession:
    """One connection to one server process. Any failure raises `StoreLost` and ends the session."""

    def __init__(self, connection: ConnectionInterface) -> None:
        self._connection = connection
        self._is_lost = False
        self.run_id = ""
        self.buckets: tuple[int, ...] = tuple(range(keys.BUCKETS))
        self._slots: frozenset[int] | None = None  # of this master; None: no cluster

    @classmethod
    def open(cls, url: str) -> Self:
        """Connect to one server, load the scripts, read its run id and which buckets it holds.

        Raises `StoreLost` when it is away.
        """
        pool = ConnectionPool.from_url(
            url,
            protocol=2,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_timeout=ANSWER_TIMEOUT_S,
            max_connections=1,
        )
        session = cls(pool.make_connection())
        session._start()
        return session

    def _start(self) -> None:
        try:
            self._connection.connect()  # type: ignore[no-untyped-call]
        except (RedisError, OSError) as error:
            self.close()
            raise StoreLost(f"the store cannot be reached: {error}") from error
        self.batch(loading(COUNTERS, LEASE))
        self.run_id = _run_id(_bytes(self.call("INFO", "server")))
        if b"cluster_enabled:1" in _bytes(self.call("INFO", "cluster")):
            self._slots = frozenset()
            self.learn_buckets()

    def learn_buckets(self) -> None:
        """Ask a cluster's master anew which buckets are its own: slots may have moved."""
        if self._slots is None:
            return
        me, rows = self.batch([("CLUSTER", "MYID"), ("CLUSTER", "SLOTS")])
        slots = self._slots = frozenset(_slots_of(_bytes(me), rows))
        self.buckets = tuple(b for b in range(keys.BUCKETS) if BUCKET_SLOTS[b] in slots)

    def owns(self, key: str) -> bool:
        """Is this the server that holds a key?"""
        return self._slots is None or slot_of(key.encode()) in self._slots

    def close(self) -> None:
        """End the session."""
        self._is_lost = True
        self._connection.disconnect()  # type: ignore[no-untyped-call]

    # -- transport ------------------------------------------------------------------------------

    def call(self, *args: object) -> object:
        """One command, its answer. An error answer raises `StoreLost` too."""
        return self.batch([args])[0]

    def batch(self, commands: Sequence[tuple[object, ...]]) -> list[object]:
        """Answers of many commands, in order, sent `PIPELINE_COMMANDS` at a time."""
        answers: list[object] = []
        for at in range(0, len(commands), PIPELINE_COMMANDS):
            answers += self._send(commands[at : at + PIPELINE_COMMANDS])
        return answers

    def _send(self, commands: Sequence[tuple[object, ...]]) -> list[object]:
        if self._is_lost:
            raise StoreLost("the session has ended")
        try:
            packed = self._connection.pack_commands(commands)  # type: ignore[no-untyped-call]
            self._connection.send_packed_command(packed, False)  # type: ignore[no-untyped-call]
            return [self._connection.read_response() for _ in commands]
        except ResponseError as error:
            # Answers behind the error are unread, so the connection cannot be used any more.
            self.close()
            raise StoreLost(f"the store refused a command: {error}") from error
        except (RedisError, OSError) as error:
            self.close()
            raise StoreLost(f"the store is away: {error}") from error

    def _counter_calls(self, calls: Iterable[tuple[int, list[object]]]) -> list[Answer]:
        commands: list[tuple[object, ...]] = [
            ("EVALSHA", COUNTERS.digest, 1, keys.bucket_meta(bucket), _pack(argument))
            for bucket, argument in calls
        ]
        return [Answer(_text(answer)) for answer in self.batch(commands)]

    def _head(self, verb: str, bucket: int, epoch: int) -> list[object]:
        return [verb, keys.bucket_tag(bucket), self.run_id, epoch]

    # -- verbs of counters.lua --------------------------------------------------------------------

    def begin(self, epochs: Mapping[int, int]) -> dict[int, Answer]:
        """Start an epoch in each bucket: rebuilding, nothing counted, nothing admitted."""
        answers = self._counter_calls(
            (bucket, self._head("begin", bucket, epoch)) for bucket, epoch in epochs.items()
        )
        return dict(zip(epochs, answers, strict=True))

    def fill(self, bucket: int, epoch: int, rows: Sequence[CounterRow]) -> Answer:
        """Set counters to absolute values; only while the bucket is rebuilding in this epoch."""
        calls = [
            (bucket, [*self._head("fill", bucket, epoch), [row.packed() for row in part]])
            for part in (rows[at : at + FILL_ROWS] for at in range(0, len(rows), FILL_ROWS))
        ]
        answers = self._counter_calls(calls)
        return Answer.OLD if Answer.OLD in answers else Answer.OK

    def ready(self, opened: Mapping[int, tuple[int, int]]) -> dict[int, Answer]:
        """Admit again (`open`): bucket -> (epoch, number of the last correction in the fill)."""
        answers = self._counter_calls(
            (bucket, [*self._head("open", bucket, epoch), seq])
            for bucket, (epoch, seq) in opened.items()
        )
        return dict(zip(opened, answers, strict=True))

    def delta(self, bucket: int, epoch: int, seq: int, rows: Sequence[CounterRow]) -> Answer:
        """Apply correction `seq`, once: `TWICE` says that it, or a later one, is already in."""
        argument = [*self._head("delta", bucket, epoch), seq, [row.packed() for row in rows]]
        return self._counter_calls([(bucket, argument)])[0]

    def publish(self, positions: Mapping[int, tuple[int, str]]) -> dict[int, Answer]:
        """Tell each bucket that all entries up to a position are committed, and trim its stream."""
        answers = self._counter_calls(
            (bucket, [*self._head("pos", bucket, epoch), pos])
            for bucket, (epoch, pos) in positions.items()
        )
        return dict(zip(positions, answers, strict=True))

    # -- reads --------------------------------------------------------------------------------

    def count_present(self, names: Sequence[str]) -> int:
        """How many of these keys exist: one command, a few tens of microseconds for 256 keys.

        A master of a cluster takes one command for each slot.
        """
        if self._slots is not None:
            return sum(map(_int, self.batch([("EXISTS", name) for name in names])))
        return _int(self.call("EXISTS", *names))

    def metas(self, buckets: Sequence[int]) -> dict[int, Meta | None]:
        """Meta of each bucket; None where there is none."""
        commands: list[tuple[object, ...]] = [
            ("HMGET", keys.bucket_meta(bucket), "epoch", "run_id", "state", "pos", "seq")
            for bucket in buckets
        ]
        return dict(zip(buckets, map(_meta, self.batch(commands)), strict=True))

    def read(self, positions: Mapping[str, str], count: int) -> dict[str, list[StreamEntry]]:
        """New entries of many streams after their positions, at most `count` of each.

        One command for all of them; a master of a cluster takes one for each slot.
        """
        head = ("XREAD", "COUNT", count, "STREAMS")
        if self._slots is None:
            answers = [self.call(*head, *positions, *positions.values())]
        else:
            answers = self.batch([(*head, name, pos) for name, pos in positions.items()])
        return {
            _text(name): _entries(entries)
            for answer in answers
            if answer is not None
            for name, entries in _pairs(answer)
        }

    def range(self, stream: str, after: str, count: int) -> list[StreamEntry]:
        """Entries of one stream after a position, oldest first."""
        return _entries(self.call("XRANGE", stream, f"({after}", "+", "COUNT", count))

    def trim(self, stream: str, pos: str) -> None:
        """Drop the entries before a position."""
        self.call("XTRIM", stream, "MINID", pos)

    def register_holds(self, buckets: Sequence[int]) -> int:
        """Count every hold that a bucket's leases name into the present epoch; returns how many.

        A hold keeps its own legs; its lease starts anew, so that its gateway has time to speak.
        """
        ids = self.batch([("ZRANGE", keys.bucket_leases(bucket), 0, -1) for bucket in buckets])
        held = {
            bucket: [_text(name) for name in _list(names)]
            for bucket, names in zip(buckets, ids, strict=True)
        }
        calls = [(bucket, name) for bucket, names in held.items() for name in names]
        outputs = self.batch([("EXISTS", keys.hold(bucket, name)) for bucket, name in calls])
        now_ms = self.now_ms()
        commands: list[tuple[object, ...]] = []
        for (bucket, name), there in zip(calls, outputs, strict=True):
            if not there:
                continue
            items = [[name, 0, 0]]  # it keeps its own output so far: it is of an earlier epoch
            tag, late = keys.bucket_tag(bucket), now_ms + REGISTER_WITHIN_MS
            argument = _pack([tag, self.run_id, late, LEASE_MS, items])
            commands.append(("EVALSHA", LEASE.digest, 1, keys.bucket_meta(bucket), argument))
        self.batch(commands)
        return len(commands)

    def now_ms(self) -> int:
        """The store's clock, Unix milliseconds."""
        seconds, micros = _list(self.call("TIME"))
        return int(_bytes(seconds)) * 1000 + int(_bytes(micros)) // 1000


def masters(url: str) -> list[str]:
    """Addresses of the servers that hold the store: a cluster's masters, or the one server.

    Raises `StoreLost` when no seed of a cluster says who they are.
    """
    cluster = cluster_of(url)
    if cluster is None:
        return [url]
    for seed in cluster.seeds:
        try:
            session = StoreSession.open(cluster.url_of(seed))
        except StoreLost:
            continue
        try:
            found = masters_in(session.call("CLUSTER", "SLOTS"), seed)
        finally:
            session.close()
        return sorted({cluster.url_of(node) for _, _, node in found})
    raise StoreLost("no node that REDIS_URL names says who the masters are")


def session_of(url: str, bucket: int) -> StoreSession:
    """A session with the server that holds a bucket. Raises `StoreLost`."""
    for one in masters(url):
        session = StoreSession.open(one)
        if bucket in session.buckets:
            return session
        session.close()
    raise StoreLost(f"no server holds bucket {bucket}")


def _slots_of(me: bytes, rows: object) -> Iterable[int]:
    for row in _list(rows):
        first, last, master = _list(row)[:3]
        if _list(master)[2] == me:
            yield from range(_int(first), _int(last) + 1)


def _run_id(info: bytes) -> str:
    for line in info.splitlines():
        if line.startswith(b"run_id:"):
            return keys.run_name(line[7:].decode())
    raise StoreLost("the store does not say its run_id")


def _meta(answer: object) -> Meta | None:
    epoch, run_id, state, pos, seq = _list(answer)
    if epoch is None:
        return None
    return Meta(
        epoch=int(_bytes(epoch)),
        run_id=_text(run_id or b""),
        state=_text(state or b""),
        pos=_text(pos or b"0-0"),
        seq=int(_bytes(seq or b"0")),
    )


def _entries(answer: object) -> list[StreamEntry]:
    entries = []
    for name, flat in _pairs(answer):
        parts = [_bytes(part) for part in _list(flat)]
        fields = dict(zip(parts[::2], parts[1::2], strict=True))
        entries.append(StreamEntry(_text(name), fields))
    return entries


def _pairs(answer: object) -> list[tuple[object, object]]:
    pairs = []
    for item in _list(answer):
        first, second = _list(item)
        pairs.append((first, second))
    return pairs


def _list(answer: object) -> list[object]:
    if not isinstance(answer, list):
        raise StoreLost(f"expected a list from the store, got {type(answer).__name__}")
    return answer


def _bytes(answer: object) -> bytes:
    if not isinstance(answer, bytes):
        raise StoreLost(f"expected a string from the store, got {type(answer).__name__}")
    return answer


def _text(answer: object) -> str:
    return _bytes(answer).decode()


def _int(answer: object) -> int:
    if not isinstance(answer, int):
        raise StoreLost(f"expected a number from the store, got {type(answer).__name__}")
    return answer

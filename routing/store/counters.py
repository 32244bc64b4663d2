"""The ledger writer's line to the store: the verbs of `counters.lua`, and reads of the streams.

A session is one TCP connection, so its `run_id` names the very process that answers. Redis clients
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
from routing.store.scripts import COUNTERS, LEASE, Script

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
        self._counters = self._lease = ""
        self.run_id = ""

    @classmethod
    def open(cls, url: str) -> Self:
        """Connect, load the scripts, read the run id. Raises `StoreLost` when the store is away."""
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
        self._counters = self._load(COUNTERS)
        self._lease = self._load(LEASE)
        self.run_id = _run_id(_bytes(self.call("INFO", "server")))

    def _load(self, script: Script) -> str:
        return _text(self.call("SCRIPT", "LOAD", script.source))

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
            ("EVALSHA", self._counters, 1, keys.bucket_meta(bucket), _pack(argument))
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
        """How many of these keys exist: one command, a few tens of microseconds for 256 keys."""
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

        One command for all of them; on a server in cluster mode it takes one call for each slot.
        """
        answer = self.call("XREAD", "COUNT", count, "STREAMS", *positions, *positions.values())
        if answer is None:
            return {}
        return {_text(name): _entries(entries) for name, entries in _pairs(answer)}

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
        outputs = self.batch([("HGET", keys.hold(bucket, name), "o") for bucket, name in calls])
        now_ms = self.now_ms()
        commands: list[tuple[object, ...]] = []
        for (bucket, name), output in zip(calls, outputs, strict=True):
            if output is None:
                continue
            items = [[name, int(_bytes(output)), 0]]
            tag, late = keys.bucket_tag(bucket), now_ms + REGISTER_WITHIN_MS
            argument = _pack([tag, self.run_id, late, LEASE_MS, "ledger", items])
            commands.append(("EVALSHA", self._lease, 1, keys.bucket_meta(bucket), argument))
        self.batch(commands)
        return len(commands)

    def now_ms(self) -> int:
        """The store's clock, Unix milliseconds."""
        seconds, micros = _list(self.call("TIME"))
        return int(_bytes(seconds)) * 1000 + int(_bytes(micros)) // 1000


def _run_id(info: bytes) -> str:
    for line in info.splitlines():
        if line.startswith(b"run_id:"):
            return line[7:].decode()
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

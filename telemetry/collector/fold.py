"""Move gateway reports from their stream into one-minute sums, each report exactly once.

The sums and the position in the stream change in one transaction that holds only if the position
is still the one that was read. So a report is neither lost nor counted twice when the collector
dies between any two steps, when two collectors overlap, or when a reply of the store is lost; a
gateway that sent a report twice is recognised by its number. Nothing of this is kept in memory.
"""

import logging
from dataclasses import dataclass
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import WatchError

from routing.contracts.slices import SliceDelta, SliceFrame, decode_frame
from routing.store import keys
from telemetry.collector.wire import as_bytes
from telemetry.stats.figures import SPEND_MINUTES, WINDOW_S, Spend, Trailing
from telemetry.stats.tries import (
    KEPT_S,
    SPAN_MS,
    UNSIZED,
    Tries,
    decode_tries,
    encode_tries,
)
from telemetry.stats.windows import (
    MINUTE_MS,
    TOTAL,
    Seen,
    SliceKey,
    SliceSum,
    class_key,
    decode_key,
    decode_sum,
    encode_key,
    encode_sum,
    key_of,
    minute_of,
    place,
    see,
)

log = logging.getLogger(__name__)

BATCH_FRAMES = 256  # a transaction stays short; a backlog takes several
BACKLOG_BATCHES = 8  # batches a round, so that scraping goes on while catching up
SEEN_KEPT_MS = 3_600_000  # a gateway that was silent this long does not send old reports again
SEEN_MAX = 1000  # gateway incarnations remembered
MINUTE_KEPT_S = (keys.SLICE_MINUTES_KEPT + 2) * 60
_START = b"0-0"
_FIELD = b"f"

_encode_seen = msgspec.msgpack.Encoder().encode
_decode_seen = msgspec.msgpack.Decoder(dict[str, Seen]).decode


class Overtaken(Exception):  # noqa: N818 - says what happened; nothing is wrong
    """Another collector folded in between; what is in memory is to be read again."""


@dataclass(frozen=True, slots=True)
class Folded:
    """Result of a round: reports that counted, and whether the stream is drained."""

    frames: list[SliceFrame]
    is_drained: bool


@dataclass(frozen=True, slots=True)
class _Position:
    entry: bytes
    folds: int
    seen: dict[str, Seen]


async def fold(store: Redis, now_ms: int) -> Folded:
    """Fold what the stream holds, up to the round's bound. Raises `Overtaken`, `RedisError`."""
    frames: list[SliceFrame] = []
    for _ in range(BACKLOG_BATCHES):
        batch = await _fold_batch(store, now_ms)
        frames += batch.frames
        if batch.is_drained:
            return Folded(frames, is_drained=True)
    return Folded(frames, is_drained=False)


async def _fold_batch(store: Redis, now_ms: int) -> Folded:
    async with store.pipeline(transaction=True) as pipe:
        await pipe.watch(keys.SLICE_POSITION)
        position = await _read_position(pipe)
        entries = await _read_entries(store, position.entry)
        if not entries:
            return Folded([], is_drained=True)
        frames, seen = _new_frames(entries, position.seen, now_ms)
        minutes = await _merge(pipe, frames)
        classes = await _merge_classes(pipe, frames)
        tries = await _merge_tries(pipe, frames)
        pipe.multi()  # type: ignore[no-untyped-call]
        folds = position.folds + 1
        for minute, sums in minutes.items():
            name = keys.slice_minute(minute)
            pipe.hset(name, mapping={encode_key(key): encode_sum(row) for key, row in sums.items()})
            pipe.expire(name, MINUTE_KEPT_S)
            pipe.zadd(keys.SLICE_DIRTY, {str(minute): folds})
        for minute, sums in classes.items():
            name = keys.class_minute(minute)
            pipe.hset(name, mapping={encode_key(key): encode_sum(row) for key, row in sums.items()})
            pipe.expire(name, MINUTE_KEPT_S)
        for span, by_replica in tries.items():
            name = keys.replica_span(span)
            pipe.hset(name, mapping={who: encode_tries(one) for who, one in by_replica.items()})
            pipe.expire(name, KEPT_S)
        last = entries[-1][0]
        pipe.hset(
            keys.SLICE_POSITION,
            mapping={"entry": last, "folds": folds, "seen": _encode_seen(seen)},
        )
        try:
            await pipe.execute()
        except WatchError as error:
            raise Overtaken from error
    return Folded(frames, is_drained=len(entries) < BATCH_FRAMES)


async def _read_position(pipe: Pipeline) -> _Position:
    entry, folds, seen = await pipe.hmget(keys.SLICE_POSITION, ["entry", "folds", "seen"])
    return _Position(
        entry=as_bytes(entry or _START),
        folds=int(folds or 0),
        seen=_decode_seen(as_bytes(seen)) if seen else {},
    )


async def _read_entries(store: Redis, after: bytes) -> list[tuple[bytes, dict[bytes, bytes]]]:
    streams: Any = await store.xread({keys.SLICE_FRAMES: after}, count=BATCH_FRAMES)
    if not streams:
        return []
    found = streams.items() if isinstance(streams, dict) else streams
    return [entry for _, entries in found for entry in _flat(entries)]


def _flat(entries: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Entries of one stream; under RESP3 the client wraps them in one more list."""
    if entries and isinstance(entries[0], list) and entries[0] and isinstance(entries[0][0], tuple):
        return [entry for part in entries for entry in part]
    return list(entries)


def frame_of(fields: dict[bytes, bytes]) -> SliceFrame | None:
    """The report of a stream entry, or None when it cannot be read (it is skipped)."""
    try:
        return decode_frame(fields.get(_FIELD, b""))
    except msgspec.MsgspecError:
        log.warning("skipped a slice frame that cannot be read")
        return None


def _new_frames(
    entries: list[tuple[bytes, dict[bytes, bytes]]], seen: dict[str, Seen], now_ms: int
) -> tuple[list[SliceFrame], dict[str, Seen]]:
    """Reports not folded before, clipped to the kept minutes, and the memory of them."""
    oldest_ms = (minute_of(now_ms) - keys.SLICE_MINUTES_KEPT) * MINUTE_MS
    known = {name: item for name, item in seen.items() if now_ms - item.at_ms < SEEN_KEPT_MS}
    frames = []
    for _, fields in entries:
        frame = frame_of(fields)
        if frame is None or frame.at_ms < oldest_ms:
            continue
        # A gateway whose clock runs ahead must not open minutes that nobody will read in time.
        frame = msgspec.structs.replace(frame, at_ms=min(frame.at_ms, now_ms))
        source = f"{frame.gateway_id}:{frame.incarnation}"
        after = see(known.get(source, Seen()), frame.seq, frame.at_ms)
        if after is not None:
            known[source] = after
            frames.append(frame)
    newest = sorted(known.items(), key=lambda item: -item[1].at_ms)[:SEEN_MAX]
    return frames, dict(newest)


async def _merge(pipe: Pipeline, frames: list[SliceFrame]) -> dict[int, dict[SliceKey, SliceSum]]:
    """Stored sums of the touched slices, with the reports added."""
    merged: dict[int, dict[SliceKey, SliceSum]] = {}
    for minute, deltas in _by_minute(frames).items():
        touched = {key_of(delta) for delta in deltas}
        touched |= {key.as_other() for key in touched} | {TOTAL}
        stored = await _stored(pipe, keys.slice_minute(minute), sorted(touched))
        count = await pipe.hlen(keys.slice_minute(minute))
        sums: dict[SliceKey, SliceSum] = {}
        for delta in deltas:
            key = key_of(delta)
            is_known = key in stored or key in sums
            key = place(key, is_known=is_known, known_count=count)
            if key not in stored and key not in sums:
                count += 1
            sums.setdefault(key, stored.get(key) or SliceSum()).add(delta)
            sums.setdefault(TOTAL, stored.get(TOTAL) or SliceSum()).add(delta)
        merged[minute] = sums
    return merged


async def _merge_classes(
    pipe: Pipeline, frames: list[SliceFrame]
) -> dict[int, dict[SliceKey, SliceSum]]:
    """The same by model and work class, over all tenants and pools: what objectives are read from.

    Models are those of the snapshot, so this hash stays small however many tenants there are.
    """
    merged: dict[int, dict[SliceKey, SliceSum]] = {}
    for minute, deltas in _by_minute(frames).items():
        wanted = sorted({class_key(key_of(delta)) for delta in deltas})
        sums = await _stored(pipe, keys.class_minute(minute), wanted)
        for delta in deltas:
            sums.setdefault(class_key(key_of(delta)), SliceSum()).add(delta)
        merged[minute] = sums
    return merged


async def _merge_tries(pipe: Pipeline, frames: list[SliceFrame]) -> dict[int, dict[str, Tries]]:
    """What was tried on each replica, by five seconds: what a rollout judges a new one by."""
    merged: dict[int, dict[str, Tries]] = {}
    for frame in frames:
        for delta in frame.replicas:
            found = merged.setdefault(frame.at_ms // SPAN_MS, {})
            sums = found.setdefault(delta.replica_id, Tries())
            sums.add(delta.requests, delta.failed)
            for octave, bins in {UNSIZED: delta.ttft_s, **delta.ttft_by_octave_s}.items():
                if bins:
                    sums.add_times(octave, bins)
    for span, by_replica in merged.items():
        names = sorted(by_replica)
        values = await pipe.hmget(keys.replica_span(span), names)
        for name, value in zip(names, values, strict=True):
            if value is not None:
                by_replica[name].merge(decode_tries(as_bytes(value)))
    return merged


def _by_minute(frames: list[SliceFrame]) -> dict[int, list[SliceDelta]]:
    found: dict[int, list[SliceDelta]] = {}
    for frame in frames:
        if frame.rows:
            found.setdefault(minute_of(frame.at_ms), []).extend(frame.rows)
    return found


async def _stored(pipe: Pipeline, name: str, wanted: list[SliceKey]) -> dict[SliceKey, SliceSum]:
    values = await pipe.hmget(name, [encode_key(key) for key in wanted])
    return {
        key: decode_sum(as_bytes(value))
        for key, value in zip(wanted, values, strict=True)
        if value is not None
    }


async def recall(store: Redis, now_ms: int) -> tuple[Trailing, Spend]:
    """The trailing windows as the store knows them, for a collector that takes over.

    Only what is folded counts: the rest comes with the next round. Raises `RedisError`.
    """
    entry = await store.hget(keys.SLICE_POSITION, "entry")
    trailing, spend = Trailing(), Spend()
    if entry is None:
        return trailing, spend
    since = f"{now_ms - WINDOW_S * 1000}-0"
    known: dict[str, Seen] = {}
    entries: Any = await store.xrange(keys.SLICE_FRAMES, min=since, max=entry)
    frames, _ = _new_frames(entries, known, now_ms)
    for frame in frames:
        trailing.add(frame.at_ms // 1000, frame.rows)
    now_minute = minute_of(now_ms)
    for minute in range(now_minute - SPEND_MINUTES + 1, now_minute + 1):
        async for name, value in store.hscan_iter(keys.slice_minute(minute), count=1000):
            key = decode_key(name)
            if key != TOTAL:
                spend.add(minute, key, decode_sum(value).spend_nanousd)
    return trailing, spend

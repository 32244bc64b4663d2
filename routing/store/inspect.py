"""A bucket as it stands at one moment, and the two repairs that only the store can make.

For `reconcile`: reads are one script, so counters, holds and unread entries belong together even
while gateways reserve and settle.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from routing.contracts.enums import SettleKind
from routing.contracts.usage import UsageEvent, charge_of, encode_usage
from routing.store import keys
from routing.store.calls import SettleItem, settle_argument
from routing.store.counters import StoreLost, StoreSession, StreamEntry
from routing.store.packed import read_counter, read_hold
from routing.store.plans import as_text
from routing.store.scripts import SETTLE

SCAN_COUNT: Final = 1_000  # keys looked at in one step: about 1 ms of the server
MAX_KEYS: Final = 2_000_000  # names held in memory: about 300 MB; beyond it a look is incomplete
SUFFIXES_PER_LOOK: Final = 400  # counters in one script: it holds the server for about 1 ms
WINDOW_GRACE_MS: Final = 26 * 3_600_000  # counters outlive their window by this

# For a tool that runs now and then: sent as source, so gateways need not load them.
_SCRIPTS: Final = Path(__file__).parent / "scripts"
LOOK: Final = (_SCRIPTS / "look.lua").read_bytes()
MEND: Final = (_SCRIPTS / "mend.lua").read_bytes()

_pack: Final = msgspec.msgpack.Encoder().encode


@dataclass(slots=True)
class BucketKeys:
    """Names found in a bucket: counter suffixes of every epoch as (epoch, suffix), and hold ids."""

    counters: list[tuple[int, str]] = field(default_factory=list)
    holds: list[str] = field(default_factory=list)
    has_leases: bool = False

    @property
    def is_empty(self) -> bool:
        """Nothing counted and nothing held."""
        return not (self.counters or self.holds or self.has_leases)


@dataclass(frozen=True, slots=True)
class HoldSeen:
    """A hold, a lease or both. `lease_ms` None: no lease; `epoch` None: no hold."""

    request_id: str
    lease_ms: int | None
    epoch: int | None
    expiry_ms: int
    legs: bytes
    info: bytes
    out_so_far: int


@dataclass(frozen=True, slots=True)
class CounterSeen:
    """A counter's fields; `end_ms` is its window's end as its expiry tells, None without one."""

    end_ms: int | None
    fields: dict[str, int]


@dataclass(frozen=True, slots=True)
class Moment:
    """One bucket at one moment; `now_ms` is the store's clock. `is_cut`: there was more to read."""

    epoch: int
    run_id: str
    state: str
    seq: int
    now_ms: int
    entries: list[StreamEntry]
    holds: list[HoldSeen]
    counters: dict[str, CounterSeen]
    is_cut: bool


def bucket_keys(session: StoreSession) -> dict[int, BucketKeys]:
    """Counters and holds of all buckets by name: one pass over the store's keys, in small steps.

    Raises `StoreLost`, also for more than `MAX_KEYS` names.
    """
    found: dict[int, BucketKeys] = {}
    for count, name in enumerate(_scan(session, "{b*")):
        if count >= MAX_KEYS:
            raise StoreLost(f"more than {MAX_KEYS} keys: too many to compare")
        tag, _, rest = name.partition("}:")
        bucket = found.setdefault(int(tag[2:]), BucketKeys())
        head, _, tail = rest.partition(":")
        if head == "h":
            bucket.holds.append(tail)
        elif rest == "leases":
            bucket.has_leases = True
        elif head.isdigit() and tail[:2] in ("w:", "g:"):
            bucket.counters.append((int(head), tail))
    return found


def _scan(session: StoreSession, pattern: str) -> Iterator[str]:
    cursor: object = b"0"
    while True:
        answer = session.call("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
        if not isinstance(answer, list):
            raise StoreLost("the store cannot be scanned")
        cursor = answer[0]
        yield from (name.decode() for name in answer[1])
        if cursor == b"0":
            return


def look(
    session: StoreSession,
    bucket: int,
    *,
    pos: str,
    hold_ids: Sequence[str],
    suffixes: Sequence[str],
    most: int,
) -> Moment:
    """The bucket now: entries after `pos`, holds, and these counters (at most a look's worth)."""
    argument = _pack([keys.bucket_tag(bucket), pos, most, list(hold_ids), list(suffixes)])
    answer = _run(session, LOOK, bucket, argument)
    epoch, run_id, state, seq, now_ms, entries, holds, counters = answer
    leased = [_hold(row) for row in holds]
    return Moment(
        epoch=int(epoch),
        run_id=run_id.decode(),
        state=state.decode(),
        seq=int(seq),
        now_ms=int(now_ms),
        entries=[
            StreamEntry(name.decode(), dict(zip(flat[::2], flat[1::2], strict=True)))
            for name, flat in entries
        ],
        holds=leased,
        counters={
            suffix: _counter(expiry, packed)
            for suffix, (expiry, packed) in zip(suffixes, counters, strict=True)
        },
        is_cut=len(entries) >= most or sum(h.lease_ms is not None for h in leased) >= most,
    )


def _hold(row: Sequence[bytes | None]) -> HoldSeen:
    name, lease, raw = row
    hold = None if raw is None else read_hold(raw)
    return HoldSeen(
        request_id=(name or b"").decode(),
        lease_ms=None if lease is None else int(float(lease)),
        epoch=hold and hold.epoch,
        expiry_ms=hold.expiry_ms if hold else 0,
        legs=hold.legs if hold else b"",
        info=hold.info if hold else b"",
        out_so_far=hold.out_so_far if hold else 0,
    )


def _counter(expiry_ms: int, packed: bytes) -> CounterSeen:
    end_ms = expiry_ms - WINDOW_GRACE_MS if expiry_ms > 0 else None
    return CounterSeen(end_ms, read_counter(packed))


def mend_leases(session: StoreSession, bucket: int, ids: Sequence[str]) -> tuple[int, int]:
    """Give holds their lease back, drop leases without hold; (given, dropped)."""
    given, dropped = _run(session, MEND, bucket, _pack([keys.bucket_tag(bucket), list(ids)]))
    return int(given), int(dropped)


def end_hold(session: StoreSession, bucket: int, event: UsageEvent, legs: bytes) -> bool:
    """End a hold whose lease is over, charged as `event` says; False when it is alive or gone.

    `event` holds its legs. The script decides by the store's clock, and ends a hold once.
    """
    kind = SettleKind.SWEPT
    item = SettleItem(
        keys.bucket_tag(bucket),
        None,
        event.request_id,
        0,
        kind.value,
        charge_of(kind, event),
        as_text(encode_usage(event)),
        as_text(legs),
    )
    argument = settle_argument(session.run_id, (item,))
    return bool(_run(session, SETTLE.source, bucket, argument)[0][0] == b"OK")


def _run(session: StoreSession, script: bytes, bucket: int, argument: bytes) -> list[Any]:
    answer = session.call("EVAL", script, 1, keys.bucket_meta(bucket), argument)
    if not isinstance(answer, list):
        raise StoreLost(f"a script answered {type(answer).__name__}")
    return answer

"""The only callers of the reserve, settle and lease scripts: arguments, replies, nothing else.

Arguments are one msgpack array whose text is *str*: the server's decoder rejects *bin*. Bytes that
are ready (groups, legs, info, events) are spliced in, not decoded and encoded again. Replies are
lists; their places are named here. Protocol: the accounting design, section 2.
"""

import struct
from collections.abc import Sequence
from typing import Final

import hiredis
import msgspec

from routing.contracts.enums import WindowKind
from routing.decision.limits import AMOUNT_ORDER, Edges, Group, window_edges
from routing.store import keys
from routing.store.client import Callback, wire_key
from routing.store.cluster import Store
from routing.store.once import claim, conclude
from routing.store.scripts import (
    LEASE,
    ONCE_RESERVE,
    ONCE_SETTLE,
    RESERVE,
    SETTLE,
    USE_RESERVE,
    USE_SETTLE,
)
from routing.store.uses import USE, conclude_use, open_use

LEASE_MS: Final = 15_000
_REFUSES_WRITES: Final = ("MISCONF ", "OOM ", "READONLY ", "LOADING ")
NOT_AFTER_MS: Final = 1_000  # a command stuck in a socket cannot take effect later than this
STREAM_MAX: Final = 20_000  # entries a bucket may queue for the ledger; then reserve answers FULL
WINDOW_GRACE_MS: Final = 26 * 3_600_000  # counters outlive their window by this

WINDOW: Final = 1
GAUGE: Final = 2

# Places in replies. All: [verdict, epoch, store ms]. OK of reserve: left of each limit, pos, legs.
VERDICT: Final = 0
EPOCH: Final = 1
NOW_MS: Final = 2
LEFT: Final = 3
RESERVE_POS: Final = 4
LEGS: Final = 5
NO_GROUP: Final = 3  # NO: group (from 1), dimension, used, held, wait ms, left as if admitted
NO_DIMENSION: Final = 4
NO_USED: Final = 5
NO_HELD: Final = 6
NO_WAIT_MS: Final = 7
NO_LEFT: Final = 8
ENTRY: Final = 3  # OK of settle: entry id, pos
SETTLE_POS: Final = 4
LEASE_POS: Final = 3  # OK of lease: pos, state, one result per item
LEASE_STATE: Final = 4
LEASE_RESULTS: Final = 5

ENDED_BEFORE: Final = 0  # lease results
RENEWED: Final = 1
SEND_LEGS: Final = 2

Leg = tuple[int, str, int, list[str | int]]

_STR16: Final = struct.Struct(">BH").pack
_STR32: Final = struct.Struct(">BI").pack
_encode: Final = msgspec.msgpack.Encoder().encode
_decode_legs: Final = msgspec.msgpack.Decoder(list[Leg]).decode
_PLACE: Final = {dimension: place + 1 for place, dimension in enumerate(AMOUNT_ORDER)}
META_KEYS: Final = tuple(wire_key(keys.bucket_meta(bucket)) for bucket in range(keys.BUCKETS))
TAGS: Final = tuple(keys.bucket_tag(bucket) for bucket in range(keys.BUCKETS))


def as_text(raw: bytes) -> msgspec.Raw:
    """Bytes as a msgpack *str*, to be spliced into an argument as they are."""
    size = len(raw)
    head = _STR16(0xDA, size) if size < 65_536 else _STR32(0xDB, size)
    return msgspec.Raw(head + raw)


def group_edges(groups: Sequence[Group], timezone: str, now_ms: int) -> tuple[Edges, ...]:
    """The window edges of each group at `now_ms`; zeros for gauges."""
    return tuple(
        (0, 0, 0)
        if group.is_gauge
        else window_edges(group.window, timezone, now_ms, group.anchor_min)
        for group in groups
    )


def encode_groups(tenant_id: str, groups: Sequence[Group], edges: Sequence[Edges]) -> msgspec.Raw:
    """Groups as the reserve script reads them; good until the earliest `next_end` of the edges."""
    rows: list[list[object]] = []
    for group, (start, end, next_end) in zip(groups, edges, strict=True):
        names = [name for dim, _ in group.dims for name in (f"{dim.value}_h", dim.value)]
        bounds = [part for dim, limit in group.dims for part in (_PLACE[dim], limit)]
        if group.is_gauge:
            rows.append([GAUGE, names, bounds, suffix_of(tenant_id, group, 0)])
        else:
            first, second = (suffix_of(tenant_id, group, at) for at in (start, end))
            rows.append([WINDOW, names, bounds, first, start, end, second, next_end])
    return msgspec.Raw(_encode(rows))


def suffix_of(tenant_id: str, group: Group, start_ms: int) -> str:
    """Counter key below its bucket and epoch: `w:<base>:<start>` or `g:<base>`."""
    window = keys.window_name(group.window, group.anchor_min)
    base = keys.counter_base(tenant_id, group.scope, group.subject, window)
    if group.window is WindowKind.NOW:
        return f"g:{base}"
    return f"w:{base}:{start_ms}"


def encode_legs(
    tenant_id: str, groups: Sequence[Group], edges: Sequence[Edges], amounts: Sequence[int]
) -> bytes:
    """Legs as the reserve script would have made them, for holds that it has not seen."""
    legs: list[list[object]] = []
    for group, (start, end, _) in zip(groups, edges, strict=True):
        taken: list[str | int] = []
        for dim, _ in group.dims:
            taken += (dim.value, amounts[_PLACE[dim] - 1])
        kind = GAUGE if group.is_gauge else WINDOW
        legs.append([kind, suffix_of(tenant_id, group, start), end, taken])
    return _encode(legs)


def decode_legs(packed: bytes) -> list[Leg]:
    """Legs as `[kind, suffix, window_end_ms, [dimension, amount, ...]]` (a `UsageEvent`'s form).

    Raises `msgspec.MsgspecError` for anything else.
    """
    return _decode_legs(packed)


class Reservations:
    """The three scripts on one connection, for one gateway.

    Callbacks get the reply list, a `hiredis.ReplyError`, `NOT_SENT` or `NO_REPLY`.
    """

    def __init__(self, store: Store, gateway_id: str) -> None:
        """Nothing is sent before the first call."""
        self.store = store
        self.gateway_id = gateway_id

    def reserve(  # noqa: PLR0913 -- what the scripts take, by name
        self,
        *,
        bucket: int,
        request_id: str,
        epoch: int,
        not_after_ms: int,
        info: msgspec.Raw,
        amounts: Sequence[int],
        groups: msgspec.Raw,
        done: Callback,
        once: str = "",
        tenant_id: str = "",
        lease_ms: int = LEASE_MS,
    ) -> None:
        """Hold `amounts` on every group or on none; with `once`, only if its key is free.

        `once` may be `store.uses.USE`: then the hold leaves a record.
        """
        argument = _encode(
            (
                TAGS[bucket],
                request_id,
                self.store.run_id_of(bucket),
                epoch,
                not_after_ms,
                lease_ms,
                STREAM_MAX,
                self.gateway_id,
                info,
                amounts,
                groups,
            )
        )
        if not once:
            self.store.script(RESERVE, META_KEYS[bucket], argument, done)
        elif once == USE:
            argument = open_use(as_text(argument), request_id, info, tenant_id)
            self.store.script(USE_RESERVE, META_KEYS[bucket], argument, done)
        else:
            argument = claim(as_text(argument), once, request_id, tenant_id)
            self.store.script(ONCE_RESERVE, META_KEYS[bucket], argument, done)

    def settle(  # noqa: PLR0913
        self,
        *,
        bucket: int,
        request_id: str,
        res_epoch: int,
        kind: str,
        charge: dict[str, int],
        event: bytes,
        legs: bytes,
        done: Callback,
        once: str = "",
        tenant_id: str = "",
        answer: bytes | None = None,
    ) -> None:
        """End a reservation: release its hold, charge, append the stream entry. Safe to repeat.

        `once`, `tenant_id` and `answer` as `store.once.conclude` takes them.
        """
        argument = _encode(
            (
                TAGS[bucket],
                request_id,
                self.store.run_id_of(bucket),
                res_epoch,
                kind,
                charge,
                as_text(event),
                msgspec.Raw(legs),
            )
        )
        if not once:
            self.store.script(SETTLE, META_KEYS[bucket], argument, done)
        elif once == USE:
            argument = conclude_use(
                as_text(argument), request_id, as_text(answer or b""), tenant_id
            )
            self.store.script(USE_SETTLE, META_KEYS[bucket], argument, done)
        else:
            argument = conclude(
                as_text(argument),
                once,
                request_id,
                tenant_id,
                is_kept=answer is not None,
                answer=as_text(answer or b""),
            )
            self.store.script(ONCE_SETTLE, META_KEYS[bucket], argument, done)

    def lease(
        self, *, bucket: int, not_after_ms: int, items: Sequence[object], done: Callback
    ) -> None:
        """Renew holds or register them in a new epoch; without items only ask where it stands.

        An item is `lease_item(...)`.
        """
        argument = _encode(
            (
                TAGS[bucket],
                self.store.run_id_of(bucket),
                not_after_ms,
                LEASE_MS,
                self.gateway_id,
                items,
            )
        )
        self.store.script(LEASE, META_KEYS[bucket], argument, done)


def wrote_nothing(reply: object) -> bool:
    """Whether this error says that the store refused the first write of a script.

    Its disk or memory is full, it is a replica, or still loads: what was asked has no effect, now
    or later. It refuses only scripts that have not written yet.
    """
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith(_REFUSES_WRITES)


def lease_item(
    request_id: str,
    out_so_far: int,
    res_epoch: int,
    info: bytes | None,
    legs: bytes | None,
    expires_at_ms: int = 0,
) -> tuple[object, ...]:
    """One hold of a lease call; `info` and `legs` only when it may be unknown in this epoch.

    `expires_at_ms`: not a lease from now on, but until then; it is never shortened.
    """
    known = info is None or legs is None
    if expires_at_ms:
        parts = (None, None) if known else (as_text(info or b""), msgspec.Raw(legs or b""))
        return (request_id, out_so_far, res_epoch, *parts, expires_at_ms)
    if info is None or legs is None:
        return (request_id, out_so_far, res_epoch)
    return (request_id, out_so_far, res_epoch, as_text(info), msgspec.Raw(legs))

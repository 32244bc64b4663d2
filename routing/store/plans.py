"""The counters that like requests touch, prepared once while their windows last.

A plan is what the reserve and the settle script read of them; a request adds its amounts.
"""

import struct
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

import msgspec

from routing.contracts.enums import WindowKind
from routing.decision.limits import AMOUNT_ORDER, Edges, Group
from routing.decision.workflow import TaskGroup
from routing.store import keys
from routing.store.packed import GAUGE_DIMS, GAUGE_SIZE, WINDOW_DIMS, WINDOW_SIZE

WINDOW: Final = 1
GAUGE: Final = 2
FOREVER_MS: Final = 9_007_199_254_740_991  # later than any window ends, and exact as a double

Leg = tuple[int, str, int, list[str | int]]

_STR16: Final = struct.Struct(">BH").pack
_STR32: Final = struct.Struct(">BI").pack
_ARRAY16: Final = struct.Struct(">BH").pack
_encode: Final = msgspec.msgpack.Encoder().encode
_decode_legs: Final = msgspec.msgpack.Decoder(list[Leg]).decode
_PLACE: Final = {dimension: place for place, dimension in enumerate(AMOUNT_ORDER)}


def as_text(raw: bytes) -> msgspec.Raw:
    """Bytes as a msgpack *str*, to be spliced into an argument as they are."""
    size = len(raw)
    head = _STR16(0xDA, size) if size < 65_536 else _STR32(0xDB, size)
    return msgspec.Raw(head + raw)


AnyGroup = Group | TaskGroup


def suffix_of(tenant_id: str, group: AnyGroup, start_ms: int) -> str:
    """Counter key below its bucket and epoch: `w:<base>:<start>` or `g:<base>`."""
    if isinstance(group, TaskGroup):
        return f"w:{keys.task_base(tenant_id, group.subject)}:{start_ms}"
    window = keys.window_name(group.window, group.anchor_min)
    base = keys.counter_base(tenant_id, group.scope, group.subject, window)
    if group.window is WindowKind.NOW:
        return f"g:{base}"
    return f"w:{base}:{start_ms}"


class Plan:
    """The counters of some groups in an epoch of their bucket, good while `edges` are.

    `raw` is what the scripts read (reserve.lua describes it); `legs` gives what a request takes.
    From `stop_ms` on (store's clock) a request belongs to other windows, and has other legs.
    """

    __slots__ = ("_legs", "_pick", "epoch", "raw", "stop_ms")

    def __init__(
        self,
        tenant_id: str,
        groups: Sequence[AnyGroup],
        edges: Sequence[Edges],
        *,
        bucket: int,
        epoch: int,
    ) -> None:
        """`edges` as `reservations.group_edges` gives them, zeros for gauges."""
        tag = keys.bucket_tag(bucket)
        prefix = f"{tag}:{epoch}:"
        pairs = list(zip(groups, edges, strict=True))
        suffixes = [suffix_of(tenant_id, group, start) for group, (start, _, _) in pairs]
        sizes = [GAUGE_SIZE if group.is_gauge else WINDOW_SIZE for group in groups]
        shape = _shape(groups, sizes)
        counters = len(shape) // 3
        later = [
            [] if group.is_gauge else [end, suffix_of(tenant_id, group, end), next_end]
            for group, (_, end, next_end) in pairs
        ]
        self.epoch = epoch
        self.stop_ms = min((end for _, end, _ in edges if end), default=FOREVER_MS)
        self.raw = msgspec.Raw(
            _encode(
                (
                    tag,
                    epoch,
                    # A task's own start may be a little ahead of the store's clock.
                    max((e[0] for g, e in pairs if not isinstance(g, TaskGroup)), default=0),
                    self.stop_ms,
                    [prefix + suffix for suffix in suffixes],
                    sizes,
                    "<" + "d" * sum(sizes),
                    "<" + "HBd" * counters,
                    as_text(struct.pack("<" + "HBd" * counters, *shape)),
                    as_text(_encode(later)),
                )
            )
        )
        self._legs, places = _legs_format(groups, edges, suffixes)
        self._pick: Any = itemgetter(*places, places[0]) if places else None

    def legs(self, amounts: Sequence[int]) -> bytes:
        """Legs of a request that takes these amounts in the windows of `edges` (msgpack)."""
        if self._pick is None:
            return self._legs
        picked: tuple[bytes, ...] = self._pick([_encode(amount) for amount in amounts])
        return self._legs % picked[:-1]


def _shape(groups: Sequence[AnyGroup], sizes: Sequence[int]) -> list[int]:
    """Of each counter: its place among all values and in amounts (from 1), its limit."""
    at = 1
    shape: list[int] = []
    for group, size in zip(groups, sizes, strict=True):
        dims = GAUGE_DIMS if group.is_gauge else WINDOW_DIMS
        for dim, limit in group.dims:
            shape += (at + 2 * dims.index(dim), _PLACE[dim] + 1, limit)
        at += size
    return shape


def _legs_format(
    groups: Sequence[AnyGroup], edges: Sequence[Edges], suffixes: Sequence[str]
) -> tuple[bytes, list[int]]:
    """Legs with `%b` where an amount comes, and which amount comes there."""
    parts, places = [_array_head(len(groups))], []
    for group, (_, end, _), suffix in zip(groups, edges, suffixes, strict=True):
        kind = GAUGE if group.is_gauge else WINDOW
        head = _array_head(4) + _encode(kind) + _encode(suffix) + _encode(end)
        parts.append((head + _array_head(2 * len(group.dims))).replace(b"%", b"%%"))
        for dim, _ in group.dims:
            parts.append(_encode(dim.value) + b"%b")
            places.append(_PLACE[dim])
    return b"".join(parts), places


def _array_head(size: int) -> bytes:
    return bytes((0x90 | size,)) if size < 16 else _ARRAY16(0xDC, size)


def encode_legs(
    tenant_id: str, groups: Sequence[Group], edges: Sequence[Edges], amounts: Sequence[int]
) -> bytes:
    """Legs of one request, for holds that the store has not seen."""
    return Plan(tenant_id, groups, edges, bucket=0, epoch=0).legs(amounts)


def decode_legs(packed: bytes) -> list[Leg]:
    """Legs as `[kind, suffix, window_end_ms, [dimension, amount, ...]]` (a `UsageEvent`'s form).

    Raises `msgspec.MsgspecError` for anything else.
    """
    return _decode_legs(packed)

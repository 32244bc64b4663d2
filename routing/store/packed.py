"""Counters and holds as the store keeps them: strings that scripts read with few commands.

A counter key is a string of doubles (`scripts/field.lua` says why).

Whole numbers below 2^53, which doubles hold exactly. A window counts four dimensions, a gauge two;
each has a held and a used amount, the gauge's used ones are always 0. Places are in doubles.

A hold is four doubles (expiry in ms, output tokens so far, epoch, bytes of its legs), then its legs
and its description. A heartbeat writes over the first two.
"""

import struct
from typing import Final, NamedTuple

from routing.contracts.enums import Dimension
from routing.decision.limits import AMOUNT_ORDER

WINDOW_DIMS: Final = AMOUNT_ORDER[:4]
GAUGE_DIMS: Final = AMOUNT_ORDER[4:]
WINDOW_SIZE: Final = 2 * len(WINDOW_DIMS)
GAUGE_SIZE: Final = 2 * len(GAUGE_DIMS) + 1  # and its expiry
EXPIRY_FIELD: Final = "x"

_WINDOW: Final = struct.Struct(f"<{WINDOW_SIZE}d")
_GAUGE: Final = struct.Struct(f"<{GAUGE_SIZE}d")


def _fields(dims: tuple[Dimension, ...]) -> tuple[str, ...]:
    return tuple(name for dim in dims for name in (f"{dim.value}_h", dim.value))


WINDOW_FIELDS: Final = _fields(WINDOW_DIMS)
GAUGE_FIELDS: Final = (*_fields(GAUGE_DIMS), EXPIRY_FIELD)


def read_counter(raw: bytes | None) -> dict[str, int]:
    """Held (`usd_h`) and used (`usd`) amounts of a counter; none of a key that does not exist.

    Raises `struct.error` for what no script of ours has written.
    """
    if not raw:
        return {}
    if len(raw) == _GAUGE.size:
        return dict(zip(GAUGE_FIELDS, map(int, _GAUGE.unpack(raw)), strict=True))
    return dict(zip(WINDOW_FIELDS, map(int, _WINDOW.unpack(raw)), strict=True))


def write_counter(fields: dict[str, int], *, is_gauge: bool) -> bytes:
    """The key's value; what is not in `fields` is 0."""
    names, form = (GAUGE_FIELDS, _GAUGE) if is_gauge else (WINDOW_FIELDS, _WINDOW)
    return form.pack(*(fields.get(name, 0) for name in names))


class StoredHold(NamedTuple):
    """A live reservation: when its lease ends (store's clock), tokens sent so far, its epoch.

    `legs` is what `store.plans.decode_legs` reads, `info` what `contracts` calls a hold's info.
    """

    expiry_ms: int
    out_so_far: int
    epoch: int
    legs: bytes
    info: bytes


_HOLD: Final = struct.Struct("<4d")
_EXPIRY: Final = struct.Struct("<d")


def read_hold(raw: bytes) -> StoredHold:
    """A hold's value. Raises `ValueError` for what no script of ours has written."""
    try:
        expiry_ms, out_so_far, epoch, size = map(int, _HOLD.unpack_from(raw))
    except struct.error as error:
        raise ValueError("a hold is cut off") from error
    at = _HOLD.size + size
    return StoredHold(expiry_ms, out_so_far, epoch, raw[_HOLD.size : at], raw[at:])


def hold_expiry(expiry_ms: int) -> bytes:
    """The first bytes of a hold, which say when its lease ends."""
    return _EXPIRY.pack(expiry_ms)

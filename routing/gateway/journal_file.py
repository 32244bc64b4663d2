"""Format of a usage journal file: records in, records out, and where a torn file ends.

A file is the magic `HRJ1`, one header frame, then frames. A frame is u32 length, u32 CRC-32 (both
little endian, over what follows), u8 type, msgpack body; length counts type and body. Bodies:

- `H` gateway_id, incarnation, n
- `O` id, bucket, res_epoch, info, legs
- `P` id, out_so_far
- `E` id, kind, charge, event (JSON), legs
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast
from zlib import crc32

import msgspec

MAGIC: Final = b"HRJ1"
HEADER: Final = ord("H")
OPEN: Final = ord("O")
PROGRESS: Final = ord("P")
END: Final = ord("E")
MAX_FRAME_BYTES: Final = 1024 * 1024  # a longer length field is damage, not a record

_FRAME: Final = struct.Struct("<II")
_HEADS: Final = {
    kind: (bytes((kind,)), crc32(bytes((kind,)))) for kind in (HEADER, OPEN, PROGRESS, END)
}
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode


def frame(kind: int, body: Sequence[object]) -> bytes:
    """One record as it lies in the file."""
    packed = _encode(body)
    head, crc = _HEADS[kind]
    return b"%b%b%b" % (_FRAME.pack(len(packed) + 1, crc32(packed, crc)), head, packed)


def file_head(gateway_id: str, incarnation: str, number: int) -> bytes:
    """What a new file begins with."""
    return MAGIC + frame(HEADER, (gateway_id, incarnation, number))


@dataclass(slots=True)
class Contents:
    """What could be read: records, the bytes up to the last good one, and whether more followed."""

    records: list[tuple[int, list[Any]]] = field(default_factory=list)
    good_bytes: int = 0
    is_cut: bool = False


def read_file(raw: bytes) -> Contents:
    """Read until the end or the first bad length or CRC. An unreadable head gives no records."""
    contents = Contents(is_cut=True)
    if raw[:4] != MAGIC:
        return contents
    at = len(MAGIC)
    view = memoryview(raw)
    while at < len(raw):
        end = at + _FRAME.size
        if end > len(raw):
            return contents
        size, crc = _FRAME.unpack_from(raw, at)
        if not 1 <= size <= MAX_FRAME_BYTES or end + size > len(raw):
            return contents
        if crc32(view[end : end + size]) != crc:
            return contents
        try:
            body = _decode(view[end + 1 : end + size])
        except msgspec.MsgspecError:
            return contents
        if raw[end] != HEADER:
            contents.records.append((raw[end], cast("list[Any]", body)))
        at = end + size
        contents.good_bytes = at
    contents.is_cut = False
    return contents


@dataclass(slots=True)
class Unfinished:
    """All that the journal says of one id. `kind` is empty until its end record is seen."""

    request_id: str
    file_number: int
    bucket: int | None = None
    res_epoch: int = 0
    info: bytes = b""
    legs: bytes = b""
    out_so_far: int = 0
    kind: str = ""
    charge: dict[str, int] = field(default_factory=dict)
    event: bytes = b""


def gather(
    records: Iterable[tuple[int, list[Any]]], number: int, into: dict[str, Unfinished]
) -> None:
    """Fold the records of file `number` into what is known of each id."""
    for kind, body in records:
        known = into.get(body[0])
        if known is None:
            if kind == PROGRESS:
                continue  # its open record lies in a file that is gone: the id is acknowledged
            known = into[body[0]] = Unfinished(body[0], number)
        if kind == OPEN:
            _, known.bucket, known.res_epoch, known.info, known.legs = body
        elif kind == PROGRESS:
            known.out_so_far = max(known.out_so_far, body[1])
        elif kind == END:
            _, known.kind, known.charge, known.event, known.legs = body

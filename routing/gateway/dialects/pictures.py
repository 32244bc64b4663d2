"""The size of an embedded picture, from its first bytes. Nothing is decoded, nothing is fetched."""

import binascii
from typing import Final

MAX_HEAD: Final = 88_000  # base64 characters read: JPEG may carry 64 KiB before its size
MAX_SEGMENTS: Final = 64  # of a JPEG
_PNG: Final = b"\x89PNG\r\n\x1a\n"
# Start-of-frame markers; C4, C8 and CC mean other things.
_SIZED: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def size_of(url: bytes) -> tuple[int, int] | None:
    """(width, height) of a `data:` URL's PNG, GIF, JPEG or WebP; None when it cannot be told."""
    head, comma, encoded = url.partition(b",")
    if not comma or not head.endswith(b";base64"):
        return None
    encoded = encoded[:MAX_HEAD].replace(b"\\/", b"/")
    try:
        data = binascii.a2b_base64(encoded[: len(encoded) // 4 * 4])
    except binascii.Error:
        return None
    width, height = _size(data)
    return (width, height) if width and height else None


def _size(data: bytes) -> tuple[int, int]:
    if data.startswith(_PNG) and data[12:16] == b"IHDR":
        return _number(data[16:20]), _number(data[20:24])
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return _little(data[6:8]), _little(data[8:10])
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _webp(data)
    if data[:2] == b"\xff\xd8":
        return _jpeg(data)
    return 0, 0


def _webp(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X" and len(data) >= 30:
        return 1 + _little(data[24:27]), 1 + _little(data[27:30])
    if kind == b"VP8L" and len(data) >= 25:
        bits = _little(data[21:25])
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        return _little(data[26:28]) & 0x3FFF, _little(data[28:30]) & 0x3FFF
    return 0, 0


def _jpeg(data: bytes) -> tuple[int, int]:
    at = 2
    for _ in range(MAX_SEGMENTS):
        if data[at : at + 1] != b"\xff" or at + 9 > len(data):
            return 0, 0
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
            continue
        if marker in _SIZED:
            return _number(data[at + 7 : at + 9]), _number(data[at + 5 : at + 7])
        at += 2 + _number(data[at + 2 : at + 4])
    return 0, 0


def _number(raw: bytes) -> int:
    return int.from_bytes(raw, "big")


def _little(raw: bytes) -> int:
    return int.from_bytes(raw, "little")

"""Request bodies that came compressed: gzip within bounds, anything else refused."""

import zlib
from typing import Final

from routing.decision.types import Reason, Refusal

_IDENTITY: Final = b"identity"
_GZIP: Final = frozenset((b"gzip", b"x-gzip"))
_GZIP_WINDOW: Final = 31  # zlib's way to say: a gzip head, and its sum at the end
# JSON of words packs to a tenth. What packs better than this is no prompt, and unpacking it on
# would cost the loop more than its sender.
MOST_RATIO: Final = 100
_FREE_BYTES: Final = 1 << 20  # unpacked in a millisecond, whatever its ratio

_UNKNOWN: Final = Refusal(
    Reason.UNSUPPORTED_ENCODING, "Bodies may be sent as they are (identity), or as gzip."
)
_BROKEN: Final = Refusal(Reason.INVALID_REQUEST, "The body is not the gzip that it says it is.")
_TOO_LARGE: Final = Refusal(Reason.REQUEST_TOO_LARGE, "The body is too large once unpacked.")


def plain_body(body: bytes, encoding: bytes, max_bytes: int) -> bytes | Refusal:
    """The body as its caller meant it, or why not: nothing is unpacked beyond `max_bytes`."""
    name = encoding.strip().lower()
    if name in (b"", _IDENTITY):
        return body
    if name not in _GZIP:
        return _UNKNOWN
    most = min(max_bytes, max(len(body) * MOST_RATIO, _FREE_BYTES))
    unpacker = zlib.decompressobj(_GZIP_WINDOW)
    try:
        found = unpacker.decompress(body, most + 1)
    except zlib.error:
        return _BROKEN
    if len(found) > most:
        return _TOO_LARGE
    return found if unpacker.eof and not unpacker.unused_data else _BROKEN

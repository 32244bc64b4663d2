"""JSON that engines read in different ways is refused before it is forwarded."""

import re

import msgspec

MAX_DEPTH = 128  # levels of arrays and objects; a tool schema has about ten
FULL_CHECK_BYTES = 32 * 1024  # up to here a whole decode costs a few microseconds
_NOT_STRUCTURE = bytes(set(range(256)) - set(b'"[]{}'))
# Two and three bytes: `re` finds them in a third to two thirds of the time of `in`.
UNICODE_ESCAPE = re.compile(rb"\\u")
ASCII_ESCAPE = re.compile(rb"\\u00")  # of a sign that needs none: a name may hide behind it
_TWO_BACKSLASHES = re.compile(rb"\\\\")
_decode = msgspec.json.Decoder().decode


class BadBodyError(Exception):
    """The body is refused; `param` names the field at fault, when one is."""

    def __init__(self, message: str, param: str = "") -> None:
        super().__init__(message)
        self.param = param


def check_json(body: bytes) -> None:
    """Refuse invalid UTF-8, numbers out of range and deep nesting. Raises `BadBodyError`.

    `body` has passed a skipping decode, which already refused NaN, half surrogate pairs and broken
    structure. Larger bodies are only checked for UTF-8 and for nesting above the decoder's own
    limit of about a thousand: their bulk is message text.
    """
    if len(body) > FULL_CHECK_BYTES:
        _check_utf8(body)
        return
    try:
        _decode(body)
    except RecursionError:
        raise BadBodyError("The JSON is nested too deeply.") from None
    except msgspec.MsgspecError:
        raise BadBodyError("The body is not valid JSON.") from None
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH and is_deeper(body, MAX_DEPTH):
        raise BadBodyError("The JSON is nested too deeply.")


def _check_utf8(body: bytes) -> None:
    try:
        if not body.isascii():
            body.decode()
    except UnicodeDecodeError:
        raise BadBodyError("The body is not valid UTF-8.") from None


def is_deeper(body: bytes, limit: int) -> bool:
    """Whether valid JSON nests deeper than `limit`: strings out, then pair by pair."""
    plain = _TWO_BACKSLASHES.sub(b"", body).replace(b'\\"', b"")
    bare = plain.translate(None, _NOT_STRUCTURE)
    brackets = b"".join(bare.split(b'"')[::2])
    for _ in range(limit):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
    return bool(brackets)

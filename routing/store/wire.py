"""Commands as the server reads them."""

from typing import Any, cast

import hiredis


def wire_key(key: str) -> bytes:
    """A key as `StoreConnection.script` wants it; make it once per key."""
    raw = key.encode()
    return b"$%d\r\n%b\r\n" % (len(raw), raw)


def packed(args: tuple[bytes | str | int | float, ...]) -> bytes:
    """A command as the server reads it."""
    raw: bytes = hiredis.pack_command(cast("Any", args))  # its stub says a tuple of one
    return raw


def script_call(head: bytes, key: bytes, argument: bytes) -> bytes:
    """A script's call: `head` is a `Script`'s, `key` of `wire_key`."""
    return b"%b%b$%d\r\n%b\r\n" % (head, key, len(argument), argument)


def info_field(info: bytes, name: bytes) -> bytes:
    """A value of an INFO answer; `name` ends with a colon. Raises `ValueError` without it."""
    start = info.index(name) + len(name)
    return info[start : info.index(b"\r\n", start)]

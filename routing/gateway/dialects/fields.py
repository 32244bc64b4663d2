"""Readers of single members of a body; a wrong one raises `BadBodyError` with its name."""

import re
from typing import NoReturn

import msgspec

from routing.gateway.dialects.operation import Fields
from routing.gateway.dialects.strict import BadBodyError

MAX_CHOICES_STATED = 1_000  # sanity bound on `n`; the policy's own bound comes later
MAX_MODEL_BYTES = 256
_INT_DIGITS = 15
_INT = re.compile(rb"-?[0-9]{1,%d}\Z" % _INT_DIGITS)

decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
decode_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
decode_text = msgspec.json.Decoder(str).decode


class _Object(msgspec.Struct):
    """Any object: what is in it is skipped, not built."""


_objects = msgspec.json.Decoder(list[_Object]).decode


def bad(message: str, param: str) -> NoReturn:
    """Refuse the body for its field `param`: raises `BadBodyError`."""
    raise BadBodyError(message, param)


def read_model(fields: Fields) -> str:
    """The name of the model that is asked for."""
    raw = fields.get("model", b"")
    if not raw.startswith(b'"') or len(raw) <= 2:
        bad("The field 'model' must be a non-empty string.", "model")
    if len(raw) > MAX_MODEL_BYTES:
        bad("The field 'model' is too long.", "model")
    return decode_text(raw)


def read_bool(fields: Fields, name: str) -> bool:
    """A switch; absent or null is off."""
    if name not in fields:
        return False
    raw = fields[name]
    if raw not in (b"true", b"false", b"null"):
        bad(f"The field {name!r} must be true or false.", name)
    return raw == b"true"


def read_word(fields: Fields, name: str) -> str:
    """A string; absent or null is empty."""
    if name not in fields or (raw := fields[name]) == b"null":
        return ""
    if not raw.startswith(b'"'):
        bad(f"The field {name!r} must be a string.", name)
    return decode_text(raw)


def read_int(fields: Fields, name: str, least: int) -> int | None:
    """A whole number of at least `least`; absent or null is None."""
    if name not in fields or (raw := fields[name]) == b"null":
        return None
    if _INT.match(raw) is None or (value := int(raw)) < least:
        if raw.isdigit() and len(raw) > _INT_DIGITS:
            bad(f"The field {name!r} is too large.", name)
        bad(f"The field {name!r} must be a whole number of at least {least}.", name)
    if name in ("n", "best_of") and value > MAX_CHOICES_STATED:
        bad(f"The field {name!r} is too large.", name)
    return value


def read_options(fields: Fields) -> dict[str, msgspec.Raw] | None:
    """`stream_options`, if there are."""
    if "stream_options" not in fields or (raw := fields["stream_options"]) == b"null":
        return None
    if not raw.startswith(b"{"):
        bad("The field 'stream_options' must be an object.", "stream_options")
    return decode_members(raw)


def read_items(fields: Fields, name: str, most: int) -> list[msgspec.Raw]:
    """The 1 to `most` items of an array."""
    raw = fields.get(name, b"")
    if not raw.startswith(b"["):
        bad(f"The field {name!r} must be an array.", name)
    items = decode_items(raw)
    if not items or len(items) > most:
        bad(f"The field {name!r} must hold 1 to {most} items.", name)
    return items


def check_objects(fields: Fields, name: str, most: int) -> None:
    """Refuse what is not an array of 1 to `most` objects."""
    try:
        if 0 < len(_objects(fields.get(name, b""))) <= most:
            return
    except msgspec.MsgspecError:
        pass
    read_items(fields, name, most)
    bad(f"Each of the {name!r} must be an object.", name)

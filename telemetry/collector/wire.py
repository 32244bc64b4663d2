"""Replies of the store as bytes: the client's types also allow text, which we never ask for."""

# What the client takes as names and values of a hash.
Field = bytes | bytearray | memoryview | str | int | float


def as_bytes(value: bytes | str) -> bytes:
    """The reply's bytes."""
    return value.encode() if isinstance(value, str) else value


def optional_bytes(value: bytes | str | None) -> bytes | None:
    """The reply's bytes, None for an absent key or field."""
    return None if value is None else as_bytes(value)

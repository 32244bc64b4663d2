"""Arguments of the scripts that hold and end one use of a named resource.

They are the reserve and the settle script with the use's record around them, in one round trip.
The record outlives the hold, so that any gateway can say how a use ended, or end it late.
"""

from typing import Final

import msgspec

from routing.store.keys import bucket_tag

USE: Final = "use"  # in the place of an idempotency key (64 hex digits): this hold is a use
OPEN_KEEP_MS: Final = 7_200_000  # from the reservation: the longest use, and an hour for a late end
ENDED_KEEP_MS: Final = 3_600_000  # from its end: far longer than any client repeats a settle

USES_MAX: Final = 50_000  # records a tenant may have: about 40 MB
TOO_MANY: Final = b"USES"  # the script's word for it

# Fields of the record: what ends it late, until it has ended; then the answer that its end got.
INFO: Final = "i"
LEGS: Final = "l"
EPOCH: Final = "e"
ANSWER: Final = "a"

_encode: Final = msgspec.msgpack.Encoder().encode


def use_record(bucket: int, use_id: str) -> str:
    """Key of a use's record."""
    return f"{bucket_tag(bucket)}:use:{use_id}"


def open_use(inner: msgspec.Raw, use_id: str, info: msgspec.Raw, tenant_id: str) -> bytes:
    """Argument of `use_reserve`; `inner` is that of the reserve script as msgpack text."""
    return _encode((inner, use_id, info, OPEN_KEEP_MS, tenant_id, USES_MAX))


def conclude_use(inner: msgspec.Raw, use_id: str, answer: msgspec.Raw, tenant_id: str) -> bytes:
    """Argument of `use_settle`; an empty `answer` (nobody settled it) leaves it to a late end."""
    return _encode((inner, use_id, answer, ENDED_KEEP_MS, tenant_id))

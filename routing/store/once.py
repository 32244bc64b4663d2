"""Arguments and replies of the scripts that hold one call to one idempotency key.

They are the reserve and the settle script with the key's record around them: still one round trip,
and calls without a key never run them. Bounds of what is remembered are here.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

KEEP_MS: Final = 3_600_000  # an hour: far longer than any client goes on trying by itself
KEYS_MAX: Final = 100_000  # of one tenant at a time: 28 calls a second, about 40 MB
ANSWER_MAX_BYTES: Final = 256 * 1024  # sealed; compressed, that is about 10,000 streamed tokens
TENANT_MAX_BYTES: Final = 8 * 1024 * 1024  # of one tenant's answers
BUCKET_MAX_BYTES: Final = 32 * 1024 * 1024  # of one bucket's; 256 buckets: 8 GB if all were full
_HEX: Final = 32

KEPT: Final = b"KEPT"  # answered before: id of the call, sealed answer
SPENT: Final = b"SPENT"  # charged before, its answer is not kept
BUSY: Final = b"BUSY"  # that call still runs
OTHER: Final = b"OTHER"  # the key was used for another body
MANY: Final = b"MANY"  # the tenant's keys are at their bound
NEW: Final = b"NEW"  # not used before, and only known calls were asked for: nothing is held
VERDICTS: Final = frozenset((KEPT, SPENT, BUSY, OTHER, MANY))
KEPT_ID: Final = 3
KEPT_ANSWER: Final = 4

_encode: Final = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Once:
    """A tenant's idempotency key and body, as the store knows them: keyed digests in hex.

    `name` stands for tenant, API key and header, `print_` for the body. One text, so that holds and
    their descriptions can carry it.
    """

    name: str
    print_: str

    @property
    def text(self) -> str:
        """Both in one."""
        return self.name + self.print_


def read_once(text: str) -> Once:
    """What `Once.text` gave."""
    return Once(text[:_HEX], text[_HEX:])


def claim(
    inner: msgspec.Raw, once: str, request_id: str, tenant_id: str, *, only_known: bool
) -> bytes:
    """Argument of `once_reserve`; `inner` is that of the reserve script as msgpack text.

    `only_known`: a call that is new holds nothing and is answered `NEW`.
    """
    key = read_once(once)
    head = (inner, key.name, key.print_, request_id, tenant_id, KEEP_MS, KEYS_MAX)
    return _encode((*head, int(only_known)))


def conclude(
    inner: msgspec.Raw,
    once: str,
    request_id: str,
    tenant_id: str,
    *,
    is_kept: bool,
    answer: msgspec.Raw,
) -> bytes:
    """Argument of `once_settle`; `inner` is that of the settle script, both texts in msgpack.

    Not kept: the key is free again. Kept without an answer: it is spent.
    """
    key = read_once(once)
    return _encode(
        (
            inner,
            key.name,
            key.print_,
            request_id,
            tenant_id,
            KEEP_MS,
            int(is_kept),
            answer,
            TENANT_MAX_BYTES,
            BUCKET_MAX_BYTES,
        )
    )

"""What temporarily stands above the published policy: a cap, a pause or a shed share with an end.

A playbook or a person sets them, the console writes the whole set into the store, and gateways obey
it between two requests. Every one names its end, which gateways keep by the store's clock, so that
it ends by itself when nobody is left to lift it.
"""

import hashlib
from enum import StrEnum

import msgspec

from routing.contracts.enums import WorkClass

MAX_IN_FORCE = 500  # gateways look at each of them for each request
MAX_HOLD_S = 24 * 3600  # no override outlives a day without a person looking at it again


class OverrideKind(StrEnum):
    """What it does to the requests in its scope.

    `pause` refuses all of them, `shed` all but `admitted_ratio`; `output_cap` lowers what they may
    answer to `amount` tokens; `context_cap` refuses prompts of more than `amount` tokens;
    `concurrency_cap` bounds how many of a tenant's run at once.
    """

    PAUSE = "pause"
    SHED = "shed"
    OUTPUT_CAP = "output_cap"
    CONTEXT_CAP = "context_cap"
    CONCURRENCY_CAP = "concurrency_cap"


# Of a class (and perhaps one model), or of a tenant.
CLASS_KINDS = frozenset({OverrideKind.PAUSE, OverrideKind.SHED, OverrideKind.OUTPUT_CAP})
TENANT_KINDS = frozenset({OverrideKind.CONTEXT_CAP, OverrideKind.CONCURRENCY_CAP})


class Override(msgspec.Struct, frozen=True, omit_defaults=True):
    """One override in force until `ends_at_ms` (Unix milliseconds, store's clock).

    The scope is every field that is not empty: `tenant_id`, `work_class`, `model`. `reason` is told
    to the callers that it touches, so it names no pool and no other tenant.
    """

    id: int
    kind: OverrideKind
    ends_at_ms: int
    reason: str
    tenant_id: str = ""
    work_class: WorkClass | None = None
    model: str = ""
    amount: int = 0
    admitted_ratio: float = 0.0


_encode = msgspec.msgpack.Encoder(order="deterministic").encode
decode_overrides = msgspec.msgpack.Decoder(tuple[Override, ...]).decode


def encode_overrides(items: tuple[Override, ...]) -> tuple[bytes, str]:
    """Bytes for the store and the version that names this content: equal content, equal version."""
    raw = _encode(tuple(sorted(items, key=lambda one: one.id)))
    return raw, hashlib.sha256(raw).hexdigest()[:16]

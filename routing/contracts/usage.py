"""What a request leaves behind:

the usage event (money) and the shape row (rehearsal). No text in either.
"""

import msgspec

from routing.contracts.enums import Dimension, RequestStatus, SettleKind, UsageSource, WorkClass
from routing.contracts.snapshot import Price

MAX_PREFIX_HASHES = 64

# An enum's `.value` is a function call; these are looked up once a request.
_VOID = SettleKind.VOID
_REQUESTS = Dimension.REQUESTS.value
_INPUT_TOKENS = Dimension.INPUT_TOKENS.value
_OUTPUT_TOKENS = Dimension.OUTPUT_TOKENS.value
_SPEND_NANOUSD = Dimension.SPEND_NANOUSD.value

# `error_code` (routing.decision.types.Reason) of a request that itself is at fault: no other
# upstream would have taken it, its answer was not to be given, or its task's time is over.
_OF_POLICY = ("hook_refused", "task_time_exceeded")
_OF_CALLER = ("invalid_request", "request_too_large", *_OF_POLICY)


class UsageEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One ended reservation, as the ledger stores it.

    `request_id` is a UUIDv7 and the ledger key; instants are Unix milliseconds; `held_*` is what
    was reserved, the rest what was charged. `legs` are the counter legs of the reservation
    (accounting protocol): `[kind, suffix, window_end_ms, [dimension, amount, ...]]` each, so that
    the ledger knows into which windows the charge falls. `units` is above 0 for a use of a named
    resource, whose `model` is `resource:<name>`. `task_outcome` is a `TaskOutcome` or
    empty, `task_score` a ratio (0..1): what the caller says of the task that the request ends.
    `operation` is what was called (`chat`, `embeddings`, ...), empty for a named resource.
    `hops_us` are microseconds by what took them: `hook.<name>.<point>.<verdict>`.
    """

    request_id: str
    tenant_id: str
    key_id: str
    project_id: str
    model_asked: str
    model: str
    status: RequestStatus
    usage_source: UsageSource
    work_class: WorkClass
    policy: str
    price_version: int
    gateway_id: str
    started_at_ms: int
    ended_at_ms: int
    pool: str = ""
    replica: str = ""
    region: str = ""
    first_token_at_ms: int | None = None
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0
    images: int = 0
    units: int = 0
    spend_nanousd: int = 0
    held_input_tokens: int = 0
    held_output_tokens: int = 0
    held_nanousd: int = 0
    attempts: int = 0
    http_status: int = 0
    error_code: str = ""
    is_suspicious: bool = False
    is_stream: bool = False
    upstream_request_id: str = ""
    task_id: str = ""
    task_kind: str = ""
    step: str = ""
    session: str = ""
    parent_id: str = ""
    task_outcome: str = ""
    task_score: float | None = None
    operation: str = ""
    hops_us: dict[str, int] = {}
    legs: list[list[object]] = []

    @property
    def is_above_hold(self) -> bool:
        """More was used than was reserved: charged all the same, and a fault of the estimate."""
        return (
            self.input_tokens > self.held_input_tokens
            or self.output_tokens > self.held_output_tokens
            or self.spend_nanousd > self.held_nanousd
        )

    @property
    def is_refused(self) -> bool:
        """The request itself is at fault, or at a bound of its own: a refusal, nobody's failure."""
        return self.status is RequestStatus.FAILED and self.error_code in _OF_CALLER

    @property
    def has_failed(self) -> bool:
        """We failed the caller; an answer cut short as much as one that never began.

        One that the policy has cut, by a hook or a cap on its task, is as the operator wants it.
        """
        return (
            self.status in (RequestStatus.FAILED, RequestStatus.INCOMPLETE)
            and not self.is_refused
            and self.error_code not in _OF_POLICY
        )


class ShapeRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """The text-free shape of one request, refused ones included. Kept seven days by default.

    `outcome` is a `RequestStatus` or `refused:<code>`; `prefix_hashes` is the tenant-salted chain
    of 64-bit prefix hashes (signed, at most `MAX_PREFIX_HASHES`). A refusal, also one after a
    reservation, fills `key_id` and `refused_*`: its code, HTTP status, limit and scope, and when
    the caller was told to come back (None: waiting does not help).
    """

    request_id: str
    tenant_id: str
    model: str
    work_class: str
    arrived_at_ms: int
    outcome: str
    ended_at_ms: int
    first_token_at_ms: int | None = None
    cancelled_at_ms: int | None = None
    max_tokens: int | None = None
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    session: str = ""
    task_id: str = ""
    task_kind: str = ""
    step: str = ""
    resend_count: int = 0
    pool: str = ""
    replica: str = ""
    prefix_hashes: list[int] = []
    key_id: str = ""
    refused_code: str = ""
    refused_status: int = 0
    refused_limit: str = ""
    refused_scope: str = ""
    retry_after_ms: int | None = None


class HoldInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of a request when it is reserved; travels with its hold and open record.

    Whoever ends it for a lost gateway needs nothing else: `event` has the names, `started_at_ms`
    and `held_*` filled in and charges nothing yet; `price` is the row in force; `itl_s` the
    expected seconds between tokens, 0 when unknown; `once` its idempotency key as digests;
    `ttl_ms` how long a use of a resource may take, 0 for a model call.
    """

    event: UsageEvent
    price: Price
    itl_s: float = 0.0
    once: str = ""
    ttl_ms: int = 0


def charge_of(kind: SettleKind, event: UsageEvent) -> dict[str, int]:
    """What an ended reservation adds to each counted dimension of its windows; a void adds nothing.

    The one rule for the caller of `settle` and for the ledger: were they to differ, counters and
    rows would part ways.
    """
    if kind is _VOID:
        return {}
    return {
        _REQUESTS: 1,
        _INPUT_TOKENS: event.input_tokens,
        _OUTPUT_TOKENS: event.output_tokens,
        _SPEND_NANOUSD: event.spend_nanousd,
    }


encode_usage = msgspec.json.Encoder().encode
decode_usage = msgspec.json.Decoder(UsageEvent).decode
encode_hold_info = msgspec.msgpack.Encoder().encode
decode_hold_info = msgspec.msgpack.Decoder(HoldInfo).decode
encode_shapes = msgspec.msgpack.Encoder().encode
decode_shapes = msgspec.msgpack.Decoder(list[ShapeRow]).decode

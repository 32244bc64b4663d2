"""Values of the decision core that more than one step uses."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from routing.contracts.capacity import CapacityScope, SharedScope
from routing.contracts.enums import (
    Dimension,
    LimitScope,
    StoreMode,
    TaskScope,
    WindowKind,
    WorkClass,
)

if TYPE_CHECKING:
    from routing.decision.workflow import TaskStory


class Reason(StrEnum):
    """Machine codes of refusals and failures, as clients see them in `error.code`."""

    INVALID_REQUEST = "invalid_request"
    UNAUTHORIZED = "unauthorized"
    UNSUPPORTED_CAPABILITY = "unsupported_capability"
    MODEL_NOT_ALLOWED = "model_not_allowed"
    CLASS_NOT_ALLOWED = "class_not_allowed"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    REQUEST_TOO_LARGE = "request_too_large"
    UNSUPPORTED_ENCODING = "unsupported_encoding"
    IDEMPOTENCY_BUSY = "idempotency_in_progress"
    IDEMPOTENCY_MISMATCH = "idempotency_mismatch"
    IDEMPOTENCY_SPENT = "idempotency_not_kept"
    BUDGET_EXCEEDED = "budget_exceeded"
    RATE_LIMITED = "rate_limited"
    CONCURRENCY_LIMITED = "concurrency_limited"
    UPSTREAM_RATE_LIMITED = "upstream_rate_limited"
    UPSTREAM_ERROR = "upstream_error"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    TASK_STEPS = "task_steps_exceeded"
    TASK_SPEND = "task_spend_exceeded"
    TASK_WALL = "task_time_exceeded"
    TASK_REPEATS = "task_loop"
    CONTEXT_CAPPED = "context_capped"
    CLASS_PAUSED = "class_paused"
    SHED = "shed"
    HOOK_REFUSED = "hook_refused"
    HOOK_FAILED = "hook_failed"
    NO_CAPACITY = "no_capacity"
    MODEL_UNAVAILABLE = "model_unavailable"
    SHUTTING_DOWN = "shutting_down"


TASK_REASONS = (Reason.TASK_STEPS, Reason.TASK_SPEND, Reason.TASK_WALL, Reason.TASK_REPEATS)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not served, and what the caller may do about it.

    `retry_after_s` is None when waiting does not help, or nobody knows for how long; `scope` and
    `limit` name the bound that refused (`limit` such as `spend_per_day`); `param` names the
    offending request field; `standing` says what is left where the caller's limits were looked at;
    `story` tells of a task that a cap stopped.
    """

    reason: Reason
    message: str
    retry_after_s: float | None = None
    scope: LimitScope | TaskScope | CapacityScope | SharedScope | None = None
    limit: str = ""
    param: str = ""
    standing: "Standing | None" = None
    story: "TaskStory | None" = None


class Amounts(msgspec.Struct, frozen=True, gc=False):
    """What a request asks of its limits: upper bounds, whole units, money in nano-dollars."""

    input_tokens: int
    output_tokens: int
    spend_nanousd: int
    kv_tokens: int


class Rate(NamedTuple):
    """A limit that callers are told of; `place` is that of its counter in `Hold.left`."""

    place: int
    scope: LimitScope
    dimension: Dimension
    window: WindowKind
    amount: int
    anchor_min: int = 0


class Rates(NamedTuple):
    """The limits on a kind of request: all of them, those on requests, those on tokens."""

    limits: tuple[Rate, ...] = ()
    requests: tuple[Rate, ...] = ()
    tokens: tuple[Rate, ...] = ()


NO_RATES = Rates()


class Standing(NamedTuple):
    """What is left of each counter that a refused request would have taken from."""

    rates: Rates
    left: Sequence[int]


class TaskEnd(NamedTuple):
    """The first time to end of a call's task and those above it: whose, since when, how long.

    `start_ms` is Unix milliseconds of the store's clock; `parents` are the names above, upwards.
    """

    scope: TaskScope
    task: str
    start_ms: int
    wall_s: int
    parents: tuple[str, ...] = ()

    @property
    def at_ms(self) -> int:
        """When its time ends, in Unix milliseconds of the store."""
        return self.start_ms + self.wall_s * 1000


@dataclass(slots=True)
class Hold:
    """A live reservation in its gateway: mutable, one a request.

    `legs` are the counter legs as the store's scripts know them (msgpack bytes), `epoch` the store
    epoch of its last registration (0: admitted degraded). `out_so_far` is kept current by the relay
    and travels with each heartbeat. `rates` are its limits and `left` what was left of each counter
    when it was made, for rate headers. `has_gauge_limit`: others may wait for its concurrency.
    `once` names its idempotency key (`store.once.Once.text`), empty without one. `expires_at_ms` is
    above 0 for a use of a resource: no gateway runs it, so its hold lasts until then. `task` is
    the capped task that it is step `task_step` of, `task_end` when that ends.
    """

    request_id: str
    tenant_id: str
    bucket: int
    epoch: int
    legs: bytes
    mode: StoreMode
    reserved_at_ms: int
    work_class: WorkClass
    amounts: Amounts
    out_so_far: int = 0
    is_ended: bool = False
    has_gauge_limit: bool = False
    rates: Rates = NO_RATES
    left: Sequence[int] = ()
    once: str = ""
    expires_at_ms: int = 0
    task: str = ""
    task_step: int = 0
    task_end: TaskEnd | None = None

    @property
    def remaining(self) -> dict[tuple[LimitScope, Dimension, str], int]:
        """What is left of each limit, by (scope, dimension, window value)."""
        return {
            (rate.scope, rate.dimension, rate.window.value): self.left[rate.place]
            for rate in self.rates.limits
        }

"""One client request on its way through the gateway: its whole state, in one place."""

import random
from enum import IntEnum
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from routing.contracts.enums import WorkClass
from routing.contracts.ids import uuid7
from routing.contracts.snapshot import (
    ClassPolicy,
    KeyEntry,
    ModelEntry,
    Price,
    Snapshot,
    TenantEntry,
)
from routing.contracts.usage import UsageEvent
from routing.decision.estimate import Estimate
from routing.decision.types import Hold, Refusal
from routing.decision.workflow import TaskAsk
from routing.gateway.credit_books import Taken
from routing.gateway.dialects.body import Call
from routing.gateway.dialects.continuing import WHOLE, Sent
from routing.gateway.dialects.openai import CHAT
from routing.gateway.dialects.operation import Operation
from routing.gateway.http1 import Request
from routing.gateway.names import STREAM_COST
from routing.gateway.once import Recording
from routing.gateway.trace import Trace

if TYPE_CHECKING:
    from routing.gateway.hooks.stream import Watch

_RANDOM_BITS: Final = 74


def new_request_id(now_ms: int) -> str:
    """A request's id. Not a secret: ids need to differ, and to be made in a microsecond."""
    return uuid7(now_ms, random.getrandbits(_RANDOM_BITS))


class Step(IntEnum):
    """How far a request has come."""

    READ = 0
    RESERVING = 1
    SENDING = 2
    RELAYING = 3
    ENDED = 4


class Stand(NamedTuple):
    """A model that may serve a request; `when` says after what, empty for the one asked for."""

    model: ModelEntry
    price: Price
    choice_output_tokens: int
    when: tuple[str, ...] = ()


class Client(Protocol):
    """The caller's connection, as the walk needs it."""

    def write(self, data: bytes) -> None:
        """Send bytes of a response that goes on."""

    def finish(self, data: bytes, *, keep_alive: bool) -> None:
        """Send the last bytes; then the next request, or close."""

    def abort(self) -> None:
        """Drop the connection at once."""


class Attempt(Protocol):
    """A try on one endpoint, as the exchange sees it."""

    def cancel(self) -> None:
        """Give up: close the upstream's connection at once."""

    def check(self, now_s: float) -> None:
        """Act on a deadline that has passed."""

    def pause(self) -> None:
        """The client reads too slowly: stop reading the upstream."""

    def resume(self) -> None:
        """The client has caught up."""


class Exchange:
    """State of one request. `*_s` are monotonic seconds, `*_ms` Unix milliseconds."""

    __slots__ = (
        "arrived_ms",
        "arrived_s",
        "asked",
        "attempt",
        "attempts",
        "call",
        "class_name",
        "client",
        "credits",
        "deadlines",
        "degraded",
        "estimate",
        "first_token_s",
        "has_call",
        "hold",
        "hops_us",
        "input_tokens",
        "is_gone",
        "is_judged",
        "key",
        "model",
        "model_name",
        "once",
        "operation",
        "pool",
        "prefix_hashes",
        "price",
        "recording",
        "refusal",
        "region",
        "replica",
        "request",
        "request_id",
        "rest",
        "sent",
        "sent_as",
        "skeleton",
        "snapshot",
        "stand",
        "stands",
        "step",
        "task",
        "task_ends_s",
        "tenant",
        "trace",
        "tried",
        "upstream_id",
        "was_lost",
        "watch",
        "work_class",
    )

    tenant: TenantEntry
    key: KeyEntry
    call: Call
    model: ModelEntry
    work_class: WorkClass
    deadlines: ClassPolicy
    price: Price
    estimate: Estimate
    skeleton: UsageEvent

    def __init__(
        self,
        client: Client,
        request: Request,
        snapshot: Snapshot,
        request_id: str,
        now: tuple[float, int],
    ) -> None:
        """`now` is (monotonic seconds, Unix milliseconds) of acceptance."""
        self.client = client
        self.request = request
        self.snapshot = snapshot
        self.request_id = request_id
        self.arrived_s, self.arrived_ms = now
        self.step = Step.READ
        self.is_gone = False
        self.has_call = False
        self.is_judged = False  # hooks look at it, or at its whole answer
        self.was_lost = False  # an upstream took it and gave nothing
        self.operation: Operation = CHAT
        self.hold: Hold | None = None
        self.attempt: Attempt | None = None
        self.attempts = 0
        self.tried: tuple[str, ...] = ()
        self.pool = self.replica = self.region = self.upstream_id = ""
        self.first_token_s = 0.0
        self.model_name = ""  # these three stay empty when the request is refused before
        self.class_name = ""
        self.input_tokens = 0
        self.degraded = b""  # what overload took from it, as its header says it
        self.once = ""  # its idempotency key
        self.recording: Recording | None = None
        self.credits: tuple[Taken, ...] = ()
        self.refusal: Refusal | None = None
        self.prefix_hashes: list[int] | None = None
        self.trace: Trace | None = None  # where spans are exported
        self.rest = WHOLE  # what its body asks for beside the caller's own
        self.sent: Sent | None = None  # of a stream that may go on elsewhere
        self.watch: Watch | None = None  # of a stream that hooks look at
        self.hops_us: dict[str, int] | None = None  # what hooks said, and took
        self.asked: Stand | None = None  # the model asked for, where others may stand in for it
        self.task: TaskAsk | None = None  # the capped task that it is a step of
        self.task_ends_s = inf  # when that ends, or one above it
        self.stands: tuple[Stand, ...] = ()  # those that were not tried yet
        self.stand: Stand | None = None  # who serves in its place now
        self.sent_as: Stand | None = None  # who did at the last try

    @property
    def carried_tokens(self) -> int:
        """Output tokens of streams that were lost before the present one."""
        return self.sent.tokens if self.sent is not None else 0

    @property
    def wants_cost(self) -> bool:
        """Whether a stream shall tell its cost before its end."""
        return self.request.headers.get(STREAM_COST, b"").lower() == b"true"

    def millis(self, at_s: float) -> int:
        """Unix milliseconds of a monotonic instant of this request."""
        return self.arrived_ms + int((at_s - self.arrived_s) * 1000)

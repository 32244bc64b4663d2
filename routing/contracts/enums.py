"""Closed sets that every process shares."""

from enum import StrEnum


class WorkClass(StrEnum):
    """Work classes in rank order, highest first."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"


class Dimension(StrEnum):
    """What a limit counts. The value is the field name inside the store's counters."""

    REQUESTS = "req"
    INPUT_TOKENS = "in"
    OUTPUT_TOKENS = "out"
    SPEND_NANOUSD = "usd"
    CONCURRENCY = "conc"
    KV_TOKENS = "kv"


class WindowKind(StrEnum):
    """Over what a limit counts. `NOW` marks the gauges (concurrency, KV)."""

    MINUTE = "m"
    DAY = "d"
    WEEK = "w"
    MONTH = "mo"
    NOW = "g"


class LimitScope(StrEnum):
    """Whose limit it is."""

    TENANT = "tenant"
    KEY = "key"
    TENANT_MODEL = "tenant_model"
    TENANT_CLASS = "tenant_class"
    RESOURCE = "resource"


class TaskScope(StrEnum):
    """Whose task is capped: the call's own, or the one that started it."""

    TASK = "task"
    PARENT = "parent_task"


class RequestStatus(StrEnum):
    """How a request that reached reservation ended."""

    OK = "ok"
    FAILED = "failed"
    INCOMPLETE = "incomplete"
    CANCELLED = "cancelled"


class TaskOutcome(StrEnum):
    """How a caller says that its task ended; empty text where it said nothing yet."""

    SUCCESS = "success"
    FAILURE = "failure"


class UsageSource(StrEnum):
    """Where a row's token counts come from. Never blank."""

    REPORTED = "reported"
    COUNTED = "counted"
    ESTIMATED = "estimated"


class SettleKind(StrEnum):
    """How a reservation ended (accounting protocol, `t` of a stream entry)."""

    SETTLED = "s"
    VOID = "v"
    SWEPT = "w"
    RECOVERED = "r"


class ReplicaLifecycle(StrEnum):
    """Set by pool drivers."""

    COLD = "cold"
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class ReplicaHealth(StrEnum):
    """Seen by us:

    `hung` answers health but not completions, `stale` has old metrics, `lost` is gone.
    """

    OK = "ok"
    HUNG = "hung"
    STALE = "stale"
    LOST = "lost"


class StoreMode(StrEnum):
    """How a gateway admits: against the store, from local shares, or not at all."""

    SHARED = "shared"
    DEGRADED = "degraded"
    CLOSED = "closed"


class FallbackWhen(StrEnum):
    """What must have become of a request before another model may answer it."""

    NO_CAPACITY = "no_capacity"
    UPSTREAM_ERROR = "upstream_error"
    UPSTREAM_TIMEOUT = "upstream_timeout"

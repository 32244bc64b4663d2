"""What a tenant is told: why a call was refused and what to do, and the slots of its charts."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from routing.contracts.capacity import CapacityScope, SharedScope
from routing.contracts.enums import LimitScope
from routing.decision.types import TASK_REASONS, Reason
from tenants.ledger.rules.periods import start_of

OWN_SCOPES = frozenset(scope.value for scope in LimitScope)  # the others are the fleet's

_SCOPE_WORDS = {
    LimitScope.TENANT.value: "of the tenant",
    LimitScope.KEY.value: "of this key",
    LimitScope.TENANT_MODEL.value: "of the tenant for this model",
    LimitScope.TENANT_CLASS.value: "of the tenant for this class",
    LimitScope.RESOURCE.value: "of the tenant for this resource",
    CapacityScope.POOL.value: "of the pool",
    CapacityScope.FLEET.value: "of the fleet",
    SharedScope.POOL_CLASS.value: "of the pool for this class",
    SharedScope.FLEET_CLASS.value: "of the fleet for this class",
}
_SEND_AGAIN = "Send it again. If it repeats, tell an operator the request id."
_END_TASK = "Its page shows the steps: end the task, or start another. Operators set the caps."
# code -> what happened, what to do next. Limits say more: see `explain`.
_PLAIN: dict[str, tuple[str, str]] = {
    Reason.INVALID_REQUEST.value: (
        "The request itself cannot be served.",
        "Its answer says what is wrong, and in param where, if it is one field: change that.",
    ),
    Reason.UNAUTHORIZED.value: (
        "The key is unknown, revoked or past its end, or the tenant is suspended.",
        "Use a key that is active.",
    ),
    Reason.UNSUPPORTED_CAPABILITY.value: (
        "What serves the model cannot do something that the request asks for.",
        "Leave out the member that its answer names in param, or ask another model.",
    ),
    Reason.MODEL_NOT_ALLOWED.value: (
        "The key or the tenant does not include this model.",
        "Use a model of GET /v1/models, or a key that includes this one.",
    ),
    Reason.CLASS_NOT_ALLOWED.value: (
        "The key does not include the class that was asked for.",
        "Leave x-headrace-class out, or use a key of that class.",
    ),
    Reason.NOT_FOUND.value: (
        "There is no such model or path.",
        "GET /v1/models lists what this key may use.",
    ),
    Reason.METHOD_NOT_ALLOWED.value: (
        "The path does not take this HTTP method.",
        "Use the method that its answer names in Allow.",
    ),
    Reason.UNSUPPORTED_ENCODING.value: (
        "The body came in an encoding that the gateway does not read.",
        "Send it without Content-Encoding.",
    ),
    Reason.REQUEST_TOO_LARGE.value: (
        "The request is larger than the model or the gateway takes.",
        "Send a shorter prompt or a lower max_tokens.",
    ),
    Reason.IDEMPOTENCY_BUSY.value: (
        "The first call with this Idempotency-Key still runs.",
        "Come back after Retry-After.",
    ),
    Reason.IDEMPOTENCY_MISMATCH.value: (
        "This Idempotency-Key was used for another body.",
        "Take a new key for a new call.",
    ),
    Reason.IDEMPOTENCY_SPENT.value: (
        "This call was charged before and its answer is not kept.",
        "Take a new Idempotency-Key: it is a new call.",
    ),
    Reason.BUDGET_EXCEEDED.value: (
        "A limit on spend had no room for this call.",
        "Ask a tenant admin which one: it is raised, or starts again with its period.",
    ),
    Reason.RATE_LIMITED.value: (
        "A limit on requests or tokens had no room for this call.",
        "Come back after Retry-After.",
    ),
    Reason.CONCURRENCY_LIMITED.value: (
        "Too much ran at once for a limit.",
        "Send it again when a call has ended.",
    ),
    Reason.UPSTREAM_RATE_LIMITED.value: (
        "The provider behind the model refused, not a limit of yours.",
        "Come back after Retry-After.",
    ),
    Reason.UPSTREAM_ERROR.value: (
        "A replica failed before it gave any output; nothing was charged for output.",
        _SEND_AGAIN,
    ),
    Reason.UPSTREAM_TIMEOUT.value: (
        "No output came within the time that the class allows.",
        _SEND_AGAIN,
    ),
    Reason.DEADLINE_EXCEEDED.value: (
        "The request was not finished within its time in all: the class's, or your own deadline.",
        "Send it again, with less output or with a class or deadline of more time.",
    ),
    Reason.CONTEXT_CAPPED.value: (
        "An operator caps the prompts of the tenant for a time; its answer says why and at what.",
        "Send a shorter prompt.",
    ),
    Reason.TASK_STEPS.value: (
        "The task has made as many calls as tasks of its kind may.",
        _END_TASK,
    ),
    Reason.TASK_SPEND.value: (
        "The task, or the one that started it, has no money left for this call.",
        _END_TASK,
    ),
    Reason.TASK_WALL.value: (
        "The task's first call is longer ago than tasks of its kind may take.",
        _END_TASK,
    ),
    Reason.TASK_REPEATS.value: (
        "The task made the same call again and again: it loops.",
        f"Mend the loop. {_END_TASK}",
    ),
    Reason.CLASS_PAUSED.value: (
        "An operator paused this class for a time; its answer says why. It is not a limit of "
        "yours.",
        "Your own limits were not used.",
    ),
    Reason.SHED.value: (
        "An operator admits only a share of this class for a time; its answer says why. It is not "
        "a limit of yours.",
        "Your own limits were not used.",
    ),
    Reason.NO_CAPACITY.value: (
        "Nothing could serve the model just then: not a limit of yours.",
        "Come back after Retry-After.",
    ),
    Reason.MODEL_UNAVAILABLE.value: (
        "Nothing serves this model now: not a limit of yours.",
        "Come back after Retry-After, or use another model.",
    ),
    Reason.HOOK_REFUSED.value: (
        "A safety check of the operator refused it: not a limit of yours.",
        "Change what you send; the message of the refusal names the check.",
    ),
    Reason.HOOK_FAILED.value: (
        "A safety check could not be made, and nothing passes without it.",
        "Send it again; if that goes on, tell an operator the name of the check.",
    ),
    Reason.SHUTTING_DOWN.value: (
        "The gateway was stopping.",
        "Send it again: another one takes it.",
    ),
}
# They name a limit that had room or is none: a wait inside the call, a hook, a task's cap, or an
# override.
_SAY_THEMSELVES = frozenset(
    reason.value
    for reason in (
        Reason.UPSTREAM_TIMEOUT,
        Reason.DEADLINE_EXCEEDED,
        Reason.HOOK_REFUSED,
        Reason.HOOK_FAILED,
        *TASK_REASONS,
    )
)
_OVERRIDDEN = frozenset((Reason.CONTEXT_CAPPED.value, Reason.CLASS_PAUSED.value, Reason.SHED.value))
_UNKNOWN = ("The call was refused.", "Tell an operator the request id.")


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a call was refused, what to do next, and whether more can be asked for."""

    what: str
    next_step: str
    may_ask: bool


def explain(*, code: str, limit: str, scope: str, retry_after_ms: int | None) -> Explanation:
    """What refused and what to do. `limit` is a public name such as `spend_per_day`."""
    if not limit or code in _SAY_THEMSELVES or code in _OVERRIDDEN:
        what, next_step = _PLAIN.get(code, _UNKNOWN)
        if code in _OVERRIDDEN and retry_after_ms is not None:
            next_step = f"{_come_back(retry_after_ms)} {next_step}"
        return Explanation(what, next_step, may_ask=False)
    name = limit.replace("_", " ")
    whose = _SCOPE_WORDS.get(scope, "")
    what = f"The limit {name} {whose} had no room for this call.".replace("  ", " ")
    if scope not in OWN_SCOPES:
        return Explanation(
            f"{what} It is not a limit of yours.",
            f"{_come_back(retry_after_ms)} Your own limits were not used.",
            may_ask=False,
        )
    if scope == LimitScope.KEY.value:
        return Explanation(
            what,
            f"{_come_back(retry_after_ms)} Or a tenant admin raises the key's limit.",
            may_ask=False,
        )
    return Explanation(what, f"{_come_back(retry_after_ms)} Or ask for more.", may_ask=True)


def _come_back(retry_after_ms: int | None) -> str:
    if retry_after_ms is None:
        return "Waiting does not help: it needs less, or a higher limit."
    seconds = max(1, -(-retry_after_ms // 1000))
    if seconds < 120:
        return f"It was told to come back after {seconds} s."
    return f"It was told to come back after {-(-seconds // 60):,} min."


def minute_slots(now: datetime, count: int) -> list[datetime]:
    """Starts of the last `count` minutes, the present one last."""
    last = now.astimezone(UTC).replace(second=0, microsecond=0)
    return [last - timedelta(minutes=back) for back in range(count - 1, -1, -1)]


def hour_slots(now: datetime, count: int) -> list[datetime]:
    """Starts of the last `count` hours (UTC), the present one last."""
    last = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return [last - timedelta(hours=back) for back in range(count - 1, -1, -1)]


def day_slots(now: datetime, count: int, timezone: str) -> list[datetime]:
    """Starts of the last `count` days of a zone as UTC instants, today last."""
    today = now.astimezone(ZoneInfo(timezone)).date()
    days = (today - timedelta(days=back) for back in range(count - 1, -1, -1))
    return [start_of(day, timezone) for day in days]


def column_of(slots: list[datetime], values: Mapping[datetime, int]) -> list[int]:
    """The value of each slot; a slot without use is 0: the ledger knows it was none."""
    return [values.get(slot, 0) for slot in slots]

"""A refusal as a client sees it: status, headers, body. The one table of codes."""

import math
from typing import Any

import msgspec

from routing.decision.types import Reason, Refusal
from routing.gateway.dialects.operation import Style
from routing.gateway.story import story_of

LONG_WAIT_S = 120.0  # SDKs do not wait longer by themselves: tell them not to try

_STATUS: dict[Reason, tuple[int, str]] = {
    Reason.INVALID_REQUEST: (400, "invalid_request_error"),
    Reason.UNSUPPORTED_CAPABILITY: (400, "invalid_request_error"),
    Reason.UNAUTHORIZED: (401, "authentication_error"),
    Reason.MODEL_NOT_ALLOWED: (403, "permission_error"),
    Reason.CLASS_NOT_ALLOWED: (403, "permission_error"),
    Reason.HOOK_REFUSED: (403, "permission_error"),
    Reason.NOT_FOUND: (404, "not_found_error"),
    Reason.METHOD_NOT_ALLOWED: (405, "invalid_request_error"),
    Reason.IDEMPOTENCY_BUSY: (409, "idempotency_error"),
    Reason.IDEMPOTENCY_MISMATCH: (409, "idempotency_error"),
    Reason.IDEMPOTENCY_SPENT: (409, "idempotency_error"),
    Reason.REQUEST_TOO_LARGE: (413, "invalid_request_error"),
    Reason.UNSUPPORTED_ENCODING: (415, "invalid_request_error"),
    Reason.BUDGET_EXCEEDED: (429, "insufficient_quota"),
    Reason.RATE_LIMITED: (429, "rate_limit_error"),
    Reason.CONCURRENCY_LIMITED: (429, "rate_limit_error"),
    Reason.CONTEXT_CAPPED: (429, "rate_limit_error"),
    Reason.TASK_STEPS: (429, "insufficient_quota"),
    Reason.TASK_SPEND: (429, "insufficient_quota"),
    Reason.TASK_WALL: (429, "insufficient_quota"),
    Reason.TASK_REPEATS: (429, "insufficient_quota"),
    Reason.UPSTREAM_RATE_LIMITED: (429, "rate_limit_error"),
    Reason.UPSTREAM_ERROR: (502, "api_error"),
    Reason.CLASS_PAUSED: (503, "overloaded_error"),
    Reason.SHED: (503, "overloaded_error"),
    Reason.HOOK_FAILED: (503, "api_error"),
    Reason.NO_CAPACITY: (503, "overloaded_error"),
    Reason.MODEL_UNAVAILABLE: (503, "overloaded_error"),
    Reason.SHUTTING_DOWN: (503, "overloaded_error"),
    Reason.UPSTREAM_TIMEOUT: (504, "timeout_error"),
    Reason.DEADLINE_EXCEEDED: (504, "timeout_error"),
}

# SDKs would come back by themselves, to no use: the same call can only be answered the same.
_FINAL = frozenset((Reason.BUDGET_EXCEEDED, Reason.IDEMPOTENCY_MISMATCH, Reason.IDEMPOTENCY_SPENT))
# Another try may find the fault gone, but nobody knows when: SDKs then wait by their own rule.
_PASSING = frozenset((
    Reason.UPSTREAM_ERROR, Reason.UPSTREAM_TIMEOUT, Reason.DEADLINE_EXCEEDED, Reason.HOOK_FAILED,
))  # fmt: skip
_REQUEST_TIMEOUT = 408


def bad_header(name: str, wanted: str) -> Refusal:
    """A header of the caller's that cannot be read: 400, naming it."""
    return Refusal(Reason.INVALID_REQUEST, f"The header {name} must be {wanted}.", param=name)


def status_of(refusal: Refusal) -> int:
    """HTTP status of a refusal."""
    return _STATUS[refusal.reason][0]


# Anthropic's words where they differ from OpenAI's.
_ANTHROPIC_TYPE = {
    Reason.BUDGET_EXCEEDED: "billing_error",
    Reason.TASK_STEPS: "rate_limit_error",
    Reason.TASK_SPEND: "billing_error",
    Reason.TASK_WALL: "rate_limit_error",
    Reason.TASK_REPEATS: "rate_limit_error",
    Reason.REQUEST_TOO_LARGE: "request_too_large",
    Reason.IDEMPOTENCY_BUSY: "invalid_request_error",
    Reason.IDEMPOTENCY_MISMATCH: "invalid_request_error",
    Reason.IDEMPOTENCY_SPENT: "invalid_request_error",
}


def error_object(refusal: Refusal, style: Style = Style.OPENAI, request_id: str = "") -> bytes:
    """`{"error": {...}}` in the OpenAI shape, or Anthropic's with the same members more."""
    error: dict[str, Any] = {
        "message": refusal.message,
        "type": _STATUS[refusal.reason][1],
        "param": refusal.param or None,
        "code": refusal.reason.value,
    }
    if refusal.story is not None:
        error["task"] = story_of(refusal.story)
    if style is Style.OPENAI:
        return msgspec.json.encode({"error": error})
    error["type"] = _ANTHROPIC_TYPE.get(refusal.reason, error["type"])
    whole = {"type": "error", "error": error, "request_id": request_id or None}
    return msgspec.json.encode(whole)


def error_event(refusal: Refusal, style: Style = Style.OPENAI, request_id: str = "") -> bytes:
    """The same as a server-sent event; a stream that carries it ends without its usual end."""
    name = b"" if style is Style.OPENAI else b"event: error\n"
    return b"%bdata: %b\n\n" % (name, error_object(refusal, style, request_id))


def retry_headers(refusal: Refusal, status: int) -> bytes:
    """Header lines that tell SDKs whether and when to come back, and whose limit it was.

    `x-should-retry` is on every refusal. `retry-after-ms` is exact, `Retry-After` whole seconds
    rounded up, at least 1. Waits above `LONG_WAIT_S` and spent budgets are told, not to be waited
    for; so is a limit that waiting cannot help, or SDKs would come back at once.
    """
    lines = b""
    wait_s = refusal.retry_after_s
    if wait_s is not None:
        seconds = max(1, math.ceil(wait_s))
        lines += b"retry-after: %d\r\nretry-after-ms: %d\r\n" % (seconds, math.ceil(wait_s * 1000))
        may_retry = wait_s <= LONG_WAIT_S and refusal.reason not in _FINAL
    else:
        may_retry = refusal.reason in _PASSING or status == _REQUEST_TIMEOUT
    lines += b"x-should-retry: %b\r\n" % (b"true" if may_retry else b"false")
    if refusal.limit:
        lines += b"x-headrace-limit: %b\r\n" % refusal.limit.encode()
    if scope := scope_of(refusal):
        lines += b"x-headrace-scope: %b\r\n" % scope.encode()
    return lines


def scope_of(refusal: Refusal) -> str:
    """Whose bound refused, as callers are told; empty where none did."""
    if refusal.scope is not None:
        return refusal.scope.value
    return "fleet" if refusal.reason is Reason.NO_CAPACITY else ""
